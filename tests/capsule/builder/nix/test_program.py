"""The program `nix` itself: a real closure of a flake, locked, built without Nix, and run."""

import hashlib
import json
import os
import subprocess
from datetime import UTC, datetime

import pytest

from capsule.builder.assemble import draft_release
from capsule.builder.lock import lock_release
from capsule.builder.nix.access import NixAccess
from capsule.builder.nix.caches import FolderCache
from capsule.builder.nix.narinfo import decode_narinfo, verify_narinfo
from capsule.builder.nix.program import Nix, NixAsk
from capsule.builder.resolve import resolve_release
from capsule_manifest.tree_entry import EntryKind
from support.failures import fails_with
from support.indexes import NoNix, cache_of
from support.nars import CacheKey, Link, Program, nar
from support.nix import IsolatedNix, reason_without_nix
from support.releases import ReleaseFolder
from support.repositories import Repository
from support.runtimes import runtime_index

SYSTEM = f"{os.uname().machine}-linux"
needs_nix = pytest.mark.skipif(bool(reason_without_nix()), reason=reason_without_nix())

# Two derivations of nothing but a shell: a program that reads a file of another store path.
FLAKE = """\
{
  outputs = { self }:
    let
      make = name: environment: script: derivation (environment // {
        inherit name; system = "SYSTEM"; builder = "/bin/sh";
        args = [ "-eu" "-c" script ]; PATH = "/bin:/usr/bin";
      });
      words = make "words-1.0" { } "mkdir $out; echo hello > $out/words; mkdir $out/empty";
      greet = make "greet-1.0" { inherit words; } ''
        mkdir -p $out/bin
        printf '#!/bin/sh\\nread word < %s/words\\necho "$word, $1"\\n' $words > $out/bin/greet
        chmod 755 $out/bin/greet
        ln -s greet $out/bin/hi
        ln -s $words/words $out/words
      '';
    in {
      capsule.SYSTEM = {
        components = { inherit greet; };
        describe = {
          schema = "capsule.nix/1";
          components.greet = {
            name = "greet"; kind = "toolchain"; bin = [ "bin/greet" "bin/hi" ]; env = { };
            needsStore = true; meta = { }; drv = greet.drvPath; storePath = "${greet}";
            output = "out"; system = "SYSTEM";
          };
        };
      };
    };
}
""".replace("SYSTEM", SYSTEM)


@pytest.fixture
def nix(tmp_path):
    return IsolatedNix(tmp_path / "nix")


@pytest.fixture
def flake(tmp_path):
    return Repository(tmp_path / "flake")


def ask_of(flake, component="greet"):
    head = flake.git("rev-parse", "HEAD")
    return NixAsk(
        flake=f"git+file://{flake.folder}?rev={head}",
        component=component,
        system=SYSTEM,
        where="test",
    )


def changed(flake, old, new):
    assert FLAKE.count(old) == 1
    flake.commit({"flake.nix": FLAKE.replace(old, new).encode()})


@needs_nix
def test_a_component_is_described_built_and_copied(nix, flake, tmp_path):
    head = flake.commit({"flake.nix": FLAKE.encode()})
    built = Nix(nix.environment).build(ask_of(flake), tmp_path / "cache")
    assert (built.revision, built.kind, built.bin) == (
        head,
        "toolchain",
        ("bin/greet", "bin/hi"),
    )
    names = sorted(path.name for path in (tmp_path / "cache").glob("*.narinfo"))
    assert len(names) == 2
    assert f"{built.root[:32]}.narinfo" in names


@needs_nix
def test_what_is_not_committed_is_no_part_of_the_flake(nix, flake, tmp_path):
    flake.commit({"flake.nix": FLAKE.encode()})
    ask = ask_of(flake)
    clean = Nix(nix.environment).build(ask, tmp_path / "one")
    flake.write({"flake.nix": b"no longer Nix"})
    assert Nix(nix.environment).build(ask, tmp_path / "two") == clean


@needs_nix
@pytest.mark.parametrize(
    ("old", "new", "error_id"),
    [
        ('schema = "capsule.nix/1"', 'schema = "capsule.nix/2"', "nix-component-invalid"),
        ('kind = "toolchain"', 'kind = "image"', "nix-component-invalid"),
        ("env = { };", 'env.LANG = "C";', "nix-component-invalid"),
        (f'system = "{SYSTEM}"; builder', 'system = "none"; builder', "nix-failed"),
        ('storePath = "${greet}"', 'storePath = "${words}"', "nix-component-invalid"),
        ('storePath = "${greet}"', 'storePath = "/etc"', "nix-component-invalid"),
        (f'"out"; system = "{SYSTEM}"', '"out"; system = "none"', "nix-component-invalid"),
        ("components.greet = {", "components.other = {", "nix-component-invalid"),
        ("components = { inherit greet; };", "components = { };", "nix-failed"),
        ("mkdir $out; echo", "echo no word; exit 3; echo", "nix-failed"),
        ('schema = "capsule.nix/1";', 'schema = throw "not today";', "nix-failed"),
    ],
)  # fmt: skip
def test_a_flake_that_says_something_else_is_refused(nix, flake, tmp_path, old, new, error_id):
    changed(flake, old, new)
    with fails_with(error_id):
        Nix(nix.environment).build(ask_of(flake), tmp_path / "cache")


@needs_nix
def test_a_flake_without_a_revision_is_refused(nix, flake, tmp_path):
    flake.write({"flake.nix": FLAKE.encode()})
    ask = NixAsk(flake=f"path:{flake.folder}", component="greet", system=SYSTEM, where="test")
    with fails_with("nix-flake-unpinned"):
        Nix(nix.environment).build(ask, tmp_path / "cache")


@needs_nix
def test_archives_are_those_that_nix_writes(nix, tmp_path):
    nodes = {"run": Program(b"#!/bin/sh\n"), "text": b"text", "to": Link("text"), "none": {}}
    folder = tmp_path / "nodes"
    (folder / "none").mkdir(parents=True)
    (folder / "run").write_bytes(nodes["run"].content)
    (folder / "run").chmod(0o755)
    (folder / "text").write_bytes(nodes["text"])
    (folder / "to").symlink_to("text")
    raw = subprocess.run(
        ["nix-store", "--dump", str(folder)], env=nix.environment, check=True, capture_output=True
    ).stdout
    assert hashlib.sha256(raw).digest() == hashlib.sha256(nar(nodes)).digest()


_TOML = """\
[components.greet]
kind = "toolchain"
nix.flake = "."
[roles.web]
"""


def lay_out(entries, folder):
    """Write a component's tree as a host would."""
    for entry in entries:
        path = folder / entry.path
        path.parent.mkdir(parents=True, exist_ok=True)
        match entry.kind:
            case EntryKind.DIRECTORY:
                path.mkdir(exist_ok=True)
            case EntryKind.LINK:
                path.symlink_to(entry.target)
            case EntryKind.FILE:
                with entry.open() as stream:
                    path.write_bytes(stream.read())
                path.chmod(entry.mode & ~0o222)


def node_of(path, folder, links):
    """Return what a laid out store path was, its links as `closure.json` has them."""
    if path.is_symlink():
        inside = path.relative_to(folder).as_posix()
        return Link(links.get("" if inside == "." else inside, str(path.readlink())))
    if path.is_dir():
        return {inner.name: node_of(inner, folder, links) for inner in path.iterdir()}
    return Program(path.read_bytes()) if os.access(path, os.X_OK) else path.read_bytes()


class Locked:
    """A release with a component of its own flake, locked by a real Nix."""

    def __init__(self, folder, nix, monkeypatch):
        self.release = ReleaseFolder(folder)
        runtime_index(self.release.index, monkeypatch)
        self.release.repository.commit({"flake.nix": FLAKE.encode()})
        self.release.edit("[roles.web]\n", _TOML)
        self.release.edit('"fetched", "script"', '"fetched", "script", "greet"')
        access = NixAccess(builder=Nix(nix.environment), caches=())
        self.cache = self.cache_with(folder / "with-nix", access)
        self.lock = lock_release(
            self.release.release, self.cache, previous=None, now=datetime(2026, 1, 2, tzinfo=UTC),
            locked_by="test", report=lambda _: None,
        )  # fmt: skip

    def cache_with(self, folder, access):
        return cache_of(folder, self.release.index, self.release.files, nix=access)

    def resolved(self, cache):
        return resolve_release(self.release.release, self.lock, cache, report=lambda _: None)

    def greet(self, cache):
        (component,) = [c for c in self.resolved(cache).components if c.name == "greet"]
        return component


@pytest.fixture
def locked(tmp_path, nix, monkeypatch):
    return Locked(tmp_path / "release", nix, monkeypatch)


@needs_nix
def test_a_real_closure_runs_where_a_process_sees_it_as_its_store(locked, tmp_path):
    folder = tmp_path / "generation"
    lay_out(locked.greet(locked.cache).entries, folder)
    # What BindReadOnlyPaths= of a unit does: the machine's own store is not seen.
    script = (
        "mount -t tmpfs none /nix && mkdir /nix/store && "
        f'mount --bind {folder}/nix/store /nix/store && exec "$@"'
    )
    for name in ("greet", "hi"):
        done = subprocess.run(
            ["unshare", "-mn", "sh", "-c", script, "sh", str(folder / "bin" / name), "world"],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        assert done.stdout == "hello, world\n"


@needs_nix
def test_from_the_tree_each_archive_can_be_made_again(locked, tmp_path):
    folder = tmp_path / "generation"
    lay_out(locked.greet(locked.cache).entries, folder)
    record = json.loads((folder / "nix/closure.json").read_text())
    assert len(record["paths"]) == 2
    assert any(path["links"] for path in record["paths"].values())
    for name, path in record["paths"].items():
        store_path = folder / "nix/store" / name
        raw = nar(node_of(store_path, store_path, path["links"]))
        assert f"sha256:{hashlib.sha256(raw).hexdigest()}" == path["narHash"]
        assert len(raw) == path["narSize"]


@needs_nix
@pytest.mark.parametrize("compression", ["none", "xz", "zstd"])
def test_a_cache_that_nix_wrote_serves_a_machine_without_it(locked, nix, tmp_path, compression):
    pin = locked.lock.closures["greet", "bookworm"]
    binary = tmp_path / "binary"
    nix.run(
        "nix", "copy", "--to", f"file://{binary}?compression={compression}",
        f"/nix/store/{pin.root}",
    )  # fmt: skip
    access = NixAccess(builder=NoNix(), caches=(FolderCache(binary),))
    there = locked.cache_with(tmp_path / "there", access)

    def drafted(cache):
        return draft_release(
            locked.release.release, locked.resolved(cache), report=lambda _: None
        ).capsule

    assert drafted(there) == drafted(locked.cache)


@needs_nix
def test_what_nix_signs_is_what_is_checked(locked, nix, tmp_path):
    pin = locked.lock.closures["greet", "bookworm"]
    secret = nix.run("nix", "key", "generate-secret", "--key-name", "test-1")
    (tmp_path / "secret").write_text(secret)
    public = subprocess.run(
        ["nix", "key", "convert-secret-to-public"], env=nix.environment, input=secret, text=True,
        check=True, capture_output=True,
    ).stdout  # fmt: skip
    binary = tmp_path / "binary"
    nix.run(
        "nix", "copy", "--to", f"file://{binary}?compression=none&secret-key={tmp_path}/secret",
        f"/nix/store/{pin.root}",
    )  # fmt: skip
    for path in pin.paths:
        raw = (binary / f"{path.name[:32]}.narinfo").read_bytes()
        verify_narinfo(decode_narinfo(raw, where="test"), [public.strip()], where="test")
        with fails_with("nix-signature-missing"):
            verify_narinfo(decode_narinfo(raw, where="test"), [CacheKey().public], where="test")


def program(folder, name, text):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("said", "is_present"),
    [
        ("echo 'nix (Nix) 2.8.0'", True),
        ("echo 'nix (Nix) 2.34.8'", True),
        ("echo 'nix (Lix, like Nix) 2.91.1'", True),
        ("echo 'nix (Nix) 3.0'", True),
        ("echo 'nix (Nix) 2.7.0'", False),
        ("echo 'nix (Nix) 1.11'", False),
        ("echo 'nothing to say'", False),
        ("echo 'nix (Nix) 2.8.0'; exit 1", False),
    ],
)
def test_nix_counts_from_version_2_8_on(tmp_path, said, is_present):
    program(tmp_path, "nix", said)
    assert Nix({"PATH": str(tmp_path)}).is_present() is is_present


def test_a_machine_without_the_program_has_no_nix(tmp_path):
    assert not Nix({"PATH": str(tmp_path)}).is_present()


def test_half_a_document_of_a_failed_evaluation_is_not_read(tmp_path):
    program(tmp_path, "nix", 'printf \'{"a":1,"b":}\'; echo "error: no b" >&2; exit 1')
    ask = NixAsk(flake="path:/x", component="a", system=SYSTEM, where="test")
    with fails_with("nix-failed") as caught:
        Nix({"PATH": str(tmp_path)}).build(ask, tmp_path / "cache")
    assert "no b" in caught.value.got


def test_a_path_that_versions_of_nix_read_differently_is_refused(tmp_path):
    ask = NixAsk(flake="path:/x", component="a", system=SYSTEM, where="test")
    with fails_with("cache-failed"):
        Nix({"PATH": str(tmp_path)}).build(ask, tmp_path / "a cache")


def test_no_secret_of_the_environment_reaches_nix(tmp_path):
    program(tmp_path, "nix", f"/usr/bin/env > {tmp_path}/seen; exit 1")
    Nix({"PATH": str(tmp_path), "GITHUB_TOKEN": "secret", "HOME": "/home/x"}).is_present()
    seen = (tmp_path / "seen").read_text()
    assert "HOME=/home/x" in seen
    assert "GITHUB_TOKEN" not in seen
