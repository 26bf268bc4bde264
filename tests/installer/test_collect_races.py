"""Collections between stagings, orders, rollbacks, pins, processes, kills and power losses.

Whatever comes in whatever order, what is needed is whole afterwards. What is needed is kept here in
a model of its own, so that the program is not compared with itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from capsule_installer.care.collect import Collection, collect
from capsule_installer.care.verify_host import HostVerifier
from capsule_installer.host.leases import drop_leases, read_leases
from capsule_installer.op.accept import accept_order
from capsule_installer.op.effects import Effects
from capsule_installer.op.op_folder import Result
from capsule_installer.op.real import real_effects
from capsule_installer.op.rollback import rollback_order
from capsule_installer.op.supervisor import supervise
from capsule_installer.system.processes import ProcessFacts
from capsule_manifest.errors import CapsuleError, Refused
from capsule_manifest.records import Marker
from capsule_manifest.release import decode_release
from capsule_manifest.wire import Message, MessageType
from support.crashing_disk import CrashingDisk, Moment, Stopped
from support.deliveries import Receiver, default_parts, make_capsule
from support.failures import fails_with
from support.install_world import NoProcesses, World
from support.model_disk import ModelDisk, survivors
from support.ops import carry_out
from support.staged_host import Build

COUNTERS = range(1, 9)


class Running(NoProcesses):
    """Processes that each use one generation in one way."""

    WAYS = ("cwd", "arguments", "files", "environment", "open", "named")

    def __init__(self, used: dict[str, str]) -> None:
        self._used = list(used.items())

    def facts(self, pid: int) -> ProcessFacts | None:
        folder, way = self._used[pid]
        name = folder.rpartition("/")[2]
        return ProcessFacts(
            pid=pid,
            started_ticks=1,
            cwd=folder if way == "cwd" else "/",
            arguments=("python", f"{folder}/app/serve.py") if way == "arguments" else ("python",),
            environment={"CAPSULE_GENERATION": name} if way == "named" else
                        {"PYTHONPATH": f"/x:{folder}/lib"} if way == "environment" else {},
            files=frozenset({f"{folder}/lib/a.so (deleted)"}) if way == "files" else frozenset(),
        )  # fmt: skip

    def open_files(self, pid: int) -> frozenset[str]:
        folder, way = self._used[pid]
        return frozenset({f"{folder}/app/data.db"}) if way == "open" else frozenset()

    def all_pids(self) -> list[int]:
        return list(range(len(self._used)))


@dataclass
class Model:
    """A host, and what is needed on it by what was done so far."""

    world: World = field(default_factory=World.fresh)
    markers: dict[str, Marker] = field(default_factory=dict)
    leased: set[str] = field(default_factory=set)
    pinned: set[str] = field(default_factory=set)
    used: dict[str, str] = field(default_factory=dict)
    ops: int = 0

    def effects(self, world: World | None = None) -> Effects:
        folders = {self.world.host.layout.generation(name): way for name, way in self.used.items()}
        return replace((world or self.world).effects(), processes=Running(folders))

    def needed(self) -> set[str]:
        host = self.world.host
        links = {host.current(), host.state.generation_of(host.layout.previous)} - {"absent"}
        return links | self.leased | self.pinned | set(self.used)

    def missing(self, world: World) -> list[str]:
        """Return what is gone of what is needed."""
        host, gone = world.host, []
        for name in sorted(self.needed()):
            folder = host.layout.generation(name)
            if host.state.staged_marker(name, host.signer.public) is None:
                gone.append(f"the marker of {name}")
            inside = ["capsule.json", "app/serve.py", "units/hello.service"]
            gone += [f"{name}/{path}" for path in inside
                     if host.disk.stat(f"{folder}/{path}") is None]  # fmt: skip
        return gone

    # --- what may happen -------------------------------------------------------------------------

    def stage(self, counter: int, broken: bool) -> None:
        marker = self.world.stage(Build(counter=counter), broken=broken)
        self.markers[marker.generation] = marker
        self.leased.add(marker.generation)

    def order(self, counter: int) -> None:
        name = next((n for n, m in self.markers.items() if m.release_counter == counter), "")
        present = set(self.world.host.state.staged_generations())
        assert name in present or name not in self.needed(), "what may be ordered is there"
        if name not in present:
            return
        self.ops += 1
        try:
            result = carry_out(self.world, self.markers[name], f"{self.ops:032}")
        except CapsuleError:
            return  # an older release than the floor allows
        if result is Result.COMMITTED:
            self._committed(counter)
        elif result in {Result.RESTORED, Result.ABSENT}:
            self.leased.discard(name)

    def roll_back(self) -> None:
        host = self.world.host
        previous = host.state.generation_of(host.layout.previous)
        if previous == "absent" or host.disk.stat(host.layout.hold) is not None:
            return
        self.ops += 1
        effects, op_id = self.effects(), f"{self.ops:032}"
        accept_order(effects, rollback_order(effects, op_id=op_id, nonce=op_id))
        supervise(effects, op_id)
        if host.op(op_id).result() is Result.COMMITTED:
            self._committed(self.markers[previous].release_counter)

    def collect(self, stop_at: int, how: str) -> None:
        """Collect, stopped before its write number `stop_at` if there is one."""
        disk = self.world.host.disk
        assert isinstance(disk, ModelDisk)
        stopping = CrashingDisk(disk, stop_at=stop_at, moment=Moment.BEFORE)
        try:
            collect(self.effects(self.world.on(stopping, self.world.machine)), dry_run=False)
        except Stopped:
            if how == "power":
                for moment, left in survivors(disk):
                    after = self.world.on(left, self.world.machine)
                    assert self.missing(after) == [], moment
            self.world.host.disk.lock(self.world.host.layout.lock).release()
        self._forget()

    def _committed(self, counter: int) -> None:
        for name in list(self.leased):
            if self.markers[name].release_counter <= counter:
                self.leased.discard(name)

    def _forget(self) -> None:
        present = set(self.world.host.state.staged_generations())
        self.markers = {n: m for n, m in self.markers.items() if n in present}


ACTIONS = st.one_of(
    st.tuples(st.just("stage"), st.sampled_from(COUNTERS), st.booleans()),
    st.tuples(st.just("stage"), st.sampled_from(COUNTERS), st.just(False)),
    st.tuples(st.just("collect"), st.just(0), st.just("")),
    st.tuples(st.just("order"), st.sampled_from(COUNTERS)),
    st.tuples(st.just("order"), st.sampled_from(COUNTERS)),
    st.tuples(st.just("rollback")),
    st.tuples(st.just("pin"), st.sampled_from(COUNTERS)),
    st.tuples(st.just("unpin"), st.sampled_from(COUNTERS)),
    st.tuples(st.just("run"), st.sampled_from(COUNTERS), st.sampled_from(Running.WAYS)),
    st.tuples(st.just("end"), st.sampled_from(COUNTERS)),
    st.tuples(st.just("collect"), st.just(0), st.just("")),
    st.tuples(st.just("collect"), st.integers(1, 40), st.sampled_from(["kill", "power"])),
)


def play(model: Model, action: tuple[object, ...]) -> None:
    named = {m.release_counter: n for n, m in model.markers.items()}
    pins = f"{model.world.host.layout.state}/pins"
    disk = model.world.host.disk
    match action:
        case ("stage", int(counter), bool(broken)):
            model.stage(counter, broken)
        case ("order", int(counter)):
            model.order(counter)
        case ("rollback",):
            model.roll_back()
        case ("pin", int(counter)) if counter in named and named[counter] not in model.pinned:
            if disk.stat(pins) is None:
                disk.mkdir(pins, 0o700)
            disk.create(f"{pins}/{named[counter]}", 0o600).close()
            disk.sync_filesystem("/", "test")
            model.pinned.add(named[counter])
        case ("unpin", int(counter)) if named.get(counter) in model.pinned:
            disk.unlink(f"{pins}/{named[counter]}")
            model.pinned.discard(named[counter])
        case ("run", int(counter), str(way)) if counter in named:
            model.used[named[counter]] = way
        case ("end", int(counter)):
            model.used.pop(named.get(counter, ""), None)
        case ("collect", int(stop_at), str(how)):
            model.collect(stop_at, how)


@settings(max_examples=80, deadline=None)
@given(st.lists(ACTIONS, min_size=8, max_size=20))
@example([("stage", 1, False), ("order", 1), ("stage", 2, False), ("order", 2), ("stage", 3, False),
          ("order", 3), ("run", 1, "open"), ("collect", 0, "")])  # fmt: skip
@example([("stage", 1, False), ("order", 1), ("stage", 2, False), ("order", 2), ("stage", 3, False),
          ("order", 3), ("pin", 1), ("collect", 0, "")])  # fmt: skip
@example([("stage", 1, False), ("stage", 2, False), ("collect", 0, ""), ("order", 1)])
@example([("stage", 3, False), ("order", 3), ("stage", 4, True), ("order", 4), ("stage", 5, True),
          ("order", 5), ("collect", 3, "power"), ("order", 5), ("collect", 0, "")])  # fmt: skip
def test_whatever_comes_in_whatever_order_nothing_that_is_needed_is_removed(actions):
    model = Model()
    for action in actions:
        play(model, action)
        assert model.missing(model.world) == [], action
        assert model.world.machine.violations == []


@pytest.mark.parametrize("way", Running.WAYS)
def test_a_process_of_an_older_generation_keeps_it_however_it_uses_it(way):
    model = Model()
    for counter in (1, 2, 3):
        model.stage(counter, broken=False)
        model.order(counter)
    first = min(model.markers)
    model.used[first] = way
    assert collect(model.effects(), dry_run=False).kept[first] == "in use by a process"
    model.used.clear()
    assert first in collect(model.effects(), dry_run=False).generations


# --- a staging that is interrupted ----------------------------------------------------------------


def host_with_a_release(folder: Path) -> Receiver:
    folder.mkdir()
    receiver = Receiver(str(folder))
    receiver.enrol()
    receiver.receive(make_capsule(default_parts("one"), counter=1))
    return receiver


def cut(messages: Iterator[Message]) -> Iterator[Message]:
    """End a stream as a lost connection does."""
    yield from (message for message in messages if message.type is not MessageType.END)
    raise Refused("wire-malformed", "the stream ended early")


NEXT = make_capsule(default_parts("two"), counter=2)


def begin(receiver: Receiver, frames: int) -> None:
    with fails_with("wire-malformed"):
        receiver.take(cut(receiver.messages(NEXT, frames_max=frames)))


def gather(receiver: Receiver, **how: bool) -> Collection:
    return collect(real_effects(receiver.disk, receiver.layout), dry_run=False, **how)


@pytest.mark.parametrize("frames", range(4))
def test_a_collection_takes_nothing_from_an_interrupted_staging(tmp_path, frames):
    plain, collected = (host_with_a_release(tmp_path / name) for name in ("plain", "collected"))
    for receiver in (plain, collected):
        begin(receiver, frames)
    assert gather(collected).objects == ()
    for receiver in (plain, collected):
        receiver.receive(NEXT)
    assert collected.wanted() == plain.wanted(), "no frame came twice for it"
    for receiver in (plain, collected):
        assert HostVerifier(receiver.host).run() == []


def test_an_operator_may_drop_an_interrupted_staging_and_stage_again(tmp_path):
    receiver = host_with_a_release(tmp_path / "host")
    begin(receiver, 2)
    gather(receiver, drop_staged=True)
    receiver.receive(NEXT)
    assert HostVerifier(receiver.host).run() == []


def test_a_staging_for_which_there_is_no_room_leaves_no_lease_behind(tmp_path):
    receiver = host_with_a_release(tmp_path / "host")
    receiver.disk.free = lambda _: (0, 0)
    with fails_with("space-short"):
        receiver.receive(NEXT)
    assert set(read_leases(receiver.disk, receiver.layout)) == {
        make_capsule(default_parts("one"), counter=1).generation
    }


def test_the_lock_of_a_staging_keeps_a_collection_out(tmp_path):
    receiver = host_with_a_release(tmp_path / "host")
    lock = receiver.host.take_lock()
    try:
        effects = replace(
            real_effects(receiver.disk, receiver.layout), clock=World.fresh().effects().clock
        )
        with fails_with("host-busy"):
            collect(effects, dry_run=False)
    finally:
        lock.release()


def test_staging_again_renews_a_lease_that_was_over_and_costs_nothing_after_that(tmp_path):
    receiver = host_with_a_release(tmp_path / "host")
    first = make_capsule(default_parts("one"), counter=1)
    receiver.receive(first)
    before = read_leases(receiver.disk, receiver.layout)
    drop_leases(receiver.disk, receiver.layout, before)
    receiver.receive(first)
    after = read_leases(receiver.disk, receiver.layout)
    assert after.keys() == before.keys()
    assert after[first.generation].trees == frozenset(
        component.tree for component in decode_release(first.manifest, where="").components
    )
