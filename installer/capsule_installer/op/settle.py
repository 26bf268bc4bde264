"""Finish what an op left to do after it was decided; run by whoever holds the host's lock next.

An op that was stopped after its outcome lacks only housekeeping and the publication of its receipt.
An op that `rescue.sh` restored lacks its receipt, because shell can't sign. Both are made good here
before anything else is done, so that the chain of receipts keeps its order.
"""

from capsule_installer.op.effects import Effects
from capsule_installer.op.journal import finished_steps, read_journal
from capsule_installer.op.names import apply_names, sync_names
from capsule_installer.op.op_folder import OpFile, OpFolder, Result, list_ops
from capsule_installer.op.outcome import carried_receipt, make_receipt
from capsule_installer.op.spare import ensure_spare
from capsule_installer.op.switch_plan import NameOperation
from capsule_installer.system.fsops import remove_tree
from capsule_manifest.errors import Failed
from capsule_manifest.orders import decode_order
from capsule_manifest.records import Receipt

__all__ = [
    "RECEIPT_RESULTS",
    "find_receipt",
    "require_decided_ops",
    "require_no_open_op",
    "require_quiet",
    "settle_all",
    "settle_op",
]

_RECENT_RECEIPTS = 1000
_RELOAD_MS = 10_000

RECEIPT_RESULTS = {
    Result.COMMITTED: "committed",
    Result.RESTORED: "restored",
    Result.ABSENT: "restored-absent",
    Result.FAILED: "restore-failed",
    Result.REFUSED: "refused",
}
"""How a receipt calls each result."""


def settle_all(effects: Effects) -> list[OpFolder]:
    """Finish every decided op; return those that are still open or failed to restore.

    The caller holds the host's lock. Raises: `disk-*`, `record-chain-broken`.
    """
    unresolved = []
    for op in list_ops(effects.disk, effects.layout):
        if not op.has(OpFile.ORDER):
            # Stopped before it was accepted: nobody was told of it.
            remove_tree(effects.disk, op.path)
        elif settle_op(effects, op) in {None, Result.FAILED}:
            unresolved.append(op)
    return unresolved


def settle_op(effects: Effects, op: OpFolder) -> Result | None:
    """Finish one op if it is decided; None while it is open.

    Raises: `disk-*`, `record-chain-broken`.
    """
    result = op.result()
    if result is not None and op.has(OpFile.RECEIPTED):
        return result
    if result is None:
        result = _decide(effects, op)
    else:
        # Its receipt must not outlive it: the op would be open, and never looked at again.
        op.keep(OpFile.RESULT)
    if result is None:
        return None
    _publish(effects, op, result)
    return result


def require_no_open_op(effects: Effects) -> None:
    """Finish what is decided and refuse while an op is open or could not be restored.

    Raises:
        Failed: `op-open`, `disk-*`.
    """
    _require(settle_all(effects))


def require_quiet(effects: Effects) -> None:
    """As `require_no_open_op`, but leave alone an op that was accepted and is about to begin.

    For whoever has time: settling such an op would refuse what a controller has just ordered. An op
    that was accepted and never begins is settled by the next order, staging or boot.

    Raises:
        Failed: `op-open`, `disk-*`.
    """
    for op in list_ops(effects.disk, effects.layout):
        begun = op.has(OpFile.INTENT) or op.has(OpFile.OUTCOME) or op.has(OpFile.RESULT)
        if op.has(OpFile.ORDER) and not begun:
            raise Failed(
                "op-open", "an op of this host was accepted and has not begun", got=op.op_id,
                where=op.path, retryable=True,
            )  # fmt: skip
    require_no_open_op(effects)


def require_decided_ops(effects: Effects) -> None:
    """Finish what is decided and refuse while an op is open; its receipt has the next number.

    An op that could not be restored is no obstacle: its mending may be staged.

    Raises:
        Failed: `op-open`, `disk-*`.
    """
    _require([op for op in settle_all(effects) if op.result() is None])


def _require(unresolved: list[OpFolder]) -> None:
    if unresolved:
        op = unresolved[0]
        raise Failed(
            "op-open",
            "an op of this host is not finished",
            got=f"{op.op_id}: {op.result() or 'open'}",
            where=op.path,
            retryable=True,
        )


def find_receipt(effects: Effects, op: OpFolder) -> Receipt | None:
    """Return the newest receipt of an op."""
    found = effects.chain.find_last(
        lambda receipt: receipt.op_id == op.op_id, among=_RECENT_RECEIPTS
    )
    return found.receipt if found else None


def _decide(effects: Effects, op: OpFolder) -> Result | None:
    outcome = op.outcome()
    if outcome is not None and outcome.result == "committed":
        op.keep(OpFile.OUTCOME)
        _tidy_committed(effects, op)
        effects.chain.publish(carried_receipt(outcome))
        op.finish(Result.COMMITTED)
        return Result.COMMITTED
    if op.has(OpFile.INTENT):
        return None
    # Accepted, never begun: nobody but us holds the lock, so nobody will begin it.
    if op.has(OpFile.PLAN_CLEAN):
        _clean(effects, op)
    if not op.has(f"{OpFile.RESULT}.{Result.REFUSED}"):
        op.write(f"{OpFile.RESULT}.{Result.REFUSED}", f"{Result.REFUSED}\n".encode())
    op.finish(Result.REFUSED)
    return Result.REFUSED


def _tidy_committed(effects: Effects, op: OpFolder) -> None:
    order = decode_order(op.order().payload)
    if order.verb == "install":
        effects.state.raise_counter_floor(order.release_counter)
    gone = op.plan(OpFile.PLAN_GONE)
    _clean(effects, op, gone)
    if gone:
        effects.services.reload(_RELOAD_MS)


def _clean(effects: Effects, op: OpFolder, gone: tuple[NameOperation, ...] = ()) -> None:
    names = (*gone, *op.plan(OpFile.PLAN_CLEAN))
    apply_names(effects.disk, names)
    # The op is about to be finished for good: a unit that came back after a power cut would be
    # started at boot, and nobody would look for the other names again.
    sync_names(effects.disk, names, "removed names")


def _publish(effects: Effects, op: OpFolder, result: Result) -> None:
    last = find_receipt(effects, op)
    if last is None or last.result != RECEIPT_RESULTS[result]:
        if result in {Result.RESTORED, Result.ABSENT}:
            _clean(effects, op)
        outcome = op.outcome()
        effects.chain.append(
            make_receipt(
                effects,
                decode_order(op.order().payload),
                result=RECEIPT_RESULTS[result],
                steps=finished_steps(read_journal(op)),
                reason=op.reason(),
                details={"by": outcome.by} if outcome else {},
            )
        )
    else:
        effects.chain.keep()
    if result is not Result.FAILED:
        op.link(OpFile.ORDER, OpFile.RECEIPTED)
    ensure_spare(effects)
