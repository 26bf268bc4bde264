# Pure functions: builtins only, no nixpkgs, no derivations. Tested by ./tests.nix.
rec {
  schema = "capsule.nix/1";
  systems = [ "aarch64-linux" "x86_64-linux" ];
  kinds = [ "helper" "toolchain" ];

  genAttrs = names: f: builtins.listToAttrs (map (name: { inherit name; value = f name; }) names);
  forAllSystems = genAttrs systems;

  nameOk = name: builtins.match "[a-z0-9][a-z0-9._-]{0,62}" name != null;

  # A program of a component, as a path below its output; it becomes a link of the same path.
  binOk = path:
    builtins.match "[A-Za-z0-9][A-Za-z0-9._+/-]*" path != null
    && builtins.match ".*(//|/\\.\\.?/|/\\.\\.?$|/$).*" path == null
    && builtins.match "nix(/.*)?" path == null;

  # A component is data and one derivation. Everything but `package` must be JSON.
  mkComponent = { name, kind, package, bin ? [ ], meta ? { } }:
    assert nameOk name || throw "capsule: '${name}' is no component's name";
    assert builtins.elem kind kinds
      || throw "capsule: component '${name}' has the unknown kind '${kind}'; known: ${toString kinds}";
    assert builtins.all binOk bin
      || throw "capsule: component '${name}' has a program that is no path below its output";
    { inherit name kind package bin meta; };

  # A list of components as a set by name. A name given twice would lose one of them.
  byName = list:
    let set = builtins.listToAttrs (map (value: { inherit (value) name; inherit value; }) list);
    in
    assert builtins.length (builtins.attrNames set) == builtins.length list
      || throw "capsule: two components have one name";
    set;

  # What `capsule lock` reads with one `nix eval --json`: evaluated, not built.
  # `storePath` and not `outPath`: a set with the latter becomes a string in JSON.
  describe = components: {
    inherit schema;
    components = builtins.mapAttrs
      (_: component: {
        inherit (component) name kind bin meta;
        env = { };
        needsStore = true;
        drv = builtins.unsafeDiscardStringContext component.package.drvPath;
        storePath = builtins.unsafeDiscardStringContext component.package.outPath;
        output = component.package.outputName or "out";
        inherit (component.package) system;
      })
      components;
  };

  # name -> what nixpkgs has by that name; a set that lacks it is named by what needs it.
  pick = what: set: name: set.${name} or (throw "capsule: ${what} lacks '${name}'");

  # "psycopg[binary]>=3.2" -> "psycopg", as PEP 508 begins.
  requirementName = requirement:
    let found = builtins.match "([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?).*" requirement;
    in if found == null then throw "capsule: '${requirement}' is no requirement" else builtins.head found;

  # A parsed pyproject.toml -> names of what it needs from elsewhere. Our own parts come as folders.
  dependencies = project:
    builtins.filter (name: builtins.match "capsule-.*" name == null)
      (map requirementName project.project.dependencies);
}
