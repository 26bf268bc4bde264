"""A closure of Nix on real hosts: staged like everything else, run where no Nix is, and beside one.

The closure is made by Debian's Nix from Debian's own shell: its programs name their interpreter in
the store, as those of nixpkgs do.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from io import BytesIO

import pytest

from capsule.builder.assemble import assemble, draft_release
from capsule.builder.config import load_release
from capsule.builder.lock import lock_release
from capsule.builder.model import ComponentInput, InputEntry
from capsule.builder.nix.access import NixAccess
from capsule.builder.nix.program import Nix
from capsule.builder.resolve import Resolved, resolve_release
from capsule.builder.signing import sign_directory
from capsule.stage import NodeStaged
from capsule_manifest.tree_entry import EntryKind
from support import documents
from support.capsules import MiniCapsule, real_runtime
from support.indexes import cache_of
from support.lab.controller import LabController
from support.nix import IsolatedNix, reason_without_nix
from support.repositories import Repository
from support.runtimes import runtime_index

pytestmark = [
    pytest.mark.lab,
    pytest.mark.root,
    pytest.mark.network,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(reason_without_nix()), reason=reason_without_nix()),
]

FLAKE = """\
{
  outputs = { self }:
    let
      make = name: environment: script: derivation (environment // {
        inherit name; system = "x86_64-linux"; builder = "/bin/sh";
        args = [ "-eu" "-c" script ]; PATH = "/bin:/usr/bin";
      });
      shell = make "shell-1.0" { } "mkdir -p $out/bin; cp -L /bin/sh /bin/sleep $out/bin/";
      bulk = make "bulk-1.0" { } "mkdir $out; seq 1 7000000 > $out/numbers";
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
RELEASE = """\
format = 1
product = "acme/hello"
version = "1.0.0"
release_counter = 1
[installer]
min_version = "0.1.0"
reason = "the first release"
[platforms.bookworm]
machine = "x86_64"
glibc = "2.36"
python = "3.11"
[components.greet]
kind = "toolchain"
nix.flake = "."
[components.service]
kind = "service"
[[components.service.units]]
file = "hello.service"
soak_s = 0.2
[roles.web]
components = ["greet", "service"]
"""
UNIT = """\
[Unit]
Description=Greets
[Service]
BindReadOnlyPaths=@{generation}/greet/nix/store:/nix/store
ExecStart=@{generation}/greet/bin/greet
TimeoutStartSec=5
TimeoutStopSec=2
[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True)
class Greeting:
    """A capsule with a closure, and the name of the closure's root."""

    mini: MiniCapsule
    root: str
    content_bytes: int


def silent(_text):
    pass


def host_program():
    """Return this tree's host program as the component that the builder makes of its wheels."""
    entries = tuple(
        InputEntry(
            path=path,
            kind=EntryKind.FILE,
            mode=0o644,
            size_bytes=len(content),
            open=lambda content=content: BytesIO(content),
        )
        for path, content in sorted(real_runtime().items())
    )
    return ComponentInput(
        name="runtime-bookworm",
        kind="runtime",
        platforms=("bookworm",),
        entries=entries,
        external=(),
    )


@pytest.fixture
def greeting(tmp_path, monkeypatch):
    nix = IsolatedNix(tmp_path / "nix")
    work = Repository(tmp_path / "work")
    (tmp_path / "index").mkdir()
    runtime_index(tmp_path / "index", monkeypatch)
    work.commit(
        {
            "flake.nix": FLAKE.encode(),
            "release.toml": RELEASE.encode(),
            "hello.service": UNIT.encode(),
        }
    )
    release = load_release(work.folder / "release.toml")
    access = NixAccess(builder=Nix(nix.environment), caches=())
    cache = cache_of(tmp_path / "cache", tmp_path / "index", nix=access)
    now = datetime(2026, 1, 2, tzinfo=UTC)
    lock = lock_release(release, cache, previous=None, now=now, locked_by="test", report=silent)
    # From here on without Nix: the lock and the archives are all there is.
    offline = cache_of(tmp_path / "cache", tmp_path / "index")
    resolved = resolve_release(release, lock, offline, report=silent)
    kept = [item for item in resolved.components if item.kind != "runtime"]
    components = tuple(sorted([*kept, host_program()], key=lambda item: item.name))
    draft = draft_release(
        release, Resolved(source=resolved.source, components=components), report=silent
    )
    built = assemble(draft, tmp_path / "dist", report=silent)
    sign_directory(built.folder, documents.RELEASE_KEY)
    (component,) = [item for item in built.release.components if item.name == "greet"]
    return Greeting(
        mini=MiniCapsule(
            folder=built.folder, release=built.release, capsule=built.capsule, trees={}
        ),
        root=lock.closures["greet", "bookworm"].root,
        content_bytes=component.content_bytes,
    )


def install(controller, greeting):
    staged = controller.stage(greeting.mini)
    assert isinstance(staged, NodeStaged), staged
    result = controller.install(greeting.mini)
    assert result.result == "committed", result
    assert controller.serving() == greeting.mini.generation
    assert controller.host.run("cat", "/run/greet.txt").stdout == "the first is 1\n"


def test_a_closure_of_50_mb_runs_on_a_host_without_nix(host, greeting, tmp_path):
    assert greeting.content_bytes >= 50_000_000
    assert not host.path("/nix").exists()
    install(LabController(host, tmp_path / "controller"), greeting)


def test_the_store_of_a_hosts_own_nix_is_neither_used_nor_changed(host, greeting, tmp_path):
    # An edited path of the same name: Nix would keep it as it is, and run it.
    evil = f"/nix/store/{greeting.root}/bin/greet"
    host.write("/nix/var/nix/db/db.sqlite", b"")
    host.write(evil, "#!/bin/sh\necho evil > /run/greet.txt\nexec sleep 1000\n", 0o755)
    before = host.run("find", "/nix", "-printf", "%p %s %T@\\n").stdout
    install(LabController(host, tmp_path / "controller"), greeting)
    assert host.run("find", "/nix", "-printf", "%p %s %T@\\n").stdout == before
