"""The detached program that carries out one op and undoes it when a step fails.

It runs no hook and parses no content. It holds the host's lock from its start to the op's end. When
it is killed, the timers that it armed do the rest.
"""

from typing import Final

from capsule_installer.op.effects import Effects
from capsule_installer.op.installed import Installation, load_generation, read_installed_marker
from capsule_installer.op.journal import Journal
from capsule_installer.op.machine import State
from capsule_installer.op.op_folder import OpFile, OpFolder, Result
from capsule_installer.op.restore import restore_op
from capsule_installer.op.settle import settle_op
from capsule_installer.op.transaction import Transaction
from capsule_installer.system.disk import Lock
from capsule_manifest.errors import CapsuleError, Failed, Refused
from capsule_manifest.orders import Order, decode_order
from capsule_manifest.records import Marker

__all__ = ["await_lock", "load_installation", "run_op", "supervise"]

_LOCK_POLL_MS: Final = 20
_LOCK_WAIT_MS: Final = 10_000


def supervise(effects: Effects, op_id: str) -> Result | None:
    """Carry out an accepted op; return how it ended, None if somebody else ended it.

    Raises:
        Failed: `host-busy` when the lock stays with somebody else.
    """
    op = OpFolder(disk=effects.disk, layout=effects.layout, op_id=op_id)
    lock = await_lock(effects)
    try:
        if op.result() is not None or op.has(OpFile.INTENT):
            return op.result()
        return run_op(effects, op)
    finally:
        lock.release()


def run_op(effects: Effects, op: OpFolder) -> Result:
    """Carry out an op under the host's lock, undo it if it fails, and finish what is decided.

    Raises: what can only be a bug or a disk that does not even take a link.
    """
    order = decode_order(op.order().payload)
    journal = Journal(disk=effects.disk, op=op, name=OpFile.STEPS, required=True)
    try:
        _attempt(effects, op, order, journal)
    finally:
        journal.close()
    result = settle_op(effects, op)
    assert result is not None, "an op that ran is decided"
    return result


def load_installation(effects: Effects, marker: Marker) -> Installation:
    """Return the generation of a marker as this node has it.

    Raises:
        Refused: `order-wrong-route` when the route does not know this node; as `load_generation`.
    """
    route = effects.state.route(effects.state.policy())
    node = None if route is None else route.route.nodes.get(effects.node)
    if node is None:
        raise Refused(
            "order-wrong-route", "the host's route does not know this node", got=effects.node
        )
    return load_generation(effects.disk, effects.layout, marker, node=effects.node, route_node=node)


def _attempt(effects: Effects, op: OpFolder, order: Order, journal: Journal) -> None:
    transaction = None
    try:
        key = effects.signer.public
        staged = effects.state.staged_marker(order.generation, key)
        if staged is None:
            raise Failed(
                "generation-not-staged", "the ordered generation is gone", got=order.generation
            )
        installed = read_installed_marker(effects.disk, effects.layout, key)
        transaction = Transaction(
            effects=effects,
            op=op,
            order=order,
            old=load_installation(effects, installed) if installed else None,
            new=load_installation(effects, staged),
            journal=journal,
        )
        transaction.run()
    except (CapsuleError, OSError) as error:
        # Nothing of a step should outlive this: names are about to move. What a kill does not end
        # hangs in the kernel; users wait no longer for it, and it is told.
        left = "" if effects.worker.abandon() else " (something of a guarded step does not end)"
        # The file decides and not `transaction.state`: a failed fsync may have left the name.
        if op.has(OpFile.INTENT):
            state = transaction.state if transaction else State.ACCEPTED
            restore_op(effects, op, reason=f"{state}: {error}{left}", after_boot=False)
        else:
            _note_refusal(op, error)


def _note_refusal(op: OpFolder, error: Exception) -> None:
    try:
        op.note(OpFile.REASON, str(error).encode())
    except Failed:
        # settle refuses the op in any case; on a full disk only the words are missing.
        return


def await_lock(effects: Effects) -> Lock:
    """Take the host's lock, waiting a little for a program that is about to end.

    Raises:
        Failed: `host-busy`.
    """
    until_ms = effects.clock.boot_ms() + _LOCK_WAIT_MS
    while True:
        try:
            return effects.disk.lock(effects.layout.lock)
        except Failed as error:
            if error.error_id != "host-busy" or effects.clock.boot_ms() >= until_ms:
                raise
        effects.clock.sleep_ms(_LOCK_POLL_MS)
