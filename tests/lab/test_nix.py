"""A closure of Nix on real hosts: staged like everything else, run where no Nix is, and beside one.

The closure is made by Debian's Nix from Debian's own shell and C library: its programs name their
interpreter and their libraries in the store, as those of nixpkgs do.
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
from capsule_manifest.errors import ExitCode
from capsule_manifest.tree_entry import EntryKind
from support import documents
from support.capsules import MiniCapsule, real_runtime
from support.greeting import GREETED, PACKAGES, greeting_flake
from support.indexes import cache_of
from support.lab.commands import wait_until
from support.lab.controller import LabController
from support.lab.packages import install_packages
from support.nix import IsolatedNix, reason_without_nix
from support.programs import lacking
from support.repositories import Repository
from support.runtimes import runtime_index

LACKS = reason_without_nix() or lacking(PACKAGES)
pytestmark = [
    pytest.mark.lab,
    pytest.mark.root,
    pytest.mark.network,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(LACKS), reason=LACKS),
]

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


def nix(host, *command):
    return host.run(*command, "--option", "build-users-group", "", timeout_s=60).stdout.strip()


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
            "flake.nix": greeting_flake(7_000_000),
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


def stage(controller, greeting):
    staged = controller.stage(greeting.mini)
    assert isinstance(staged, NodeStaged), staged


def install(controller, greeting):
    result = controller.install(greeting.mini)
    assert result.result == "committed", result.receipt.receipt
    assert controller.serving() == greeting.mini.generation
    assert controller.host.run("cat", "/run/greet.txt").stdout == GREETED
    pid = controller.host.run("systemctl", "show", "--value", "-p", "MainPID", "hello.service")
    maps = controller.host.run("cat", f"/proc/{int(pid.stdout)}/maps").stdout
    libraries = {line.split()[-1] for line in maps.splitlines() if "libc" in line}
    assert libraries
    assert all(path.startswith("/nix/store/") for path in libraries), libraries


def verify(host):
    return host.run("/opt/capsule/bin/capsule", "verify", "--json", check=False, timeout_s=60)


def edit(host, greeting):
    """Edit a path of the staged closure, as an administrator would who wants to try something."""
    generation = f"/opt/capsule/generations/{greeting.mini.generation}"
    path = f"{generation}/greet/nix/store/{greeting.root}/bin/greet"
    host.run("sh", "-c", f"rm {path} && echo '#!/bin/sh' > {path} && chmod 555 {path}")


def test_a_closure_of_50_mb_runs_on_a_host_without_nix(host, greeting, tmp_path):
    assert greeting.content_bytes >= 50_000_000
    assert not host.path("/nix").exists()
    controller = LabController(host, tmp_path / "controller")
    stage(controller, greeting)
    install(controller, greeting)
    assert verify(host).returncode == ExitCode.DONE


def test_an_edited_path_of_a_closure_is_found_and_mended(host, greeting, tmp_path):
    controller = LabController(host, tmp_path / "controller")
    stage(controller, greeting)
    edit(host, greeting)
    found = verify(host)
    assert found.returncode == ExitCode.INTEGRITY
    assert f"{greeting.root}/bin/greet" in found.stdout
    stage(controller, greeting)
    assert verify(host).returncode == ExitCode.DONE
    install(controller, greeting)


def test_a_hosts_own_nix_collects_its_garbage_and_the_staged_closure_stays(
    host, greeting, tmp_path
):
    install_packages(host, "nix-bin")
    own = nix(host, "nix-store", "--add", "/etc/debian_version")
    controller = LabController(host, tmp_path / "controller")
    stage(controller, greeting)
    nix(host, "nix-collect-garbage", "-d")
    assert not host.path(own).exists()
    assert verify(host).returncode == ExitCode.DONE
    install(controller, greeting)
    nix(host, "nix-collect-garbage", "-d")
    host.reboot()
    wait_until(controller.serving, timeout_s=20, what="the release serves")
    assert verify(host).returncode == ExitCode.DONE


def test_the_store_of_a_hosts_own_nix_is_neither_used_nor_changed(host, greeting, tmp_path):
    install_packages(host, "nix-bin")
    nix(host, "nix-store", "--add", "/etc/debian_version")
    # An edited path of the same name: Nix would keep it as it is, and run it.
    evil = f"/nix/store/{greeting.root}/bin/greet"
    host.write(evil, "#!/bin/sh\necho evil > /run/greet.txt\nexec sleep 1000\n", 0o755)
    before = host.run("find", "/nix", "-printf", "%p %s %T@\\n").stdout
    controller = LabController(host, tmp_path / "controller")
    stage(controller, greeting)
    install(controller, greeting)
    assert host.run("find", "/nix", "-printf", "%p %s %T@\\n").stdout == before
