"""What went wrong on the hosts of other tools' users, each by its symptom."""

import ast
import hashlib
import tempfile
import time
from pathlib import Path

import pytest

from capsule_installer.care.collect import collect
from capsule_installer.care.verify_host import HostVerifier
from capsule_installer.op.accept import accept_order
from capsule_installer.op.supervisor import supervise
from capsule_installer.system.disk import RealDisk
from capsule_manifest.errors import Refused
from capsule_manifest.release import ComponentKind
from capsule_manifest.wire import MessageType
from support.deliveries import Receiver, make_capsule, part
from support.failures import fails_with
from support.install_world import World
from support.sources import modules
from support.staged_host import Build, await_true

MIB = 1024 * 1024
WEAK = "md5", "sha1", "blake2b", "blake2s"


class Counted:
    """A real disk that says how much is free, if it was told."""

    def __init__(self):
        self._disk, self.free_bytes = RealDisk(), None

    def __getattr__(self, name):
        return getattr(self._disk, name)

    def free(self, path):
        return self._disk.free(path) if self.free_bytes is None else (self.free_bytes, 1_000_000)


@pytest.fixture
def receiver(tmp_path: Path) -> Receiver:
    folder = tmp_path / "host"
    folder.mkdir()
    made = Receiver(str(folder), disk=Counted())
    made.enrol()
    return made


def cut(messages):
    """End a stream as a lost connection does."""
    yield from (message for message in messages if message.type is not MessageType.END)
    raise Refused("wire-malformed", "the stream ended early")


def distinct(index: int) -> bytes:
    """Return bytes that no compressor shortens; every hundredth does not fit into one frame."""
    return hashlib.shake_256(bytes([index])).digest(4 * MIB if index % 100 else 36 * MIB)


def large_capsule(*, counter: int = 7, salt: int = 0, more: int = 0):
    files = {f"f{index}": distinct(salt + index) for index in range(4 + more)}
    return make_capsule((part("app", ComponentKind.SOURCE, files),), counter=counter)


# --- 20: a temporary folder is used although another was named, and leaks -------------------------
def test_staging_uses_no_temporary_folder_and_leaves_nothing_behind(
    receiver, tmp_path, monkeypatch
):
    elsewhere = tmp_path / "temporary"
    elsewhere.mkdir(mode=0o500)
    for name in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.setenv(name, str(elsewhere))
    monkeypatch.setattr(tempfile, "tempdir", None)
    capsule = large_capsule()
    with fails_with("wire-malformed"):
        receiver.take(cut(receiver.messages(capsule, frames_max=1)))
    assert len(list(Path(receiver.layout.incoming).iterdir())) == 1
    receiver.receive(capsule)
    assert list(Path(receiver.layout.incoming).iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["host", "temporary"]
    assert list(elsewhere.iterdir()) == []


# --- 22: the space check counts what our own failed try left --------------------------------------
def test_what_an_interrupted_try_left_is_not_demanded_a_second_time(receiver):
    capsule = large_capsule()
    before = needed(receiver, capsule)
    with fails_with("wire-malformed"):
        receiver.take(cut(receiver.messages(capsule, frames_max=2)))
    assert before - needed(receiver, capsule) >= 16 * MIB


def needed(receiver: Receiver, capsule) -> int:
    """Return how many bytes the host asks for when it has none."""
    receiver.disk.free_bytes = 0
    with fails_with("space-short") as caught:
        receiver.receive(capsule)
    receiver.disk.free_bytes = None
    return int(caught.value.expected.split()[0])


# --- 28: parts of an older package are mixed with the new one -------------------------------------
def test_parts_of_an_older_release_are_never_continued_with_a_newer_one(receiver):
    older, newer = large_capsule(counter=7), large_capsule(counter=8, salt=100)
    with fails_with("wire-malformed"):
        receiver.take(cut(receiver.messages(older, frames_max=2)))
    parts = {path.name for path in Path(receiver.layout.incoming).iterdir()}
    assert parts != set()
    receiver.receive(newer)
    assert receiver.records("want")[-1]["bytes"] == sum(
        len(frame) for frames in newer.stored.values() for frame in frames
    )
    assert parts.isdisjoint(path.name for path in Path(receiver.layout.incoming).iterdir())
    assert HostVerifier(receiver.host).run() == []


# --- 10, 32: an update "succeeds" with large files missing ----------------------------------------
def test_a_release_built_on_a_store_that_lost_files_is_whole_or_not_staged(receiver):
    receiver.receive(large_capsule(counter=7))
    objects = [
        path
        for path in sorted(Path(receiver.layout.store).rglob("*"), key=size_of)
        if path.is_file() and path.stat().st_size >= 4 * MIB
    ]
    assert len(objects) == 4
    objects[-1].unlink()
    objects[0].chmod(0o600)
    objects[0].write_bytes(bytes(4 * MIB))
    newer = large_capsule(counter=8, more=1)
    receiver.receive(newer)
    for index in range(5):
        assert Path(receiver.path(newer, f"app/f{index}")).read_bytes() == distinct(index)


# --- 33, 34, 35, 38: a clock that is wrong, or time that passes between two steps -----------------
def test_nothing_that_decides_on_a_host_reads_or_sets_the_time_of_day():
    forbidden = {
        "time", "time_ns", "now", "utcnow", "today", "localtime", "gmtime", "ctime",
        "clock_settime", "clock_settime_ns", "adjtime", "CLOCK_REALTIME", "CLOCK_TAI",
    }  # fmt: skip
    readers = [
        f"{module.name}:{node.lineno}"
        for module in modules("manifest", "installer")
        for node in ast.walk(module.tree)
        if (isinstance(node, ast.Attribute) and node.attr in forbidden)
        or (isinstance(node, ast.ImportFrom) and node.module in {"time", "datetime"})
    ]
    # `wall_ms`, which only the verb that shows a host's surfaces may use.
    assert [place.partition(":")[0] for place in readers] == [
        "installer/capsule_installer/system/clock.py"
    ]
    users = [
        module.name
        for module in modules("manifest", "installer")
        if "wall_ms" in imported_from(module.tree, "capsule_installer.system.clock")
    ]
    assert users == ["installer/capsule_installer/care/survey.py"]


def imported_from(tree, name):
    return {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == name
        for alias in node.names
    }


@pytest.mark.parametrize("seconds", [0, 4_070_908_800], ids=["clock_1970", "clock_2099"])
def test_a_clock_that_is_wrong_by_decades_refuses_no_genuine_release(
    receiver, monkeypatch, seconds
):
    monkeypatch.setattr(time, "time", lambda: float(seconds))
    monkeypatch.setattr(time, "time_ns", lambda: seconds * 10**9)
    capsule = make_capsule()
    receiver.receive(capsule)
    assert receiver.marker(capsule) is not None


# --- 50: hosts whose OpenSSL refuses weak digests -------------------------------------------------
def test_a_host_that_has_no_weak_digests_verifies_and_stages(receiver, monkeypatch):
    for name in WEAK:
        monkeypatch.setattr(hashlib, name, refuse)
    real = hashlib.new
    monkeypatch.setattr(
        hashlib, "new", lambda name, *rest: (refuse if name in WEAK else real)(name, *rest)
    )
    with pytest.raises(ValueError, match="disabled"):
        hashlib.md5(b"")
    capsule = make_capsule()
    receiver.receive(capsule)
    assert HostVerifier(receiver.host).run() == []


def test_whom_to_believe_is_decided_by_sha_256_alone():
    # BLAKE3 names content below a manifest that is already believed, and never the manifest.
    readers = [
        module.name
        for module in modules("manifest")
        for name in ("trust", "envelope", "statements", "keys", "policy", "route", "orders")
        if module.name.endswith(f"/{name}.py")
        and any(
            isinstance(node, ast.Attribute | ast.Name)
            and getattr(node, "attr", getattr(node, "id", "")) in {"blake3", "object_id", *WEAK}
            for node in ast.walk(module.tree)
        )
    ]
    assert readers == []


def size_of(path: Path) -> int:
    return path.stat().st_size


def refuse(*_, **__):
    raise ValueError("[digital envelope routines] disabled for FIPS")


# --- 68: a reboot applies what was only staged ----------------------------------------------------
def test_a_reboot_does_not_apply_what_is_only_staged(host):
    first = host.stage(Build(counter=1))
    assert host.install(first, op_id="1" * 32)[0] == 0
    second = host.stage(Build(counter=2))
    host.stop_services()
    assert host.get() == ""
    code, _ = host.run("boot")
    assert code == 0
    await_true(lambda: host.get() == "1")
    assert host.current() == first.generation
    assert second.generation in host.state.staged_generations()


# --- 70: garbage collection removes the running release, a rollback its evidence ------------------
def test_gc_never_removes_the_running_release_or_the_way_back_or_the_evidence():
    world = World.fresh()
    effects = world.effects()
    markers = [world.stage(Build(counter=counter), broken=counter == 4) for counter in range(1, 5)]
    for number, marker in enumerate(markers, 1):
        order = world.host.order(
            marker,
            op_id=f"{number}" * 32,
            boot_id=effects.clock.boot_id(),
            boot_ms=effects.clock.boot_ms(),
            confirm="local",
        )
        accept_order(effects, order)
        supervise(effects, f"{number}" * 32)
    names = [marker.generation for marker in markers]
    for _ in range(2):
        collection = collect(world.effects(), dry_run=False)
        assert collection.kept == {
            names[1]: "previous",
            names[2]: "current",
            names[3]: "newest staged",
        }
        assert world.is_whole(names[2], strict=True)
    world.stage(Build(counter=5))
    assert collect(world.effects(), dry_run=False).kept[names[3]] == "newest that failed"
