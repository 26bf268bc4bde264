"""What a collection removes, and what it never does."""

from dataclasses import replace

import pytest

from capsule_installer.accept import accept_order
from capsule_installer.collect import collect, plan_collection
from capsule_manifest.errors import Failed
from support.documents import make_marker
from support.install_world import World
from support.ops import carry_out
from support.staged_host import Build

NAMES = [f"{number}-00000000" for number in range(1, 8)]


@pytest.fixture
def world() -> World:
    """A host on which 1, 2 and 3 were installed, 4 failed, and 5 is staged."""
    made = World.fresh()
    for counter in (1, 2, 3):
        carry_out(made, made.stage(Build(counter=counter)), f"{counter}" * 32)
    carry_out(made, made.stage(Build(counter=4), broken=True), "4" * 32)
    made.stage(Build(counter=5))
    return made


def test_every_reason_to_stay_is_named():
    markers = {
        name: replace(make_marker(), generation=name, release_counter=int(name[0]))
        for name in NAMES
    }
    kept = plan_collection(
        generations=NAMES,
        markers=markers,
        current=NAMES[0],
        previous=NAMES[1],
        pinned={NAMES[2]},
        running={NAMES[3]},
        failed=NAMES[4],
    )
    assert kept == {
        NAMES[0]: "current",
        NAMES[1]: "previous",
        NAMES[2]: "pinned",
        NAMES[3]: "in use by a process",
        NAMES[4]: "newest that failed",
        NAMES[6]: "newest staged",
    }


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
