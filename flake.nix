{
  description = "capsule: signed releases, installed by hosts in bounded time";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-26.05";

  # Only wires: everything that decides something is a function in ./nix, which its tests call.
  outputs = { self, nixpkgs }: import ./nix/outputs.nix { inherit self nixpkgs; };
}
