# The controller with its formats and the host's program, run by one Python. Wheels of releases are
# never resolved here: what this needs is what pyproject.toml says, by nixpkgs' names.
{ pkgs, lib, root }:
let
  project = fromTOML (builtins.readFile (root + "/capsule/pyproject.toml"));
  python = pkgs.python3.withPackages (set: map (lib.pick "python3Packages" set) (lib.dependencies project));
  folder = distribution: module: builtins.path {
    name = module;
    path = root + "/${distribution}/${module}";
    filter = path: _type: baseNameOf path != "__pycache__";
  };
in
pkgs.runCommand "capsule-${project.project.version}"
{
  inherit python;
  capsule = folder "capsule" "capsule";
  manifest = folder "manifest" "capsule_manifest";
  installer = folder "installer" "capsule_installer";
} ''
  mkdir -p $out/bin $out/lib
  cp -r $capsule $out/lib/capsule
  cp -r $manifest $out/lib/capsule_manifest
  cp -r $installer $out/lib/capsule_installer
  {
    echo '#!/bin/sh'
    echo "PYTHONPATH=$out/lib exec $python/bin/python3 -m capsule \"\$@\""
  } > $out/bin/capsule
  chmod 755 $out/bin/capsule
''
