# What a developer needs beside `./dev setup`, which makes the Python environment from its own locks.
{ pkgs, lib }:
pkgs.mkShell {
  name = "capsule";
  packages = map (lib.pick "nixpkgs" pkgs) [ "python3" "gitMinimal" "zstd" "skopeo" ];
}
