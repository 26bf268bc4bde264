"""Closures of Nix as inputs: built by Nix or taken from a binary cache, the same for everyone."""
