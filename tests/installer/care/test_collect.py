"""What a collection removes, and what it never does."""

from dataclasses import replace

import pytest

from capsule_installer.care.collect import Roots, collect, plan_collection
from capsule_installer.op.accept import accept_order
from capsule_installer.op.op_folder import Result
from capsule_installer.op.supervisor import supervise
from capsule_manifest.errors import Failed, Refused
from support.documents import make_marker
from support.install_world import World
from support.ops import carry_out
from support.staged_host import Build

NAMES = [f"{number}-00000000" for number in range(1, 10)]


@pytest.fixture
def world() -> World:
    """A host on which 1, 2 and 3 were installed, 4 failed, and 5 is staged."""
    made = World.fresh()
    for counter in (1, 2, 3):
        carry_out(made, made.stage(Build(counter=counter)), f"{counter}" * 32)
    carry_out(made, made.stage(Build(counter=4), broken=True), "4" * 32)
    made.stage(Build(counter=5))
    return made


def roots(**changes) -> Roots:
    none = Roots(
        markers={}, current="absent", previous="absent", held=set(), leased=set(), pinned=set(),
        running=set(), failed="",
    )  # fmt: skip
    return replace(none, **changes)


def test_every_reason_to_stay_is_named():
    markers = {
        name: replace(make_marker(), generation=name, release_counter=int(name[0]))
        for name in NAMES
    }
    given = roots(
        markers={name: markers[name] for name in NAMES[:7]},
        current=NAMES[4],
        previous=NAMES[3],
        held={NAMES[0]},
        leased={NAMES[1], NAMES[8]},
        pinned={NAMES[2]},
        running={NAMES[7]},
        failed=NAMES[5],
    )
    always = {
        NAMES[0]: "held",
        NAMES[2]: "pinned",
        NAMES[3]: "previous",
        NAMES[4]: "current",
        NAMES[7]: "in use by a process",
    }
    assert plan_collection(NAMES, given) == always | {
        NAMES[1]: "staged and not yet ordered",
        NAMES[5]: "newest that failed",
        NAMES[6]: "newest staged",
        NAMES[8]: "being staged",
    }
    assert plan_collection(NAMES, given, drop_staged=True) == always | {
        NAMES[5]: "newest that failed"
    }


def test_the_newest_staged_stays_also_where_it_is_older_than_what_is_current():
    marker = replace(make_marker(), generation=NAMES[1], release_counter=2)
    given = roots(markers={NAMES[1]: marker}, current=NAMES[4])
    assert plan_collection(NAMES[:5], given) == {
        NAMES[1]: "newest staged", NAMES[4]: "current",
    }  # fmt: skip


def test_only_what_nothing_needs_is_removed_and_the_receipt_says_what(world):
    names = {name.partition("-")[0]: name for name in world.builds}
    collection = collect(world.effects(), dry_run=False)
    assert collection.generations == (names["1"],)
    assert set(world.host.state.staged_generations()) == {names[key] for key in "2345"}
    assert world.host.disk.stat(world.host.layout.generation(names["1"])) is None
    last = world.effects().chain.read_all()[-1].receipt
    assert (last.kind, last.details["removed"]) == ("gc", names["1"])
    assert world.is_whole(names["3"], strict=True)


def test_a_dry_run_removes_nothing(world):
    before = world.host.disk.fingerprint()
    assert collect(world.effects(), dry_run=True).generations != ()
    assert world.host.disk.fingerprint() == before


def test_nothing_is_collected_while_an_op_is_open(world):
    effects = world.effects()
    marker = world.host.state.staged_marker(
        next(name for name in world.builds if name.startswith("5-")), effects.signer.public
    )
    order = world.host.order(
        marker, op_id="5" * 32, boot_id=effects.clock.boot_id(), boot_ms=effects.clock.boot_ms()
    )
    accept_order(effects, order)
    world.host.op("5" * 32).write("intent", b"as if it had begun\n")
    with pytest.raises(Failed, match="op-open"):
        collect(effects, dry_run=False)


def test_an_op_that_is_about_to_begin_makes_it_give_way_and_then_begins(world):
    effects = world.effects()
    name = next(name for name in world.builds if name.startswith("5-"))
    marker = world.host.state.staged_marker(name, effects.signer.public)
    order = world.host.order(
        marker, op_id="5" * 32, boot_id=effects.clock.boot_id(), boot_ms=effects.clock.boot_ms(),
        confirm="local",
    )  # fmt: skip
    accept_order(effects, order)
    with pytest.raises(Failed, match="op-open"):
        collect(effects, dry_run=False)
    supervise(effects, "5" * 32)
    assert world.host.op("5" * 32).result() is Result.COMMITTED
    assert world.host.current() == name


def test_what_is_staged_stays_until_a_commit_whatever_its_number(world):
    old = world.stage(Build(counter=1, files={"/etc/x": b"1"}))
    newer = world.stage(Build(counter=6))
    collection = collect(world.effects(), dry_run=False)
    assert collection.kept[old.generation] == "staged and not yet ordered"
    assert carry_out(world, newer, "6" * 32) is Result.COMMITTED
    collection = collect(world.effects(), dry_run=False)
    assert newer.generation in collection.leases
    assert old.generation in collection.generations
    assert old.generation in collection.leases
    assert collect(world.effects(), dry_run=True).leases == ()


def test_an_operator_may_drop_what_is_staged_but_nothing_else(world):
    names = {name.partition("-")[0]: name for name in world.builds}
    collection = collect(world.effects(), dry_run=False, drop_staged=True)
    assert set(collection.generations) == {names["1"], names["5"]}
    assert set(collection.kept) == {names["2"], names["3"], names["4"]}


def test_a_lease_that_cannot_be_read_ends_the_collection_before_it_removes(world):
    path = f"{world.host.layout.state}/leases/5-00000000"
    with world.host.disk.create(path, 0o600) as writer:
        writer.write(b"never\n")
    before = world.host.disk.fingerprint()
    with pytest.raises(Refused, match="state-malformed"):
        collect(world.effects(), dry_run=False)
    assert world.host.disk.fingerprint() == before


def test_of_failed_releases_the_newest_alone_is_kept(world):
    failed = [world.stage(Build(counter=counter), broken=True).generation for counter in (6, 7, 8)]
    for number, name in enumerate(failed, 6):
        marker = world.host.state.staged_marker(name, world.host.signer.public)
        assert carry_out(world, marker, f"{number}" * 32) is Result.RESTORED
    collection = collect(world.effects(), dry_run=False)
    assert collection.kept[failed[2]] == "newest staged"
    assert set(failed[:2]) < set(collection.generations)


def test_what_is_staged_for_after_the_next_release_outlives_its_commit(world):
    sixth, seventh = world.stage(Build(counter=6)), world.stage(Build(counter=7))
    eighth = world.stage(Build(counter=8))
    assert carry_out(world, sixth, "6" * 32) is Result.COMMITTED
    kept = collect(world.effects(), dry_run=False).kept
    assert (kept[seventh.generation], kept[eighth.generation]) == (
        "staged and not yet ordered", "staged and not yet ordered",
    )  # fmt: skip


def test_a_version_of_this_program_goes_only_when_neither_launcher_nor_release_needs_it(world):
    disk, layout = world.host.disk, world.host.layout
    marker = world.host.state.staged_marker(world.host.current(), world.host.signer.public)
    needed = next(iter(marker.trees.values())).hex()[:8]
    for name in ("aaaaaaaa", "bbbbbbbb", needed):
        disk.mkdir(f"{layout.runtimes}/{name}", 0o755)
    assert collect(world.effects(), dry_run=True).runtimes == ()
    with disk.create(layout.launcher, 0o755) as writer:
        writer.write(b"#!/bin/sh\nruntime=$opt/runtime/bbbbbbbb\n")
    assert collect(world.effects(), dry_run=False).runtimes == ("aaaaaaaa",)
    assert disk.list(layout.runtimes) == sorted(["bbbbbbbb", needed])


def test_what_a_held_host_needs_stays():
    world = World.fresh()
    first = world.stage(Build(counter=1), broken=True)
    assert carry_out(world, first, "1" * 32) is Result.ABSENT
    assert world.host.state.is_held()
    kept = collect(world.effects(), dry_run=False, drop_staged=True).kept
    assert kept == {first.generation: "held"}
