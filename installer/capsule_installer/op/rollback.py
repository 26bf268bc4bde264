"""Go back to the previous generation: a local order, carried out like any other."""

from capsule_installer.op.accept import local_order
from capsule_installer.op.effects import Effects
from capsule_installer.op.spare import free_spare
from capsule_manifest.envelope import Envelope
from capsule_manifest.errors import Refused
from capsule_manifest.orders import ABSENT

__all__ = ["rollback_order"]


def rollback_order(effects: Effects, *, op_id: str, nonce: str) -> Envelope:
    """Return the signed order that brings the previous generation back.

    On a full disk, what was put aside for this moment is freed first.

    Raises:
        Refused: `nothing-to-roll-back` without a previous generation; as `local_order`.
    """
    previous = effects.state.generation_of(effects.layout.previous)
    if previous == ABSENT:
        raise Refused(
            "nothing-to-roll-back",
            "no generation was installed before",
            where=effects.layout.previous,
        )
    free_spare(effects)
    return local_order(effects, verb="rollback", generation=previous, op_id=op_id, nonce=nonce)
