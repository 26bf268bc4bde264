"""Keyless signatures: what a verifier must prove, and whether what it proved counts.

A keyless signature is made by a key that lives for minutes, under a certificate that names a
*workload*: one workflow of one repository, say. Proving it needs a Sigstore trusted root and a
verifier that a host doesn't carry, so the proof comes in through `KeylessVerifier`; what was proved
is judged here, under the same policy as keys.

An identity is compared whole: issuer and subject, byte by byte. Patterns have let strangers in
wherever they were offered.

Source: Sigstore bundle v0.3; design, section 10.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from capsule_manifest.digest import CapsuleId
from capsule_manifest.envelope import IN_TOTO
from capsule_manifest.errors import Refused
from capsule_manifest.policy import Identity, Policy
from capsule_manifest.statements import ReleaseClaim, read_release_statement

__all__ = [
    "KeylessSignature",
    "KeylessVerifier",
    "check_trusted_root",
    "count_keyless",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeylessSignature:
    """What a verifier proved of one bundle. Nothing in it came from an unsigned field.

    `name` is the policy's name of the identity. `certificate` is `sha256:<hex>` of the leaf in DER;
    `signed_s` are seconds since 1970 by the log's or the time-stamp authority's clock, never ours.
    """

    name: str
    identity: Identity
    payload: bytes
    payload_type: str
    certificate: str
    signed_s: int


class KeylessVerifier(Protocol):
    """Prove keyless bundles against one pinned trusted root, without a network."""

    @property
    def trusted_root(self) -> str:
        """Return `sha256:<hex>` of the file that everything is proved against."""
        ...

    def verify(
        self, raw: bytes, identities: Mapping[str, Identity], *, where: str
    ) -> KeylessSignature:
        """Return what is proved of a bundle that one of `identities` signed.

        Raises:
            Refused: `keyless-*`, `identity-unknown`, `json-*`.
        """
        ...


def count_keyless(
    policy: Policy,
    verifier: KeylessVerifier,
    capsule: CapsuleId,
    raw: bytes,
    *,
    where: str,
) -> tuple[KeylessSignature, ReleaseClaim]:
    """Accept one keyless release signature about `capsule`, or refuse it with the reason.

    Raises:
        Refused: `trusted-root-mismatch`, `certificate-revoked`, `signature-malformed`,
            `signature-wrong-subject`, `authority-denied`, `identity-outside-window`; what
            `verifier` raises.
    """
    check_trusted_root(policy, verifier.trusted_root)
    signature = verifier.verify(raw, policy.identities, where=where)
    if signature.certificate in policy.revoked_certificates:
        raise Refused(
            "certificate-revoked",
            "a keyless signature is by a revoked certificate",
            got=signature.certificate,
            where=where,
        )
    if signature.name not in policy.release.identities:
        raise Refused(
            "authority-denied",
            "an identity signed what it may not sign",
            expected="an identity with the release authority",
            got=signature.name,
            where=where,
        )
    if signature.payload_type != IN_TOTO:
        raise Refused(
            "signature-malformed",
            "a keyless signature is about another kind of payload",
            expected=IN_TOTO,
            got=signature.payload_type,
            where=where,
        )
    claim = read_release_statement(signature.payload, where=where)
    if claim.capsule != capsule:
        raise Refused(
            "signature-wrong-subject",
            "a signature is about another capsule.json",
            expected=capsule,
            got=claim.capsule,
            where=where,
        )
    _check_window(signature.identity, claim.release_counter, where)
    return signature, claim


def check_trusted_root(policy: Policy, digest: str) -> None:
    """Check that what proves is what the policy pins.

    Raises:
        Refused: `trusted-root-mismatch`.
    """
    if policy.trusted_root != digest:
        raise Refused(
            "trusted-root-mismatch",
            "the trusted root is not the one that the policy pins",
            expected=policy.trusted_root or "none: the policy pins no trusted root",
            got=digest,
        )


def _check_window(identity: Identity, counter: int, where: str) -> None:
    last = identity.counter_to
    if counter < identity.counter_from or (last is not None and counter > last):
        until = "any" if last is None else str(last)
        raise Refused(
            "identity-outside-window",
            "a keyless identity does not cover this release",
            expected=f"release counter {identity.counter_from} to {until}",
            got=counter,
            where=where,
        )
