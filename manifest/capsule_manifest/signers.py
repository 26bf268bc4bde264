"""One signature file of a capsule: who made it, by which key or identity, and what it says.

A file is a Sigstore bundle. With public-key material it is checked here; a keyless one needs a
trusted root and is checked by a `KeylessVerifier` that the program brings, where it has one. In
both cases the policy decides afterwards whether its maker may speak.

Source: design, section 10; Sigstore bundle v0.3.
"""

from dataclasses import dataclass

from capsule_manifest.envelope import IN_TOTO, decode_bundle
from capsule_manifest.errors import Refused
from capsule_manifest.keyless import KeylessVerifier, check_trusted_root
from capsule_manifest.keys import KeyId, PublicKey
from capsule_manifest.policy import Authority, Identity, Policy, PolicyKey

__all__ = ["SignedStatement", "policy_key", "read_signature"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedStatement:
    """A statement whose signature holds, and the policy's entry for whoever made it."""

    owner: str
    counter_from: int
    counter_to: int | None
    payload: bytes

    def check_window(self, counter: int, where: str) -> None:
        """Check that the signer covers a release counter.

        Raises:
            Refused: `key-outside-window`.
        """
        last = self.counter_to
        if counter < self.counter_from or (last is not None and counter > last):
            until = "any" if last is None else str(last)
            raise Refused(
                "key-outside-window",
                "a signer does not cover this release",
                expected=f"release counter {self.counter_from} to {until}",
                got=counter,
                where=where,
            )


def read_signature(
    policy: Policy, name: str, raw: bytes, keyless: KeylessVerifier | None
) -> SignedStatement:
    """Return what a holder of the release authority stated in the signature file `name`.

    Raises:
        Refused: `json-*`, `document-invalid`, `signature-*`, `key-unknown`, `key-revoked`,
            `authority-denied`; `keyless-unverified` without a verifier,
            `trusted-root-mismatch`, `certificate-revoked`, and what the verifier raises.
    """
    envelope = decode_bundle(raw, where=name)
    if envelope is None:
        return _keyless(policy, name, raw, keyless)
    key = policy_key(policy, Authority.RELEASE, envelope.keyid, name)
    payload = envelope.verify(key, payload_type=IN_TOTO, where=name)
    return _stated(policy.keys[envelope.keyid], payload)


def policy_key(policy: Policy, authority: Authority, keyid: KeyId, where: str) -> PublicKey:
    """Return the key `keyid` if the policy lets it use `authority`.

    Raises:
        Refused: `key-unknown`, `key-revoked`, `authority-denied`.
    """
    entry = policy.keys.get(keyid)
    if entry is None:
        raise Refused(
            "key-unknown",
            "a signature is by a key that the policy doesn't name",
            got=keyid,
            where=where,
        )
    if keyid in policy.revoked_keys:
        raise Refused("key-revoked", "a signature is by a revoked key", got=keyid, where=where)
    if keyid not in policy.rule(authority).keys:
        raise Refused(
            "authority-denied",
            "a key signed what it may not sign",
            expected=f"a key with the {authority} authority",
            got=f"key {entry.key.short} of {entry.owner}, {policy.authority_of(keyid)} authority",
            where=where,
        )
    return entry.key


def _keyless(
    policy: Policy, name: str, raw: bytes, keyless: KeylessVerifier | None
) -> SignedStatement:
    if keyless is None:
        raise Refused(
            "keyless-unverified",
            "a keyless signature can't be checked here",
            expected="enough signatures by keys",
            where=name,
        )
    check_trusted_root(policy, keyless.trusted_root)
    proved = keyless.verify(raw, policy.identities, where=name)
    if proved.certificate in policy.revoked_certificates:
        raise Refused(
            "certificate-revoked",
            "a keyless signature is by a revoked certificate",
            got=proved.certificate,
            where=name,
        )
    if proved.name not in policy.release.identities:
        raise Refused(
            "authority-denied",
            "an identity signed what it may not sign",
            expected="an identity with the release authority",
            got=proved.name,
            where=name,
        )
    if proved.payload_type != IN_TOTO:
        raise Refused(
            "signature-malformed",
            "a keyless signature is about another kind of payload",
            expected=IN_TOTO,
            got=proved.payload_type,
            where=name,
        )
    # From the policy and not from what was proved: the verifier only says which entry it is.
    return _stated(policy.identities[proved.name], proved.payload)


def _stated(entry: PolicyKey | Identity, payload: bytes) -> SignedStatement:
    return SignedStatement(
        owner=entry.owner,
        counter_from=entry.counter_from,
        counter_to=entry.counter_to,
        payload=payload,
    )
