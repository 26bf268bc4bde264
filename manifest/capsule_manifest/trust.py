"""Trust in a capsule: from bytes and signatures to a release that may be staged and installed.

What a controller may ask of a host is decided in `trust_orders`, which a process that only looks
at a capsule need not import.

Every function takes the policy and raw bytes and returns a *verified* value or refuses. The order
is fixed: envelope, statement, subject digest, key, window, revocation, owners, then the content
itself. A signature by a stranger is not an attack on those who are known: it is skipped, and named
only when the threshold is missed.

Nothing here reads a clock. Source: design, section 10; TUF 1.0, section 5 for thresholds.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from capsule_manifest.digest import CapsuleId, sha256_text
from capsule_manifest.errors import Refused
from capsule_manifest.keyless import KeylessVerifier
from capsule_manifest.policy import Authority, Downgrade, Policy
from capsule_manifest.release import Release, capsule_id, decode_release
from capsule_manifest.signers import read_signature
from capsule_manifest.statements import (
    ReleaseClaim,
    read_packing_statement,
    read_release_statement,
)

__all__ = ["VerifiedRelease", "verify_packing", "verify_release"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedRelease:
    """A release whose signatures, counter and product were accepted under one policy.

    `downgrade` is the exception that let it pass below a floor; who acts on it records it.
    """

    release: Release
    capsule: CapsuleId
    owners: tuple[str, ...]
    downgrade: Downgrade | None


def verify_release(
    policy: Policy,
    manifest: bytes,
    bundles: Mapping[str, bytes],
    *,
    counter_floor: int,
    keyless: KeylessVerifier | None = None,
) -> VerifiedRelease:
    """Accept `capsule.json` if enough owners with the release authority signed it.

    `bundles` maps file names to Sigstore bundles. `counter_floor` is the host's monotonic floor.
    Without `keyless` only signatures by keys count.

    Raises:
        Refused: `threshold-not-met`, `owner-counted-once`, `counter-signer-unknown`,
            `signature-missing`, or, when there is one signature only, the reason that it was not
            counted; `capsule-revoked`, `signers-disagree`, `product-mismatch`,
            `release-counter-too-low`; whatever `decode_release` raises.
    """
    capsule = capsule_id(manifest)
    if capsule in policy.revoked_capsules:
        raise Refused("capsule-revoked", "this capsule is revoked by the policy", got=capsule)
    counted: list[tuple[str, ReleaseClaim]] = []
    refusals: list[Refused] = []
    for name, raw in sorted(bundles.items()):
        try:
            signed = read_signature(policy, name, raw, keyless)
            claim = read_release_statement(signed.payload, where=name)
            _check_subject(claim.capsule, capsule, "capsule.json", name)
            signed.check_window(claim.release_counter, name)
        except Refused as refusal:
            refusals.append(refusal)
            continue
        counted.append((signed.owner, claim))
    owners = sorted({owner for owner, _ in counted})
    _check_threshold(policy.release.threshold, owners, len(counted), refusals)
    distinct = {claim for _, claim in counted}
    if len(distinct) != 1:
        raise Refused(
            "signers-disagree",
            "signers say different things of one capsule",
            got=owners,
            where="signatures",
        )
    release = decode_release(manifest)
    downgrade = _check_claim(policy, release, distinct.pop(), counter_floor)
    return VerifiedRelease(
        release=release, capsule=capsule, owners=tuple(owners), downgrade=downgrade
    )


def verify_packing(
    policy: Policy,
    packing: bytes,
    capsule: CapsuleId,
    bundles: Mapping[str, bytes],
    *,
    keyless: KeylessVerifier | None = None,
) -> None:
    """Accept `packing.json` for `capsule` if one holder of the release authority signed it.

    One signature is enough: a packing can waste space, but every byte that comes out of it is
    checked against the signed release.

    Raises:
        Refused: `signature-missing`, or the reason that the last signature was not accepted.
    """
    refusal = Refused("signature-missing", "no signature of packing.json", where="signatures")
    for name, raw in sorted(bundles.items()):
        try:
            signed = read_signature(policy, name, raw, keyless)
            claim = read_packing_statement(signed.payload, where=name)
            _check_subject(claim.packing, sha256_text(packing), "packing.json", name)
            _check_subject(claim.capsule, capsule, "capsule.json", name)
        except Refused as reason:
            refusal = reason
            continue
        return
    raise refusal


def _check_subject(got: str, expected: str, what: str, where: str) -> None:
    if got != expected:
        raise Refused(
            "signature-wrong-subject",
            f"a signature is about another {what}",
            expected=expected,
            got=got,
            where=where,
        )


def _check_threshold(
    threshold: int, owners: list[str], signatures: int, refusals: list[Refused]
) -> None:
    if len(owners) >= threshold:
        return
    if not owners and len(refusals) == 1:
        raise refusals[0]
    if not owners and not refusals:
        raise Refused("signature-missing", "the capsule is not signed", where="signatures")
    error_id, what = "threshold-not-met", "too few owners signed"
    if signatures >= threshold:
        error_id, what = "owner-counted-once", "several signatures are by one owner"
    elif owners and {refusal.error_id for refusal in refusals} == {"key-unknown"}:
        error_id, what = "counter-signer-unknown", "a counter-signature is by a stranger"
    failure = Refused(
        error_id,
        what,
        expected=f"{threshold} owners with the {Authority.RELEASE} authority",
        got=f"{len(owners)}: {', '.join(owners) or 'none'}",
        where="signatures",
    )
    raise failure from (refusals[0] if refusals else None)


def _check_claim(
    policy: Policy, release: Release, claim: ReleaseClaim, floor: int
) -> Downgrade | None:
    said = (claim.product, claim.version, claim.release_counter)
    if said != (release.product, release.version, release.release_counter):
        raise Refused(
            "signers-disagree",
            "a signature says other things than the capsule",
            expected=(release.product, release.version, release.release_counter),
            got=said,
        )
    if release.product != policy.product:
        raise Refused(
            "product-mismatch",
            "the capsule is for another product",
            expected=policy.product,
            got=release.product,
        )
    lowest = max(policy.release_counter_floor, floor)
    if release.release_counter >= lowest:
        return None
    downgrade = policy.downgrade(claim.capsule)
    if downgrade is None:
        raise Refused(
            "release-counter-too-low",
            "the capsule is older than what may be installed",
            expected=f"release counter {lowest} or higher",
            got=release.release_counter,
        )
    return downgrade
