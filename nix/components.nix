# What may be shipped from nixpkgs, as a list. Short and dull on purpose: CI sees a stub of nixpkgs.
{ pkgs, lib }:
let
  package = lib.pick "nixpkgs" pkgs;
in
lib.byName (map lib.mkComponent [
  { name = "python"; kind = "toolchain"; package = package "python3"; bin = [ "bin/python3" ]; }
  { name = "git"; kind = "toolchain"; package = package "gitMinimal"; bin = [ "bin/git" ]; }
  { name = "zstd"; kind = "helper"; package = package "zstd"; bin = [ "bin/zstd" ]; }
])
