"""ECDSA P-256 keys as values: the public half, its id, and one verification.

P-256 because every `openssl`, KMS, HSM and TPM can make and check it. The private half never enters
this package: a signer is a `Signer` that the program brings.

`cryptography` is imported inside the two functions that need it: reading documents stays cheap.
"""

import base64
import binascii
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, NewType, Protocol

from capsule_manifest.errors import Refused

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

__all__ = ["KeyId", "PublicKey", "Signer", "b64decode", "b64encode", "public_key"]

KeyId = NewType("KeyId", str)
"""Base64 of SHA-256 of the DER SubjectPublicKeyInfo: what Sigstore bundles use as a hint."""

# The SubjectPublicKeyInfo of every uncompressed P-256 point up to the point (RFC 5480, section 2).
_SPKI_PREFIX = bytes.fromhex("3059301306072a8648ce3d020106082a8648ce3d03010703420004")
_SPKI_POINT_AT = len(_SPKI_PREFIX) - 1  # the prefix ends with the 04 that says "uncompressed"
_SPKI_BYTES = _SPKI_POINT_AT + 65
_SIGNATURE_BYTES_MAX = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicKey:
    """A P-256 public key. `spki` is its DER SubjectPublicKeyInfo."""

    keyid: KeyId
    spki: bytes

    @property
    def short(self) -> str:
        """Return eight hex digits for file names and tables; never compared."""
        return hashlib.sha256(self.spki).hexdigest()[:8]

    def verify(self, signature: bytes, message: bytes, where: str) -> None:
        """Check an ECDSA P-256 SHA-256 signature in DER form over `message`.

        Raises:
            Refused: `signature-invalid`, `key-malformed`.
        """
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
        from cryptography.hazmat.primitives.hashes import SHA256

        try:
            if len(signature) > _SIGNATURE_BYTES_MAX:
                raise InvalidSignature
            _load(self.spki, where).verify(signature, message, ECDSA(SHA256()))
        except InvalidSignature:
            raise Refused(
                "signature-invalid",
                "a signature does not match what it signs",
                expected=f"a signature by key {self.short}",
                where=where,
            ) from None


class Signer(Protocol):
    """Sign bytes with a private P-256 key that stays with the implementer."""

    @property
    def public(self) -> PublicKey:
        """Return the public half."""
        ...

    def sign(self, message: bytes) -> bytes:
        """Return the DER ECDSA P-256 SHA-256 signature over `message`."""
        ...


def public_key(spki: bytes, where: str) -> PublicKey:
    """Return the key of a DER SubjectPublicKeyInfo after checking that it is on P-256.

    Raises:
        Refused: `key-malformed`.
    """
    _load(spki, where)
    return PublicKey(keyid=KeyId(b64encode(hashlib.sha256(spki).digest())), spki=spki)


def _load(spki: bytes, where: str) -> "EllipticCurvePublicKey":
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey

    # A key's id is the hash of these bytes: a compressed point or spelled-out curve parameters
    # would be the same key under another id, and a revoked id has to be the end of a key.
    if len(spki) != _SPKI_BYTES or not spki.startswith(_SPKI_PREFIX):
        raise Refused(
            "key-malformed",
            "a public key is of another kind or spelling",
            expected="ECDSA P-256 as 91 bytes of DER with an uncompressed point",
            got=f"{len(spki)} bytes that start with {spki[:8].hex()}",
            where=where,
        )
    try:
        return EllipticCurvePublicKey.from_encoded_point(SECP256R1(), spki[_SPKI_POINT_AT:])
    except ValueError as error:
        raise Refused(
            "key-malformed", "a public key is no point of its curve", got=error, where=where
        ) from None


def b64encode(raw: bytes) -> str:
    """Return standard base64 with padding."""
    return base64.b64encode(raw).decode("ascii")


def b64decode(text: str, where: str) -> bytes:
    """Read standard base64 with padding and nothing else.

    Raises:
        Refused: `signature-malformed`.
    """
    try:
        raw = base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise Refused("signature-malformed", "not base64", got=error, where=where) from None
    # Non-zero bits after the last byte decode silently; one value must have one spelling.
    if b64encode(raw) != text:
        raise Refused("signature-malformed", "base64 with stray bits", where=where)
    return raw
