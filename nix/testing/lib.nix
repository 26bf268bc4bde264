# As much of nixpkgs' lib as ../module.nix uses, for its tests. Not nixpkgs.
rec {
  types = { package = "package"; path = "path"; };
  mkOption = option: option;
  mkEnableOption = description: { type = "bool"; default = false; inherit description; };
  mkIf = condition: value: if condition then value else { };

  # The module's own options with their defaults, `settings` over them, and what it then configures.
  evaluate = module: pkgs: settings:
    let
      declared = (module { config = throw "options depend on config"; inherit pkgs; lib = self; }).options;
      defaults = builtins.mapAttrs (_: option: option.default) declared.services.capsule;
      unknown = removeAttrs settings (builtins.attrNames defaults);
      config = { services.capsule = defaults // settings; };
    in
    if unknown != { } then throw "unknown options: ${toString (builtins.attrNames unknown)}"
    else (module { inherit config pkgs; lib = self; }).config;

  self = { inherit types mkOption mkEnableOption mkIf; };
}
