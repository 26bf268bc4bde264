"""Follow an op from outside: its steps, proof, outcome and receipt, as records, until it ended."""

from collections.abc import Iterator

from capsule_installer.op.effects import Effects
from capsule_installer.op.journal import JournalReader
from capsule_installer.op.machine import Event
from capsule_installer.op.op_folder import OpFile, OpFolder, Result
from capsule_installer.op.outcome import carried_receipt
from capsule_installer.op.settle import RECEIPT_RESULTS, settle_all
from capsule_manifest.canonical import JsonValue
from capsule_manifest.envelope import Envelope, encode_record
from capsule_manifest.errors import ExitCode, Failed, Refused
from capsule_manifest.keys import b64encode
from capsule_manifest.op_reasons import restored_exit_code

__all__ = ["follow_op", "op_exit_code", "stored_result"]

_POLL_MS = 100
# To look and to tell is work here and on the controller, while a service that is being restarted
# needs the processor: between stop and start it is done less often.
_STOPPED_POLL_MS = 250
_STOPPED = frozenset(
    {Event.STOP, Event.SWITCH, Event.RUN_STEPS, Event.RELEASE_NETWORK, Event.UNHOLD, Event.START}
)
_RECENT_RECEIPTS = 1000

_EXIT_CODES = {
    Result.COMMITTED: ExitCode.DONE,
    Result.FAILED: ExitCode.RESTORE_FAILED,
    Result.REFUSED: ExitCode.PREFLIGHT_REFUSED,
}


def op_exit_code(op: OpFolder, result: Result) -> ExitCode:
    """Return the exit code of an op that ended with `result`."""
    if result in {Result.RESTORED, Result.ABSENT}:
        return restored_exit_code(op.reason())
    return _EXIT_CODES[result]


def follow_op(
    effects: Effects, op_id: str, *, timeout_ms: int
) -> Iterator[tuple[str, dict[str, JsonValue]]]:
    """Yield (record name, fields) as they come; ends with the receipt.

    Raises:
        Refused: `op-unknown`.
        Failed: `op-not-finished` when the op has not ended in time; asking again goes on.
    """
    op = OpFolder(disk=effects.disk, layout=effects.layout, op_id=op_id)
    if not op.has(OpFile.ORDER):
        raise Refused("op-unknown", "this host knows no such op", got=op_id)
    until_ms = effects.clock.boot_ms() + timeout_ms
    journal, told, is_stopped = JournalReader(op), set[str](), False
    while True:
        for line in journal.new_lines():
            yield "step", dict(line)
            is_stopped = line["name"] in _STOPPED
        proof = op.proof()
        if proof is not None and "proof" not in told:
            told.add("proof")
            yield "proof", {"proof": b64encode(encode_record(proof))}
        outcome = op.outcome()
        if outcome is not None and "outcome" not in told:
            told.add("outcome")
            yield (
                "outcome",
                {"result": outcome.result, "by": outcome.by, "reason": op.reason()},
            )
        receipt = _receipt(effects, op)
        if receipt is not None:
            yield "receipt", {"receipt": b64encode(encode_record(receipt))}
            return
        if effects.clock.boot_ms() >= until_ms:
            raise Failed("op-not-finished", "the op has not ended yet", got=op_id, retryable=True)
        effects.clock.sleep_ms(_STOPPED_POLL_MS if is_stopped else _POLL_MS)


def stored_result(effects: Effects, op: OpFolder) -> dict[str, JsonValue] | None:
    """Return what an op that ended is answered with when its order is repeated."""
    result = op.result()
    receipt = _receipt(effects, op)
    if result is None or receipt is None:
        return None
    return {
        "op_id": op.op_id,
        "result": RECEIPT_RESULTS[result],
        "receipt": b64encode(encode_record(receipt)),
    }


def _receipt(effects: Effects, op: OpFolder) -> Envelope | None:
    outcome, result = op.outcome(), op.result()
    if result is None and outcome is None:
        return None
    if not op.has(OpFile.RECEIPTED):
        # Decided, and perhaps by a program that is gone or by rescue, which can't sign.
        _settle_if_free(effects)
        result = op.result()
    if result is None:
        return None
    if result is Result.COMMITTED and outcome is not None:
        return carried_receipt(outcome)
    wanted = RECEIPT_RESULTS[result]
    found = effects.chain.find_last(
        lambda receipt: (receipt.op_id, receipt.result) == (op.op_id, wanted),
        among=_RECENT_RECEIPTS,
    )
    return found.envelope if found else None


def _settle_if_free(effects: Effects) -> None:
    try:
        lock = effects.disk.lock(effects.layout.lock)
    except Failed as error:
        if error.error_id != "host-busy":
            raise
        return
    try:
        settle_all(effects)
    finally:
        lock.release()
