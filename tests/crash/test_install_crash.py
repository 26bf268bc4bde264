"""An op that is stopped anywhere leaves the old generation or the new one, whole.

Here only some writes are stopped; `python tests/crash/run.py` stops all, and recovery as well.
"""

import ast
from pathlib import Path

import pytest

import capsule_installer
from capsule_installer.op.boot import recover
from capsule_installer.op.op_folder import list_ops
from capsule_installer.op.outcome import confirm_op
from crash.install import Deed, deeds, enumerate_deed, find_need, host_at, photograph, recovered
from crash.points import NEEDED, NEEDED_ELSEWHERE, Half, Report, lost_power

# Enumerations are of fixed size; how long they take depends on the machine.
pytestmark = pytest.mark.timeout(600)

DEEDS = {deed.name: deed for deed in deeds()}


@pytest.mark.parametrize("deed", DEEDS.values(), ids=DEEDS)
def test_an_op_stopped_at_some_writes_leaves_one_whole_generation(deed: Deed):
    report = Report()
    enumerate_deed(deed, report, every=31, nested=False)
    assert report.points > 3
    assert report.labels <= set(NEEDED[Half.INSTALL])


# Those that only a killed recovery misses take half a minute each: `./dev crash` looks for them.
SLOW = {"found name", "restored names"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("label", "name"), [item for item in NEEDED[Half.INSTALL].items() if item[0] not in SLOW]
)
def test_without_any_one_fsync_a_power_loss_is_not_survived(label: str, name: str):
    need = find_need(label, name)
    assert need is not None
    assert need.deed == name


def test_every_fsync_of_the_host_program_is_known_here():
    names = {"fsync", "fsync_dir", "sync_filesystem", "sync_names"}
    found = {
        call.args[-1].value
        for path in Path(capsule_installer.__file__).parent.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute | ast.Name)
        and (call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id) in names
        and call.args
        and isinstance(call.args[-1], ast.Constant)
    }
    known = {label for half in NEEDED.values() for label in half} | set(NEEDED_ELSEWHERE)
    assert found == known


def test_a_hold_does_not_outlive_an_intent_that_was_killed_before_its_fsync():
    _lose_power_in_recovery("/intent", "hold's name")


def test_a_commit_that_was_killed_before_its_fsync_is_kept_before_anything_is_removed():
    _lose_power_in_recovery("/outcome", "removed names")


def _lose_power_in_recovery(killed_after: str, cut_after: str) -> None:
    """Kill an upgrade after a link, cut the power in its recovery after an fsync, boot."""
    deed = DEEDS["upgrade"]
    killed = next(
        point
        for point in photograph(deed, Report(), skip="")
        if point.write.startswith("link ") and point.write.endswith(killed_after)
    )
    cut = next(
        point
        for point in recovered(*host_at(deed, killed), deed)
        if point.write.endswith(cut_after)
    )
    for how, disk in lost_power(cut.disk):
        world = deed.world.on(disk, cut.state.copy())
        world.machine.reboot()
        recover(world.effects())
        assert any(world.is_whole(name, strict=True) for name in (deed.before, deed.after)), how
        assert set(world.machine.running) == set(world.builds[world.host.current()].units), how


def test_a_confirm_that_finds_a_commit_makes_it_durable_before_it_says_so():
    deed = DEEDS["upgrade"]
    committed = next(
        point
        for point in photograph(deed, Report(), skip="")
        if point.write.startswith("link ") and point.write.endswith("/outcome")
    )
    world, _ = host_at(deed, committed)
    effects = world.effects()
    (op,) = [op for op in list_ops(effects.disk, effects.layout) if op.result() is None]
    proof = op.proof()
    assert proof is not None
    confirm_op(effects, world.host.confirm(op.op_id, proof.digest))
    for how, disk in lost_power(committed.disk):
        after = deed.world.on(disk, committed.state[0].copy())
        after.machine.reboot()
        recover(after.effects())
        assert after.host.current() == deed.after, how
