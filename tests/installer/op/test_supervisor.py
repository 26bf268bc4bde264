"""What the supervisor does when its own helpers do not do their part."""

from dataclasses import replace

import pytest

from capsule_installer.op.accept import accept_order
from capsule_installer.op.op_folder import Result
from capsule_installer.op.supervisor import supervise
from support.install_world import NoWorker, World
from support.staged_host import Build

FIRST = "1" * 32


class Ends(NoWorker):
    """A worker whose killed steps end, or hang in the kernel."""

    def __init__(self, *, gone: bool) -> None:
        self._gone = gone

    def abandon(self) -> bool:
        return self._gone


@pytest.mark.parametrize("gone", [False, True])
def test_a_step_that_no_kill_ends_does_not_hold_up_the_restore_and_is_told(gone: bool) -> None:
    world = World.fresh()
    marker = world.stage(Build(counter=1), broken=True)
    effects = replace(world.effects(), worker=Ends(gone=gone))
    order = world.host.order(
        marker, op_id=FIRST, boot_id=effects.clock.boot_id(), boot_ms=effects.clock.boot_ms(),
        confirm="local",
    )  # fmt: skip
    accept_order(effects, order)
    assert supervise(effects, FIRST) in {Result.ABSENT, Result.RESTORED}
    reason = world.host.op(FIRST).reason()
    assert "a broken release" in reason
    assert ("does not end" in reason) is not gone
