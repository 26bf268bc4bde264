# A NixOS host that releases can be installed on. Units and files of a release are capsule's, not
# NixOS's: a rebuild neither removes nor changes them.
{ config, lib, pkgs, ... }:
let
  cfg = config.services.capsule;
in
{
  options.services.capsule = {
    enable = lib.mkEnableOption "installing releases by capsule";
    python = lib.mkOption {
      type = lib.types.package;
      default = pkgs.python3;
      description = ''
        The Python that runs the host's program. The release's platform names it by
        `interpreter = "/run/current-system/sw/bin/python3"`.
      '';
    };
    units = lib.mkOption {
      type = lib.types.path;
      default = "/usr/local/lib/systemd/system";
      readOnly = true;
      description = "Where capsule writes units; NixOS' systemd looks there only when told to.";
    };
  };

  config = lib.mkIf cfg.enable {
    environment.systemPackages = [ cfg.python ];
    boot.extraSystemdUnitPaths = [ cfg.units ];
    systemd.tmpfiles.rules = [
      "d /opt/capsule 0755 root root -"
      "d /var/lib/capsule 0755 root root -"
      "d ${toString cfg.units} 0755 root root -"
    ];
  };
}
