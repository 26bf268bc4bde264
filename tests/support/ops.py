"""Carry out whole ops on a `World`: accepted, supervised, confirmed by the host itself."""

from capsule_installer.op.accept import accept_order
from capsule_installer.op.op_folder import Result
from capsule_installer.op.supervisor import supervise
from capsule_manifest.records import Marker
from support.install_world import World

__all__ = ["carry_out"]


def carry_out(world: World, marker: Marker, op_id: str) -> Result:
    """Order `marker` and return how the op ended."""
    effects = world.effects()
    order = world.host.order(
        marker,
        op_id=op_id,
        boot_id=effects.clock.boot_id(),
        boot_ms=effects.clock.boot_ms(),
        confirm="local",
    )
    accept_order(effects, order)
    supervise(effects, op_id)
    result = world.host.op(op_id).result()
    assert result is not None, "an op that ran has ended"
    return result
