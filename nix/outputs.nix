# The flake's outputs: functions of this folder, applied to nixpkgs for each system.
{ self, nixpkgs }:
let
  lib = import ./lib.nix;
  root = ../.;
  failures = import ./tests.nix;
  perSystem = f: lib.forAllSystems (system: f system nixpkgs.legacyPackages.${system});
in
{
  inherit lib;

  packages = perSystem (_: pkgs: { default = import ./package.nix { inherit pkgs lib root; }; });

  apps = perSystem (system: _: {
    default = { type = "app"; program = "${self.packages.${system}.default}/bin/capsule"; };
  });

  # `capsule lock` evaluates `describe`, then builds `components.NAME`.
  capsule = perSystem (_: pkgs:
    let components = import ./components.nix { inherit pkgs lib; };
    in {
      describe = lib.describe components;
      components = builtins.mapAttrs (_: component: component.package) components;
    });

  checks = perSystem (system: pkgs: {
    functions =
      if failures == [ ]
      then pkgs.runCommand "capsule-functions" { } "echo passed > $out"
      else throw "nix/tests.nix: ${builtins.toJSON failures}";
    program = pkgs.runCommand "capsule-program" { capsule = self.packages.${system}.default; } ''
      $capsule/bin/capsule --version > $out
    '';
    components = pkgs.runCommand "capsule-components"
      {
        described = builtins.toJSON self.capsule.${system}.describe;
        built = builtins.attrValues self.capsule.${system}.components;
      } ''
      printf '%s\n' "$described" > $out
    '';
  });

  devShells = perSystem (_: pkgs: { default = import ./shell.nix { inherit pkgs lib; }; });

  nixosModules.default = import ./module.nix;
}
