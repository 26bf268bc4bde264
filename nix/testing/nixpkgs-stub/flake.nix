{
  description = "As much of nixpkgs' shape as capsule's flake uses, without network. Not nixpkgs.";

  outputs = { self }:
    let
      systems = [ "aarch64-linux" "x86_64-linux" ];
      genAttrs = names: f: builtins.listToAttrs (map (name: { inherit name; value = f name; }) names);
      pythonPackages = [
        "alembic" "blake3" "click" "cryptography" "fabric" "packaging" "paramiko" "psycopg"
        "pydantic" "rich" "securesystemslib" "sigstore" "sqlalchemy" "tuf" "zstandard"
      ];
      packagesOf = system:
        let
          run = name: environment: script: derivation (environment // {
            inherit name system;
            builder = "/bin/sh";
            args = [ "-eu" "-c" script ];
            PATH = "/bin:/usr/bin";
          });
          tool = name: run "${name}-stub-0" { } ''
            mkdir -p $out/bin
            printf '#!/bin/sh\necho "stub of ${name}: $*"\n' > $out/bin/${name}
            chmod 755 $out/bin/${name}
          '';
        in
        {
          runCommand = run;
          # `nix develop` asks bash for its environment, and loops over the outputs.
          mkShell = { name ? "shell", packages ? [ ] }: derivation {
            inherit name system packages;
            builder = "/bin/bash";
            outputs = [ "out" ];
            args = [ "-c" "export > $out" ];
            PATH = "/bin:/usr/bin";
          };
          python3 = tool "python3" // {
            # Each name is looked at, so that a package which is not listed above is missed.
            withPackages = choose:
              let chosen = choose (genAttrs pythonPackages tool);
              in builtins.deepSeq (map (package: package.name) chosen) (tool "python3");
          };
          gitMinimal = tool "git";
          skopeo = tool "skopeo";
          zstd = tool "zstd";
        };
    in
    { legacyPackages = genAttrs systems packagesOf; };
}
