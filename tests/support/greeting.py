"""A closure of Nix whose program brings everything it runs on, its C library included.

It is made by Debian's Nix of Debian's own files, without nixpkgs and without network: a shell and a
program whose interpreter and library path are of the store, as those of nixpkgs are, and a file of
numbers that gives the closure its size.
"""

__all__ = ["GREETED", "GREETING_PATHS", "PACKAGES", "greeting_flake"]

# What its program writes, and how many store paths its closure has: greet, bulk, shell and libc.
GREETED = "the first is 1\n"
GREETING_PATHS = 4
# Command -> the Debian package that brings it, for the machine that builds the closure.
PACKAGES = {"nix": "nix-bin", "patchelf": "patchelf"}

_FLAKE = """\
{
  outputs = { self }:
    let
      make = name: environment: script: derivation (environment // {
        inherit name; system = "x86_64-linux"; builder = "/bin/sh";
        args = [ "-eu" "-c" script ]; PATH = "/bin:/usr/bin";
      });
      libc = make "libc-2.36" { } ''
        mkdir -p $out/lib
        cp -L /lib64/ld-linux-x86-64.so.2 /lib/x86_64-linux-gnu/libc.so.6 $out/lib/
      '';
      shell = make "shell-1.0" { inherit libc; } ''
        mkdir -p $out/bin
        cp -L /bin/sh /bin/sleep $out/bin/
        chmod u+w $out/bin/*
        for program in $out/bin/*; do
          patchelf --set-interpreter $libc/lib/ld-linux-x86-64.so.2 --set-rpath $libc/lib $program
        done
      '';
      bulk = make "bulk-1.0" { } "mkdir $out; seq 1 @NUMBERS@ > $out/numbers";
      greet = make "greet-1.0" { inherit shell bulk; } ''
        mkdir -p $out/bin
        {
          echo "#!$shell/bin/sh"
          echo "read first < $bulk/numbers"
          echo "echo \\"the first is \\$first\\" > /run/greet.txt"
          echo "while :; do $shell/bin/sleep 1; done"
        } > $out/bin/greet
        chmod 755 $out/bin/greet
        ln -s $bulk/numbers $out/numbers
      '';
    in {
      capsule.x86_64-linux = {
        components = { inherit greet; };
        describe = {
          schema = "capsule.nix/1";
          components.greet = {
            name = "greet"; kind = "toolchain"; bin = [ "bin/greet" ]; env = { };
            storePath = "${greet}"; output = "out"; system = "x86_64-linux";
          };
        };
      };
    };
}
"""


def greeting_flake(numbers: int) -> bytes:
    """Return the flake; 7,000,000 numbers are 55 MB."""
    return _FLAKE.replace("@NUMBERS@", str(numbers)).encode()
