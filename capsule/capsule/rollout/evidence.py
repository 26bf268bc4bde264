"""What a host's records of one op amount to, as far as its node key signed them.

Steps and outcomes are progress: they move a display and a node's state forward, and the driver's
table takes nothing back. A proof and a receipt are evidence: they are verified, and compared with
what this epoch ordered, before anything is reported of them.
"""

from dataclasses import dataclass

from capsule.host_records import HostRecord
from capsule.lane.ports import HostReport, HostStep
from capsule.receipts_store import CheckedReceipt, check_receipt
from capsule_manifest.envelope import decode_record
from capsule_manifest.errors import Refused
from capsule_manifest.fields import Object
from capsule_manifest.keys import PublicKey, b64decode
from capsule_manifest.orders import ABSENT
from capsule_manifest.records import PROOF_TYPE, Proof, decode_proof

__all__ = ["Ordered", "check_proof", "check_result", "host_report", "step_report"]

_STEPS = {"stop": HostStep.STOPPED, "switch": HostStep.SWITCHED, "start": HostStep.STARTED}
_RESULTS = {
    "committed": HostStep.COMMITTED,
    "restored": HostStep.RESTORED,
    "restored-absent": HostStep.RESTORED,
    "restore-failed": HostStep.RESTORE_FAILED,
    "refused": HostStep.REFUSED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordered:
    """What one op of this epoch is about. `key` is the node's, pinned at first contact."""

    node: str
    op_id: str
    key: PublicKey
    capsule: str
    generation: str
    route: str
    commit: str
    units: frozenset[str]


def host_report(
    ordered: Ordered,
    step: HostStep,
    *,
    closed: bool = False,
    serving: bool = False,
    proof: str = "",
    reason: str = "",
) -> HostReport:
    """Return a report about the op."""
    return HostReport(
        node=ordered.node,
        op_id=ordered.op_id,
        step=step,
        closed=closed,
        serving=serving,
        proof=proof,
        reason=reason,
    )


def step_report(ordered: Ordered, record: HostRecord) -> HostReport | None:
    """Return what one `step` or `outcome` record says, None for what changes no state."""
    if record.get("record") == "outcome":
        restoring = record.get("result") == "restoring"
        return host_report(ordered, HostStep.RESTORING) if restoring else None
    step = _STEPS.get(str(record.get("name")))
    if step is None or record.get("state") != "done":
        return None
    return host_report(ordered, step)


def check_proof(ordered: Ordered, record: HostRecord) -> tuple[HostReport, Proof]:
    """Return the report of a proof that is about what was ordered.

    Raises:
        Refused: `proof-refused`, and what verifying and decoding raise.
    """
    item = Object(record, f"proof of {ordered.node}")
    envelope = decode_record(b64decode(item.text("proof"), item.where), where=item.where)
    payload = envelope.verify(ordered.key, payload_type=PROOF_TYPE, where=item.where)
    proof = decode_proof(payload, where=item.where)
    expected = (ordered.op_id, ordered.node, ordered.capsule, ordered.generation)
    got = (proof.op_id, proof.node, proof.capsule, proof.generation)
    units = {unit.unit for unit in proof.units}
    if (
        got != expected
        or not ordered.units <= units
        or {unit.commit for unit in proof.units} - {ordered.commit}
    ):
        raise Refused(
            "proof-refused",
            "a proof is about something else than what was ordered",
            expected=f"{' '.join(expected)}, commit {ordered.commit}, {sorted(ordered.units)}",
            got=f"{' '.join(got)}, {sorted(units)}",
            where=ordered.node,
        )
    return host_report(ordered, HostStep.PROVED, serving=True, proof=envelope.digest), proof


def check_result(ordered: Ordered, record: HostRecord) -> tuple[HostReport, CheckedReceipt]:
    """Return what the op's signed receipt says of its end.

    Raises:
        Refused: `receipt-refused`, and what `check_receipt` raises.
    """
    item = Object(record, f"receipt of {ordered.node}")
    receipt = check_receipt(
        b64decode(item.text("receipt"), item.where), node=ordered.node, key=ordered.key
    )
    said = receipt.receipt
    expected = (ordered.op_id, ordered.capsule, ordered.route)
    step = _RESULTS.get(said.result)
    if step is None or (said.op_id, said.capsule, said.route) != expected:
        raise Refused(
            "receipt-refused",
            "a receipt speaks of something else than what was ordered",
            expected=" ".join(expected),
            got=f"{said.kind} {said.result}: {said.op_id} {said.capsule} {said.route}",
            where=ordered.node,
        )
    serving = said.result == "committed" or (said.result == "restored" and said.source != ABSENT)
    return host_report(ordered, step, serving=serving, reason=said.reason), receipt
