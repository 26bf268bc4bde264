"""An op that is stopped anywhere leaves the old generation or the new one, whole.

Here only some writes are stopped; `python tests/crash/run.py` stops all, and recovery as well.
"""

import pytest

from capsule_installer.boot import recover
from capsule_installer.op_folder import list_ops
from capsule_installer.outcome import confirm_op
from crash.install import Deed, deeds, enumerate_deed, host_at, photograph, recovered
from crash.points import NEEDED, Half, Report, lost_power

DEEDS = {deed.name: deed for deed in deeds()}


@pytest.mark.parametrize("deed", DEEDS.values(), ids=DEEDS)
def test_an_op_stopped_at_some_writes_leaves_one_whole_generation(deed: Deed):
    report = Report()
    enumerate_deed(deed, report, every=31, nested=False)
    assert report.points > 3
    assert report.labels <= set(NEEDED[Half.INSTALL])


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
