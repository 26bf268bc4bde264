"""Prove keyless bundles offline: a pinned trusted root, a bundle, and nothing else.

Neither the network, the home folder nor the clock of this machine takes part. What the package
leaves to its caller is done here: limits before parsing, one certificate name, an issuer that must
match in both places where it is written, and the validity of each key at the signed time.

Source: Sigstore bundle v0.3; Sigstore client specification, section 4.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from capsule.keyless.boundary import proving
from capsule.keyless.trusted_root import PinnedRoot, load_root
from capsule_manifest.canonical import decode_foreign
from capsule_manifest.digest import sha256_text
from capsule_manifest.envelope import BUNDLE_LIMITS, decode_bundle
from capsule_manifest.errors import Refused
from capsule_manifest.fields import Object
from capsule_manifest.keyless import KeylessSignature
from capsule_manifest.policy import Identity

if TYPE_CHECKING:
    from cryptography.x509 import Certificate
    from sigstore.models import Bundle
    from sigstore.verify.policy import VerificationPolicy

__all__ = ["SigstoreVerifier", "load_verifier"]

_ISSUER_OID: Final = "1.3.6.1.4.1.57264.1.1"
_TIMESTAMPS_MAX: Final = 1


class SigstoreVerifier:
    """A `KeylessVerifier` by the `sigstore` package."""

    def __init__(self, root: PinnedRoot) -> None:
        self._root = root

    @property
    def trusted_root(self) -> str:
        """Return `sha256:<hex>` of the file that everything is proved against."""
        return self._root.digest

    def verify(
        self, raw: bytes, identities: Mapping[str, Identity], *, where: str
    ) -> KeylessSignature:
        """Return what is proved of a bundle that one of `identities` signed.

        Raises:
            Refused: `json-*`, `document-invalid`, `signature-malformed` and `keyless-malformed` for
                what is no such bundle; `identity-unknown`; `keyless-unproved`, `keyless-unchecked`.
        """
        from sigstore.models import Bundle
        from sigstore.verify import Verifier, policy

        promised_s = _check_shape(raw, where)
        with proving(where):
            bundle = Bundle.from_json(raw)
            name, identity = _identity_of(bundle.signing_certificate, identities, where)
            times = _signed_times(bundle, promised_s, where)
            expected = policy.AllOf(
                [
                    policy.Identity(identity=identity.san, issuer=identity.issuer),
                    policy.OIDCIssuerV2(identity.issuer),
                    *(_claim(claim, value) for claim, value in sorted(identity.claims.items())),
                ]
            )
            verifier = Verifier(trusted_root=self._root.at(times))
            payload_type, payload = verifier.verify_dsse(bundle, expected)
            if len(times) > 1:
                # The package is content with one proved time. Each that a bundle claims must hold
                # alone, or a stamp by nobody would travel along as if it had been checked.
                alone = Bundle.from_json(_without_promise(raw))
                verifier.verify_dsse(alone, expected)
            certificate = _der(bundle.signing_certificate)
        return KeylessSignature(
            name=name,
            identity=identity,
            payload=payload,
            payload_type=payload_type,
            certificate=sha256_text(certificate),
            signed_s=int(times[0].timestamp()),
        )


def load_verifier(path: Path) -> SigstoreVerifier:
    """Return a verifier for the trusted root in a file.

    Raises:
        Refused: `trusted-root-malformed`.
        Failed: `trusted-root-missing`, `controller-disk`.
    """
    return SigstoreVerifier(load_root(path))


def _check_shape(raw: bytes, where: str) -> int | None:
    """Check limits and kind; return the log's time when a promise of the log covers it.

    Source: a Rekor v1 entry's `integratedTime` is signed by its inclusion promise and only there.
    """
    if decode_bundle(raw, where=where) is not None:
        raise Refused(
            "keyless-malformed",
            "a signature by a key is no keyless signature",
            expected="a certificate",
            got="publicKey",
            where=where,
        )
    bundle = Object(decode_foreign(raw, limits=BUNDLE_LIMITS, where=where), where)
    if not bundle.has("dsseEnvelope"):
        raise Refused(
            "keyless-malformed",
            "a bundle signs a file and no statement",
            expected="dsseEnvelope",
            where=where,
        )
    signatures = bundle.nested("dsseEnvelope").items("signatures", lambda signature: signature)
    if len(signatures) != 1:
        raise Refused(
            "keyless-malformed",
            "an envelope must have exactly one signature",
            expected=1,
            got=len(signatures),
            where=where,
        )
    entries = bundle.nested("verificationMaterial").items("tlogEntries", lambda entry: entry)
    if len(entries) != 1:
        raise Refused(
            "keyless-malformed",
            "a bundle must have exactly one log entry",
            expected=1,
            got=len(entries),
            where=where,
        )
    if not entries[0].has("inclusionPromise"):
        return None
    text = entries[0].text("integratedTime")
    if not (text.isascii() and text.isdigit() and len(text) <= 11):
        raise Refused(
            "keyless-malformed", "a log's time can't be read", got=text, where=where
        )  # fmt: skip
    return int(text)


def _without_promise(raw: bytes) -> bytes:
    """Return a bundle of which `_check_shape` approved, without the log's promise."""
    bundle: Any = json.loads(raw)
    del bundle["verificationMaterial"]["tlogEntries"][0]["inclusionPromise"]
    return json.dumps(bundle).encode()


def _signed_times(bundle: "Bundle", promised_s: int | None, where: str) -> tuple[datetime, ...]:
    """Return every time that the bundle claims, the log's first. All are proved later."""
    times = [] if promised_s is None else [datetime.fromtimestamp(promised_s, tz=UTC)]
    data = bundle.verification_material.timestamp_verification_data
    stamps = data.rfc3161_timestamps if data else []
    if len(stamps) > _TIMESTAMPS_MAX:
        raise Refused(
            "keyless-malformed",
            "a bundle has several time stamps",
            expected=f"at most {_TIMESTAMPS_MAX}",
            got=len(stamps),
            where=where,
        )
    times += [stamp.tst_info.gen_time for stamp in stamps]
    if not times:
        raise Refused(
            "keyless-unproved", "nothing says when a keyless signature was made", where=where
        )
    return tuple(times)


def _claim(name: str, value: str) -> "VerificationPolicy":
    """Return the check of one claim of a policy's `CLAIMS`. Source: Fulcio, OID information."""
    from sigstore.verify import policy

    checks = {
        "repository_id": policy.OIDCSourceRepositoryIdentifier,
        "repository_owner_id": policy.OIDCSourceRepositoryOwnerIdentifier,
        "runner": policy.OIDCRunnerEnvironment,
    }
    return checks[name](value)


def _identity_of(
    certificate: "Certificate", identities: Mapping[str, Identity], where: str
) -> tuple[str, Identity]:
    """Return the identity of the policy that a certificate names, byte by byte."""
    from cryptography import x509

    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    texts = [
        *names.get_values_for_type(x509.UniformResourceIdentifier),
        *names.get_values_for_type(x509.RFC822Name),
    ]
    if len(list(names)) != 1 or len(texts) != 1:
        raise Refused(
            "keyless-malformed",
            "a certificate must have exactly one name, an address or an e-mail",
            expected=1,
            got=len(list(names)),
            where=where,
        )
    issuer = _issuer_of(certificate)
    for name, identity in sorted(identities.items()):
        if (identity.san, identity.issuer) == (texts[0], issuer):
            return name, identity
    raise Refused(
        "identity-unknown",
        "a keyless signature is by an identity that the policy doesn't name",
        expected=", ".join(sorted(identities)) or "no identity: the policy names none",
        got=f"{texts[0]} of {issuer}",
        where=where,
    )


def _issuer_of(certificate: "Certificate") -> str:
    from cryptography import x509

    extension = certificate.extensions.get_extension_for_oid(x509.ObjectIdentifier(_ISSUER_OID))
    assert isinstance(extension.value, x509.UnrecognizedExtension)
    return extension.value.value.decode()


def _der(certificate: "Certificate") -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.DER)
