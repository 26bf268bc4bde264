"""Digests as values: raw bytes inside, `algorithm:hex` in documents.

BLAKE3-256 names content that only capsule reads. SHA-256 names what others verify too: the capsule
id, documents that are signed, wheels, image layers.
"""

import hashlib
from typing import NewType

from blake3 import blake3

from capsule_manifest.errors import Refused

__all__ = [
    "CapsuleId",
    "ObjectId",
    "blake3_text",
    "capsule_hex",
    "object_id",
    "parse_blake3",
    "parse_sha256",
    "sha256_text",
]

ObjectId = NewType("ObjectId", bytes)
"""32 bytes: BLAKE3-256 of content. Names objects, trees, frames and packs."""

CapsuleId = NewType("CapsuleId", str)
"""`sha256:<64 hex>`: SHA-256 of the bytes of `capsule.json`."""

_DIGEST_BYTES = 32
_HEX = frozenset("0123456789abcdef")


def object_id(content: bytes | bytearray | memoryview) -> ObjectId:
    """Return the BLAKE3-256 of `content`, on one thread."""
    return ObjectId(blake3(content).digest())


def blake3_text(digest: ObjectId) -> str:
    """Return the document form, `blake3:<64 hex>`."""
    return f"blake3:{digest.hex()}"


def parse_blake3(text: object, where: str) -> ObjectId:
    """Read the document form of a BLAKE3 digest.

    Raises:
        Refused: `digest-malformed`.
    """
    return ObjectId(_parse(text, "blake3", where))


def sha256_text(content: bytes) -> str:
    """Return `sha256:<64 hex>` of `content`."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def capsule_hex(digest: str) -> str:
    """Return the hex digits of a `sha256:<hex>` value, as in-toto and OCI want them."""
    return digest.removeprefix("sha256:")


def parse_sha256(text: object, where: str) -> str:
    """Check the document form of a SHA-256 digest and return it unchanged.

    Raises:
        Refused: `digest-malformed`.
    """
    _parse(text, "sha256", where)
    assert isinstance(text, str)
    return text


def _parse(text: object, algorithm: str, where: str) -> bytes:
    prefix = algorithm + ":"
    if isinstance(text, str) and text.startswith(prefix):
        hex_digits = text[len(prefix) :]
        # bytes.fromhex also takes upper case and spaces; one value must have one spelling.
        if len(hex_digits) == 2 * _DIGEST_BYTES and _HEX.issuperset(hex_digits):
            return bytes.fromhex(hex_digits)
    raise Refused(
        "digest-malformed",
        "a digest is not in its document form",
        expected=f"{prefix}<64 lower-case hex digits>",
        got=repr(text),
        where=where,
    )
