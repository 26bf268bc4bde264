"""The way from one trust policy to the next: signed by those who hold trust now, and then.

A policy travels as signed records, one per signer. A newer one is taken if enough owners of the
*present* policy's trust authority signed it, and enough of its own: so nobody appoints himself, and
nobody hands over to keys that don't work. Versions only grow; a host that missed some is given all
of them and walks. No clock is read: freshness is judged by whoever brings the update.

Source: design, section 10; TUF 1.0, section 5.3 (update of the root role) for the rule of two.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from capsule_manifest.canonical import Limits, decode, encode
from capsule_manifest.envelope import Envelope, decode_record, encode_record
from capsule_manifest.errors import Refused
from capsule_manifest.fields import root_object
from capsule_manifest.keys import KeyId, b64decode, b64encode
from capsule_manifest.policy import POLICY_TYPE, Authority, Policy, decode_policy, encode_policy
from capsule_manifest.signers import policy_key

__all__ = [
    "UPDATE_LIMITS",
    "decode_policy_update",
    "encode_policy_update",
    "next_policy",
    "verify_signed_policy",
]

UPDATE_SCHEMA: Final = "capsule-policy-update/1"
UPDATE_LIMITS: Final = Limits(size_bytes_max=16 * 1024 * 1024, depth_max=3, values_max=1024)


def encode_policy_update(records: Sequence[Envelope]) -> bytes:
    """Return the document that carries signed policies to a host."""
    carried = [b64encode(encode_record(record)) for record in records]
    return encode({"schema": UPDATE_SCHEMA, "records": list(carried)})


def decode_policy_update(raw: bytes, *, where: str = "policy update") -> tuple[Envelope, ...]:
    """Read an update; nothing in it is trusted before `next_policy` returned.

    Raises:
        Refused: `json-*`, `document-*`, `signature-malformed`.
    """
    document = root_object(
        decode(raw, limits=UPDATE_LIMITS, where=where), schema=UPDATE_SCHEMA, name=where
    )
    carried = document.texts("records")
    document.end()
    return tuple(
        decode_record(b64decode(text, f"{where}.records[{index}]"), where=where)
        for index, text in enumerate(carried)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    policy: Policy
    raw: bytes
    records: tuple[Envelope, ...]


def next_policy(current: Policy, records: Sequence[Envelope], *, where: str) -> Policy:
    """Return the newest policy that can be reached from `current`, or `current` if it is that.

    Raises:
        Refused: `policy-older` when everything offered is older, `policy-forked` when one version
            has two contents; as `verify_signed_policy`.
    """
    candidates = _candidates(records, where)
    same = [item for item in candidates if item.policy.version == current.version]
    if same and same[0].raw != encode_policy(current):
        raise _forked(current.version, where)
    newer = [item for item in candidates if item.policy.version > current.version]
    if not newer and not same:
        raise Refused(
            "policy-older",
            "the offered trust policy is older than the one that holds",
            expected=f"version {current.version} or higher",
            got=f"version {candidates[-1].policy.version}" if candidates else "no policy",
            where=where,
        )
    for item in newer:
        current = verify_signed_policy(current, item.policy, item.records, where=where)
    return current


def verify_signed_policy(
    current: Policy, offered: Policy, records: Sequence[Envelope], *, where: str
) -> Policy:
    """Return `offered` if `records` let it follow `current`. All of them carry its bytes.

    Raises:
        Refused: `policy-older`, `product-mismatch`, `policy-floor-lowered`,
            `policy-threshold-not-met`, `owner-counted-once`, or, when there is one signature only,
            the reason that it was not counted: `key-unknown`, `key-revoked`, `authority-denied`,
            `signature-*`.
    """
    where = f"{where}, policy version {offered.version}"
    if offered.version <= current.version:
        raise Refused(
            "policy-older",
            "a trust policy is not newer than the one that holds",
            expected=f"version {current.version + 1} or higher",
            got=offered.version,
            where=where,
        )
    if offered.product != current.product:
        raise Refused(
            "product-mismatch",
            "the next trust policy is for another product",
            expected=current.product,
            got=offered.product,
            where=where,
        )
    if offered.release_counter_floor < current.release_counter_floor:
        raise Refused(
            "policy-floor-lowered",
            "the next trust policy lowers the floor",
            expected=f"{current.release_counter_floor} or higher",
            got=offered.release_counter_floor,
            where=where,
        )
    _require_threshold(current, records, "holds", where)
    _require_threshold(offered, records, "follows", where)
    return offered


def _candidates(records: Sequence[Envelope], where: str) -> list[_Candidate]:
    """Return what is offered, one entry a version, the oldest first."""
    found: dict[int, _Candidate] = {}
    for record in records:
        policy = decode_policy(record.payload, where=where)
        known = found.get(policy.version)
        if known is not None and known.raw != record.payload:
            raise _forked(policy.version, where)
        found[policy.version] = _Candidate(
            policy=policy,
            raw=record.payload,
            records=(*(known.records if known else ()), record),
        )
    return [found[version] for version in sorted(found)]


def _require_threshold(policy: Policy, records: Sequence[Envelope], which: str, where: str) -> None:
    signed_by: dict[KeyId, str] = {}
    refusals: list[Refused] = []
    for record in records:
        try:
            key = policy_key(policy, Authority.TRUST, record.keyid, where)
            record.verify(key, payload_type=POLICY_TYPE, where=where)
        except Refused as refusal:
            refusals.append(refusal)
            continue
        signed_by[record.keyid] = policy.keys[record.keyid].owner
    owners = set(signed_by.values())
    if len(owners) >= policy.trust.threshold:
        return
    if not owners and len(refusals) == 1:
        raise refusals[0]
    error_id = "policy-threshold-not-met"
    if len(signed_by) >= policy.trust.threshold:
        error_id = "owner-counted-once"
    failure = Refused(
        error_id,
        f"too few owners with the trust authority of the policy that {which} have signed",
        expected=f"{policy.trust.threshold} owners",
        got=f"{len(owners)}: {', '.join(sorted(owners)) or 'none'}",
        where=where,
    )
    raise failure from (refusals[0] if refusals else None)


def _forked(version: int, where: str) -> Refused:
    return Refused(
        "policy-forked",
        "one version of the trust policy has two contents",
        got=f"version {version}",
        where=where,
    )
