# `nix-instantiate --eval --strict --json nix/tests.nix` prints [] when all pass, else the failures.
let
  lib = import ./lib.nix;
  testing = import ./testing/lib.nix;

  fake = name: {
    inherit name;
    system = "x86_64-linux";
    drvPath = "/nix/store/d-${name}.drv";
    outPath = "/nix/store/o-${name}";
    outputName = "out";
  };
  python = { name = "python"; kind = "toolchain"; package = fake "python"; bin = [ "bin/python3" ]; };
  throws = value: !(builtins.tryEval (builtins.deepSeq value true)).success;
  host = testing.evaluate (import ./module.nix) { python3 = "the python"; };

  cases = {
    "a component's name is that of a release" = {
      got = map lib.nameOk [ "python-3.12" "a" "" "../etc" "Upper" ".hidden" "a b" ];
      want = [ true true false false false false false ];
    };
    "a program is a path below the output" = {
      got = map lib.binOk [ "bin/python3" "bin/g++" "/bin/sh" "../x" "bin/../x" "bin/.." "bin//x" "bin/" "nix/x" "" ];
      want = [ true true false false false false false false false false ];
    };
    "an unknown kind is refused" = {
      got = throws (lib.mkComponent (python // { kind = "image"; }));
      want = true;
    };
    "a bad name is refused" = {
      got = throws (lib.mkComponent (python // { name = "../etc"; }));
      want = true;
    };
    "a bad program is refused" = {
      got = throws (lib.mkComponent (python // { bin = [ "/bin/sh" ]; }));
      want = true;
    };
    "an unknown key is refused" = {
      # A missing or unexpected argument can't be caught, so the function's own arguments are read.
      got = builtins.functionArgs lib.mkComponent;
      want = { name = false; kind = false; package = false; bin = true; meta = true; };
    };
    "components are found by name" = {
      got = builtins.attrNames (lib.byName [ { name = "b"; } { name = "a"; } ]);
      want = [ "a" "b" ];
    };
    "two components of one name are refused" = {
      got = throws (lib.byName [ { name = "a"; } { name = "a"; } ]);
      want = true;
    };
    "a description is JSON and needs no build" = {
      got = builtins.fromJSON (builtins.toJSON (lib.describe (lib.byName [ (lib.mkComponent python) ])));
      want = {
        schema = "capsule.nix/1";
        components.python = {
          name = "python";
          kind = "toolchain";
          bin = [ "bin/python3" ];
          env = { };
          needsStore = true;
          meta = { };
          drv = "/nix/store/d-python.drv";
          storePath = "/nix/store/o-python";
          output = "out";
          system = "x86_64-linux";
        };
      };
    };
    "what a set lacks is named" = {
      got = [ (lib.pick "set" { a = 1; } "a") (throws (lib.pick "set" { a = 1; } "b")) ];
      want = [ 1 true ];
    };
    "a requirement begins with a name" = {
      got = map lib.requirementName [ "click>=8.2" "psycopg[binary]>=3.2" "tuf" "a ; python_version > '3'" ];
      want = [ "click" "psycopg" "tuf" "a" ];
    };
    "no requirement is refused" = { got = throws (lib.requirementName ">=8.2"); want = true; };
    "our own distributions are no dependencies" = {
      got = lib.dependencies { project.dependencies = [ "capsule-manifest==0.1.0" "click>=8.2" ]; };
      want = [ "click" ];
    };
    "components are the documented ones" = {
      got = builtins.mapAttrs (_: component: component.kind) (import ./components.nix {
        inherit lib;
        pkgs = lib.genAttrs [ "python3" "gitMinimal" "zstd" ] fake;
      });
      want = { git = "toolchain"; python = "toolchain"; zstd = "helper"; };
    };
    "a module that is not enabled configures nothing" = { got = host { }; want = { }; };
    "an enabled module lets systemd find capsule's units" = {
      got = (host { enable = true; }).boot.extraSystemdUnitPaths;
      want = [ "/usr/local/lib/systemd/system" ];
    };
    "an enabled module makes the folders and brings a Python" = {
      got =
        let made = host { enable = true; };
        in [ made.environment.systemPackages (builtins.length made.systemd.tmpfiles.rules) ];
      want = [ [ "the python" ] 3 ];
    };
    "another Python can be chosen" = {
      got = (host { enable = true; python = "another"; }).environment.systemPackages;
      want = [ "another" ];
    };
  };

  outcome = name:
    let case = cases.${name};
    in if case.got == case.want then [ ] else [ { test = name; inherit (case) got want; } ];
in
builtins.concatMap outcome (builtins.attrNames cases)
