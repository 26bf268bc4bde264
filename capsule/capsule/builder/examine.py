"""Read a file once, and learn all that a build wants to know of its bytes."""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import BinaryIO

from blake3 import blake3

from capsule.builder.secret_rules import SNIFFED_BYTES, TEXT_BYTES_MAX, scan_text
from capsule.builder.solid import solid_chunks
from capsule_manifest.digest import ObjectId

__all__ = ["Examined", "examine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """What some bytes are. `secrets` has rule and line, from 1, of what looks like one."""

    size_bytes: int
    object: ObjectId
    sha256: bytes
    secrets: tuple[tuple[str, int], ...]


def examine(stream: BinaryIO, where: str, also: Callable[[bytes], None] | None = None) -> Examined:
    """Read a stream to its end; memory holds a mebibyte, and of a short text all of it.

    `also` gets every chunk.

    Raises:
        Refused: `input-hollow`; what reading raises.
    """
    blake, sha = blake3(), sha256()
    size_bytes = 0
    text: list[bytes] | None = None
    for chunk in solid_chunks(stream, where):
        if size_bytes == 0 and b"\0" not in chunk[:SNIFFED_BYTES]:
            text = []
        size_bytes += len(chunk)
        blake.update(chunk)
        sha.update(chunk)
        if also is not None:
            also(chunk)
        if text is not None:
            text.append(chunk)
            if size_bytes > TEXT_BYTES_MAX:
                text = None
    secrets = () if text is None else tuple(scan_text(b"".join(text)))
    return Examined(
        size_bytes=size_bytes,
        object=ObjectId(blake.digest()),
        sha256=sha.digest(),
        secrets=secrets,
    )
