"""Keyless signatures: what a verifier must prove before a policy judges it.

A keyless signature is made by a key that lives for minutes, under a certificate that names a
*workload*: one workflow of one repository, say. Proving it needs a Sigstore trusted root and a
verifier that a host doesn't carry, so the proof comes in through `KeylessVerifier`; what was proved
is judged like a signature by a key, under the same policy.

An identity is compared whole: issuer and subject, byte by byte. Patterns have let strangers in
wherever they were offered.

Source: Sigstore bundle v0.3; design, section 10.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from capsule_manifest.errors import Refused
from capsule_manifest.policy import Identity, Policy

__all__ = [
    "KeylessSignature",
    "KeylessVerifier",
    "check_trusted_root",
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
