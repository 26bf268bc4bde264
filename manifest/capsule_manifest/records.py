"""What a host says of itself, signed with its node key: markers, proofs, outcomes, receipts.

A *marker* says what is staged or installed. A *proof* says that a restarted process runs the
ordered generation. An *outcome* is written once for an op and is its only commit point. A *receipt*
is the chained account of what was done; its `previous` is the digest of the receipt before it.

Source: design, section 9; `docs/reference/records.md`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from capsule_manifest.canonical import JsonValue, decode, encode
from capsule_manifest.digest import CapsuleId, ObjectId, blake3_text, parse_blake3
from capsule_manifest.envelope import RECORD_LIMITS
from capsule_manifest.errors import Refused
from capsule_manifest.fields import Object, root_object
from capsule_manifest.route import GUARD_LEVELS

__all__ = [
    "MARKER_TYPE",
    "OUTCOME_TYPE",
    "PROOF_TYPE",
    "RECEIPT_TYPE",
    "Marker",
    "Outcome",
    "Proof",
    "Receipt",
    "Step",
    "UnitProof",
    "decode_marker",
    "decode_outcome",
    "decode_proof",
    "decode_receipt",
    "decode_rescue_outcome",
    "encode_marker",
    "encode_outcome",
    "encode_proof",
    "encode_receipt",
    "encode_rescue_outcome",
    "guard_text",
]

MARKER_TYPE: Final = "application/vnd.capsule.marker.v1+json"
PROOF_TYPE: Final = "application/vnd.capsule.proof.v1+json"
OUTCOME_TYPE: Final = "application/vnd.capsule.outcome.v1+json"
RECEIPT_TYPE: Final = "application/vnd.capsule.receipt.v1+json"
_RESCUE_SCHEMA = "capsule-rescue-outcome/1"
_KINDS = ("enrol", "stage", "install", "rollback", "gc", "repair", "trust", "files")
_RESULTS = (
    "done",
    "committed",
    "restored",
    "restored-absent",
    "restore-failed",
    "refused",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """What is staged (`kind` staged) or current (`kind` installed) on one host.

    `trees` maps component names to tree roots; `derived` maps files that the host made itself
    (rendered units, rendered managed files) to their digests.
    """

    kind: str
    node: str
    node_key: str
    capsule: CapsuleId
    release_counter: int
    generation: str
    previous: str
    route: str
    fence: int
    op_id: str
    trees: Mapping[str, ObjectId]
    derived: Mapping[str, ObjectId] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitProof:
    """What was seen of one unit over its soak. `started_ticks` is field 22 of `/proc/PID/stat`."""

    unit: str
    pid: int
    started_ticks: int
    invocation_id: str
    restarts: int
    commit: str
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The host's word that the ordered generation runs. Its digest is what a confirm names."""

    op_id: str
    node: str
    capsule: CapsuleId
    generation: str
    boot_id: str
    units: tuple[UnitProof, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How an op ended: `committed` or `restoring`. `by` is confirm, local, supervisor or rescue.

    `receipt` is the encoded signed receipt of a committed op: recording and committing are one
    write.
    """

    op_id: str
    result: str
    by: str
    proof: str | None
    receipt: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of an op with its duration and the limit that was enforced, in milliseconds."""

    name: str
    took_ms: int
    limit_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """One link of a host's chain. `previous` is None only for the first, `sequence` 1.

    `source` and `target` are generations or `absent`. `violations` is meaningless at guard level
    L0, where `guard` reads `L0: not monitored`.
    """

    sequence: int
    previous: str | None
    kind: str
    node: str
    node_key: str
    op_id: str
    epoch: str
    fence: int
    route: str
    capsule: str
    source: str
    target: str
    result: str
    reason: str
    guard: str
    steps: tuple[Step, ...] = ()
    violations: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    details: Mapping[str, str] = field(default_factory=dict)


def encode_marker(marker: Marker) -> bytes:
    """Return the canonical bytes that a node key signs as `MARKER_TYPE`."""
    return encode(
        {
            "schema": "capsule-marker/1",
            "kind": marker.kind,
            "node": marker.node,
            "node_key": marker.node_key,
            "capsule": marker.capsule,
            "release_counter": marker.release_counter,
            "generation": marker.generation,
            "previous": marker.previous,
            "route": marker.route,
            "fence": marker.fence,
            "op_id": marker.op_id,
            "trees": _digests(marker.trees),
            "derived": _digests(marker.derived),
        }
    )


def decode_marker(raw: bytes, *, where: str = "marker") -> Marker:
    """Read a marker strictly. Raises: `json-*`, `document-*`, `digest-malformed`."""
    document = _document(raw, "capsule-marker/1", where)
    marker = Marker(
        kind=document.text("kind", one_of=("staged", "installed")),
        node=document.text("node"),
        node_key=document.text("node_key"),
        capsule=CapsuleId(document.sha256("capsule")),
        release_counter=document.integer("release_counter", least=1),
        generation=document.text("generation"),
        previous=document.text("previous"),
        route=document.sha256("route"),
        fence=document.integer("fence"),
        op_id=document.text("op_id", empty=True),
        trees=_read_digests(document, "trees"),
        derived=_read_digests(document, "derived"),
    )
    document.end()
    return marker


def encode_proof(proof: Proof) -> bytes:
    """Return the canonical bytes that a node key signs as `PROOF_TYPE`."""
    return encode(
        {
            "schema": "capsule-proof/1",
            "op_id": proof.op_id,
            "node": proof.node,
            "capsule": proof.capsule,
            "generation": proof.generation,
            "boot_id": proof.boot_id,
            "units": [
                {
                    "unit": unit.unit,
                    "pid": unit.pid,
                    "started_ticks": unit.started_ticks,
                    "invocation_id": unit.invocation_id,
                    "restarts": unit.restarts,
                    "commit": unit.commit,
                    "evidence": list(unit.evidence),
                }
                for unit in proof.units
            ],
        }
    )


def decode_proof(raw: bytes, *, where: str = "proof") -> Proof:
    """Read a proof strictly. Raises: `json-*`, `document-*`."""
    document = _document(raw, "capsule-proof/1", where)
    proof = Proof(
        op_id=document.text("op_id"),
        node=document.text("node"),
        capsule=CapsuleId(document.sha256("capsule")),
        generation=document.text("generation"),
        boot_id=document.text("boot_id"),
        units=document.items("units", _read_unit),
    )
    document.end()
    return proof


def encode_outcome(outcome: Outcome) -> bytes:
    """Return the canonical bytes that a node key signs as `OUTCOME_TYPE`."""
    return encode(
        {
            "schema": "capsule-outcome/1",
            "op_id": outcome.op_id,
            "result": outcome.result,
            "by": outcome.by,
            "proof": outcome.proof,
            "receipt": outcome.receipt,
        }
    )


def decode_outcome(raw: bytes, *, where: str = "outcome") -> Outcome:
    """Read an outcome's payload strictly. Raises: `json-*`, `document-*`."""
    document = _document(raw, "capsule-outcome/1", where)
    outcome = Outcome(
        op_id=document.text("op_id"),
        result=document.text("result", one_of=("committed", "restoring")),
        by=document.text("by", one_of=("confirm", "local", "supervisor", "rescue")),
        proof=document.optional_sha256("proof"),
        receipt=document.optional_text("receipt"),
    )
    document.end()
    return outcome


def encode_rescue_outcome(op_id: str) -> bytes:
    """Return the fixed text that `rescue.sh`, which can't sign, links into place as an outcome."""
    return f"{_RESCUE_SCHEMA} restoring {op_id}\n".encode()


def decode_rescue_outcome(raw: bytes, *, op_id: str) -> Outcome | None:
    """Return the outcome that rescue left for `op_id`, or None for bytes of another form."""
    if raw != encode_rescue_outcome(op_id):
        return None
    return Outcome(op_id=op_id, result="restoring", by="rescue", proof=None, receipt=None)


def encode_receipt(receipt: Receipt) -> bytes:
    """Return the canonical bytes that a node key signs as `RECEIPT_TYPE`."""
    return encode(
        {
            "schema": "capsule-receipt/1",
            "sequence": receipt.sequence,
            "previous": receipt.previous,
            "kind": receipt.kind,
            "node": receipt.node,
            "node_key": receipt.node_key,
            "op_id": receipt.op_id,
            "epoch": receipt.epoch,
            "fence": receipt.fence,
            "route": receipt.route,
            "capsule": receipt.capsule,
            "source": receipt.source,
            "target": receipt.target,
            "result": receipt.result,
            "reason": receipt.reason,
            "guard": receipt.guard,
            "steps": [
                {"name": step.name, "took_ms": step.took_ms, "limit_ms": step.limit_ms}
                for step in receipt.steps
            ],
            "violations": list(receipt.violations),
            "counts": dict(receipt.counts),
            "details": dict(receipt.details),
        }
    )


def decode_receipt(raw: bytes, *, where: str = "receipt") -> Receipt:
    """Read a receipt strictly. Raises: `json-*`, `document-*`."""
    document = _document(raw, "capsule-receipt/1", where)
    receipt = Receipt(
        sequence=document.integer("sequence", least=1),
        previous=document.optional_sha256("previous"),
        kind=document.text("kind", one_of=_KINDS),
        node=document.text("node"),
        node_key=document.text("node_key"),
        op_id=document.text("op_id", empty=True),
        epoch=document.text("epoch", empty=True),
        fence=document.integer("fence"),
        route=document.text("route", empty=True),
        capsule=document.text("capsule", empty=True),
        source=document.text("source"),
        target=document.text("target"),
        result=document.text("result", one_of=_RESULTS),
        reason=document.text("reason", empty=True),
        guard=document.text("guard", empty=True),
        steps=document.items("steps", _read_step),
        violations=document.texts("violations"),
        counts=document.integer_map("counts"),
        details=document.text_map("details"),
    )
    document.end()
    if (receipt.sequence == 1) != (receipt.previous is None):
        raise Refused(
            "record-chain-broken",
            "only the first receipt has none before it",
            got=f"sequence {receipt.sequence}",
            where=where,
        )
    return receipt


def guard_text(level: str) -> str:
    """Return how a receipt states the guard. L0 never claims that nothing happened."""
    assert level in GUARD_LEVELS
    return "L0: not monitored" if level == "L0" else level


def _document(raw: bytes, schema: str, where: str) -> Object:
    return root_object(decode(raw, limits=RECORD_LIMITS, where=where), schema=schema, name=where)


def _digests(digests: Mapping[str, ObjectId]) -> JsonValue:
    return {name: blake3_text(digest) for name, digest in digests.items()}


def _read_digests(document: Object, key: str) -> dict[str, ObjectId]:
    return {
        name: parse_blake3(text, f"{document.where}.{key}.{name}")
        for name, text in document.text_map(key).items()
    }


def _read_unit(item: Object) -> UnitProof:
    unit = UnitProof(
        unit=item.text("unit"),
        pid=item.integer("pid", least=1),
        started_ticks=item.integer("started_ticks"),
        invocation_id=item.text("invocation_id"),
        restarts=item.integer("restarts"),
        commit=item.text("commit"),
        evidence=item.texts("evidence"),
    )
    item.end()
    return unit


def _read_step(item: Object) -> Step:
    step = Step(
        name=item.text("name"),
        took_ms=item.integer("took_ms"),
        limit_ms=item.optional_integer("limit_ms"),
    )
    item.end()
    return step
