"""Public keys as values: one key has one spelling, therefore one id."""

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from capsule_manifest.errors import Refused
from capsule_manifest.keys import public_key

PRIVATE = ec.derive_private_key(7, ec.SECP256R1())
SPKI = PRIVATE.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
COMPRESSED = PRIVATE.public_key().public_bytes(Encoding.X962, PublicFormat.CompressedPoint)


def der(private: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey) -> bytes:
    return private.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


BAD = {
    "P-384": der(ec.derive_private_key(7, ec.SECP384R1())),
    "Ed25519": der(ed25519.Ed25519PrivateKey.from_private_bytes(bytes(32))),
    "K-256, as long as P-256": der(ec.derive_private_key(7, ec.SECP256K1())),
    # The same key under another id would outlive the revocation of this one.
    "compressed point": bytes.fromhex("3039301306072a8648ce3d020106082a8648ce3d030107032200")
    + COMPRESSED,
    "point off the curve": SPKI[:-1] + bytes([SPKI[-1] ^ 1]),
    "point at infinity": SPKI[:26] + b"\x04" + bytes(64),
    "one byte short": SPKI[:-1],
    "one byte more": SPKI + b"\0",
    "empty": b"",
    "long": b"\x30" * 600,
}


def test_a_p256_key_is_known_by_the_hash_of_its_spelling() -> None:
    key = public_key(SPKI, "x")
    assert key.spki == SPKI
    key.verify(PRIVATE.sign(b"words", ec.ECDSA(SHA256())), b"words", "x")


@pytest.mark.parametrize("name", BAD)
def test_a_key_that_is_no_uncompressed_p256_point_is_refused(name: str) -> None:
    with pytest.raises(Refused) as refused:
        public_key(BAD[name], "policy.json")
    assert refused.value.error_id == "key-malformed"
    assert refused.value.where == "policy.json"
