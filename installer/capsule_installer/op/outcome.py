"""Decide an op: the one write that commits it, and who may ask for it.

An outcome is linked into place once. A commit carries the signed receipt inside, so that recording
and committing are one write; publishing the receipt afterwards can only be late, never lost. The
other outcome, `restoring`, is a file that was prepared before the stop and needs no space.

Source: design, section 9 ("Two records decide").
"""

from collections.abc import Callable, Mapping, Sequence

from capsule_installer.guard.record import guard_statement, read_violations
from capsule_installer.op.effects import Effects
from capsule_installer.op.journal import finished_steps, read_journal
from capsule_installer.op.op_folder import OpFile, OpFolder
from capsule_manifest.envelope import Envelope, decode_record, encode_record, sign
from capsule_manifest.errors import Refused
from capsule_manifest.keys import b64decode, b64encode
from capsule_manifest.orders import Confirm, Order, decode_order
from capsule_manifest.records import (
    OUTCOME_TYPE,
    Outcome,
    Receipt,
    Step,
    encode_outcome,
)
from capsule_manifest.trust_orders import verify_confirm

__all__ = ["carried_receipt", "commit", "confirm_op", "make_receipt"]


def commit(effects: Effects, op: OpFolder, order: Order, *, by: str) -> bool:
    """Commit a proved op; False when it was decided before, whichever way.

    Raises: `disk-*`.
    """
    proof = op.proof()
    assert proof is not None, "only a proved op is committed"
    receipt = effects.chain.sign(
        make_receipt(
            effects,
            order,
            result="committed",
            steps=finished_steps(read_journal(op)),
            details={"by": by},
        )
    )
    outcome = Outcome(
        op_id=op.op_id,
        result="committed",
        by=by,
        proof=proof.digest,
        receipt=b64encode(encode_record(receipt)),
    )
    signed = sign(encode_outcome(outcome), payload_type=OUTCOME_TYPE, signer=effects.signer)
    return op.publish_outcome(encode_record(signed))


def confirm_op(effects: Effects, envelope: Envelope) -> Confirm:
    """Commit the op that a controller's confirm names, or refuse.

    Repeating the confirm of a committed op is no error.

    Raises:
        Refused: `confirm-refused` after another decision, without the proof that it names, or
            after a reboot; `order-fenced`; and whatever `verify_confirm` raises.
        Failed: `host-busy` while another confirm is looked at, `disk-*`.
    """
    policy = effects.state.policy()
    route = effects.state.route(policy)
    if route is None:
        raise _refused("the host knows no route", "")
    confirm = verify_confirm(policy, route, envelope)
    if confirm.node != effects.node:
        raise Refused(
            "order-wrong-node", "a confirm is for another node", expected=effects.node,
            got=confirm.node,
        )  # fmt: skip
    if confirm.fence < effects.state.fence():
        raise Refused(
            "order-fenced", "a confirm's fence is too low", expected=effects.state.fence(),
            got=confirm.fence,
        )  # fmt: skip
    op = OpFolder(disk=effects.disk, layout=effects.layout, op_id=confirm.op_id)
    lock = effects.disk.lock(f"{effects.layout.run}/confirm.lock")
    try:
        _confirm_locked(effects, op, confirm)
    finally:
        lock.release()
    return confirm


def _confirm_locked(effects: Effects, op: OpFolder, confirm: Confirm) -> None:
    proof = op.proof()
    if proof is None or proof.digest != confirm.proof:
        raise _refused(
            "the op has no such proof", proof.digest if proof else "no proof", confirm.proof
        )
    order = decode_order(op.order().payload)
    if order.confirm != "controller":
        raise _refused("the op is not a controller's to confirm", order.confirm)
    # A reboot ended what was proved: boot restores, and must not be raced.
    if op.outcome() is None and op.summary().boot_id == effects.clock.boot_id():
        commit(effects, op, order, by="confirm")
    outcome = op.outcome()
    if outcome is None or outcome.result != "committed":
        raise _refused("the host has decided otherwise", outcome.result if outcome else "rebooted")
    # A confirm that was stopped may have left it, and the controller builds on this answer.
    op.keep(OpFile.OUTCOME)


def carried_receipt(outcome: Outcome) -> Envelope:
    """Return the signed receipt inside a commit."""
    assert outcome.receipt is not None, "a commit carries its receipt"
    return decode_record(b64decode(outcome.receipt, "outcome"), where="receipt of an outcome")


def make_receipt(
    effects: Effects,
    order: Order,
    *,
    result: str,
    steps: Sequence[Step] = (),
    reason: str = "",
    details: Mapping[str, str] | None = None,
) -> Callable[[int, str | None], Receipt]:
    """Return what builds an op's receipt once its place in the chain is known."""
    op = OpFolder(disk=effects.disk, layout=effects.layout, op_id=order.op_id)

    def build(sequence: int, previous: str | None) -> Receipt:
        return Receipt(
            sequence=sequence,
            previous=previous,
            kind=order.verb,
            node=effects.node,
            node_key=effects.signer.public.keyid,
            op_id=order.op_id,
            epoch=order.epoch,
            fence=order.fence,
            route=order.route,
            capsule=order.capsule,
            source=order.prior,
            target=order.generation,
            result=result,
            reason=reason,
            guard=guard_statement(op, order.guard_level),
            steps=tuple(steps),
            violations=read_violations(op),
            details=dict(details or {}),
        )

    return build


def _refused(what: str, got: object, expected: object = "") -> Refused:
    return Refused("confirm-refused", what, expected=expected, got=got)
