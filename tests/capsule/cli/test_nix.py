"""A component from Nix as an operator meets it: locked with Nix on PATH, built where there is none.

What a hostile binary cache does is seen at the same edge: an id, an exit code, a next step, no
traceback and no capsule.
"""

import json
import shutil

import pytest

from capsule.__main__ import main
from capsule.builder.lockfile import load_lock
from capsule_manifest.error_table import ROWS
from support.indexes import pip_environment
from support.nars import CacheKey
from support.nix import IsolatedNix, reason_without_nix
from support.releases import ReleaseFolder
from support.runtimes import runtime_index

FLAKE = """\
{
  outputs = { self }:
    let
      make = name: script: derivation {
        inherit name; system = "x86_64-linux"; builder = "/bin/sh";
        args = [ "-eu" "-c" script ]; PATH = "/bin:/usr/bin";
      };
      greet = make "greet-1.0" ''
        mkdir -p $out/bin; printf '#!/bin/sh\\necho hello\\n' > $out/bin/greet
        chmod 755 $out/bin/greet
      '';
    in {
      capsule.x86_64-linux = {
        components = { inherit greet; };
        describe = {
          schema = "capsule.nix/1";
          components.greet = {
            name = "greet"; kind = "helper"; bin = [ "bin/greet" ]; env = { };
            storePath = "${greet}"; output = "out"; system = "x86_64-linux";
          };
        };
      };
    };
}
"""
COMPONENT = """\
[components.greet]
kind = "helper"
nix.flake = "."
[roles.web]
"""
needs_nix = pytest.mark.skipif(bool(reason_without_nix()), reason=reason_without_nix())


class Desk:
    """A release with a component of its own flake, and a user with or without Nix."""

    def __init__(self, folder, monkeypatch, capsys):
        self.folder = folder
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        self.release = ReleaseFolder(folder / "release")
        runtime_index(self.release.index, monkeypatch)
        path = self.release.work / "release.toml"
        text = path.read_text()
        fetched = text.index("[components.fetched]")
        text = text[:fetched] + text[text.index("[components.script]") :]
        text = text.replace('"fetched", "script"', '"script", "greet"')
        text = text.replace("[roles.web]\n", COMPONENT)
        self.release.repository.commit({"release.toml": text.encode(), "flake.nix": FLAKE.encode()})
        environment = pip_environment(self.release.index, folder / "home")
        for name, value in (environment | {"XDG_CACHE_HOME": str(folder / "cache")}).items():
            monkeypatch.setenv(name, value)

    def have(self, nix):
        """Let the user have this Nix."""
        for name, value in nix.environment.items():
            self._monkeypatch.setenv(name, value)

    def move(self, *caches):
        """Go to a machine that has neither Nix nor anything fetched, but these caches."""
        here = self.folder / "no-nix"
        here.mkdir(exist_ok=True)
        for name in ("git", "sh", "env"):
            program = here / name
            if not program.exists():
                program.symlink_to(shutil.which(name))
        self._monkeypatch.setenv("PATH", str(here))
        self._monkeypatch.setenv("XDG_CACHE_HOME", str(self.folder / "another-cache"))
        addresses = " ".join(f"file://{cache}" for cache in caches)
        self._monkeypatch.setenv("CAPSULE_NIX_CACHES", addresses)

    def run(self, verb, *arguments):
        release = str(self.release.work / "release.toml")
        code = main([verb, "--release", release, "--json", *arguments])
        return code, self._capsys.readouterr()

    def build(self, output):
        code, said = self.run("build", "--output", str(self.folder / output))
        assert code == 0, said.err
        return json.loads(said.out)["capsule"]

    def is_refused(self, verb, error_id):
        code, said = self.run(verb)
        assert json.loads(said.out)["error"] == error_id, said.err
        assert code == int(ROWS[error_id][0])
        assert f"\n  next: {ROWS[error_id][1]}" in said.err
        assert "Traceback" not in said.err
        assert not list(self.folder.rglob("*.capsule"))


@pytest.fixture
def desk(tmp_path, monkeypatch, capsys):
    return Desk(tmp_path, monkeypatch, capsys)


@pytest.fixture
def locked(desk, tmp_path):
    """Return a desk whose release is locked, and a binary cache with the closure."""
    nix = IsolatedNix(tmp_path / "nix")
    desk.have(nix)
    code, said = desk.run("lock")
    assert code == 0, said.err
    pin = load_lock(desk.release.work / "release.lock").closures["greet", "bookworm"]
    binary = tmp_path / "binary"
    nix.run("nix", "copy", "--to", f"file://{binary}?compression=none", f"/nix/store/{pin.root}")
    return desk, binary


def test_without_nix_and_without_a_pin_locking_is_refused(desk):
    desk.move()
    desk.is_refused("lock", "nix-missing")


def test_a_cache_with_an_address_of_another_form_is_refused(desk, monkeypatch):
    desk.move()
    monkeypatch.setenv("CAPSULE_NIX_CACHES", "/srv/cache")
    desk.is_refused("lock", "nix-cache-invalid")


@needs_nix
def test_a_capsule_is_the_same_with_and_without_nix(locked):
    desk, binary = locked
    first = desk.build("one")
    desk.move(binary)
    assert desk.run("lock", "--fetch")[0] == 0
    desk.move()
    assert desk.build("two") == first


@needs_nix
def test_a_machine_that_has_no_cache_to_ask_is_told_so(locked):
    desk, _ = locked
    desk.move()
    desk.is_refused("build", "nix-path-unavailable")


@needs_nix
def test_a_hostile_binary_cache_is_refused(locked):
    hostile = {
        "other content": (".nar", lambda raw: raw.replace(b"hello", b"HELLO"), "nix-nar-mismatch"),
        "cut off": (".nar", lambda raw: raw[:-8], "nix-nar-mismatch"),
        "longer": (".nar", lambda raw: raw + bytes(8), "nix-nar-mismatch"),
        "size": (".narinfo", lambda raw: raw.replace(b"Size: ", b"Size: 1"), "nix-nar-mismatch"),
        "outside": (".narinfo", lambda raw: raw.replace(b"nar/", b"../nar/"), "narinfo-malformed"),
        "twice": (".narinfo", lambda raw: raw + raw, "narinfo-malformed"),
    }
    desk, binary = locked
    desk.move(binary)
    for case, (suffix, change, error_id) in hostile.items():
        (path,) = binary.rglob(f"*{suffix}")
        honest = path.read_bytes()
        path.write_bytes(change(honest))
        assert path.read_bytes() != honest, case
        desk.is_refused("build", error_id)
        path.write_bytes(honest)
    desk.build("after all")


@needs_nix
def test_a_closure_that_nobody_signed_is_refused_where_a_key_is_pinned(desk, tmp_path):
    desk.have(IsolatedNix(tmp_path / "nix"))
    pinned = f'nix.flake = "."\nnix.keys = ["{CacheKey().public}"]'
    desk.release.edit('nix.flake = "."', pinned)
    desk.is_refused("lock", "nix-signature-missing")
