"""P-256 keys for tests: fixed private numbers, so that key ids and goldens never change."""

from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    SECP256R1,
    EllipticCurvePrivateKey,
    derive_private_key,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from capsule_manifest.keys import PublicKey, public_key

__all__ = ["FixedSigner"]


class FixedSigner:
    """A `Signer` whose private number is derived from a name."""

    def __init__(self, name: str) -> None:
        number = int.from_bytes(name.encode().rjust(8, b"\1"), "big")
        self._private: EllipticCurvePrivateKey = derive_private_key(number, SECP256R1())
        spki = self._private.public_key().public_bytes(
            Encoding.DER, PublicFormat.SubjectPublicKeyInfo
        )
        self._public = public_key(spki, name)

    @property
    def public(self) -> PublicKey:
        return self._public

    def sign(self, message: bytes) -> bytes:
        return self._private.sign(message, ECDSA(SHA256()))
