"""Read a file once, and learn all that a build wants to know of its bytes."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import BinaryIO

from blake3 import blake3

from capsule.builder.secret_rules import SNIFFED_BYTES, TEXT_BYTES_MAX, scan_text
from capsule.builder.solid import CHUNK_BYTES, solid
from capsule_manifest.digest import ObjectId, object_id

__all__ = ["Examined", "examine", "examine_bytes", "examine_chunks"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """What some bytes are. `secrets` has rule and line, from 1, of what looks like one."""

    size_bytes: int
    object: ObjectId
    sha256: bytes
    secrets: tuple[tuple[str, int], ...]


def examine(stream: BinaryIO, where: str) -> Examined:
    """Read a stream to its end; memory holds a mebibyte, and of a short text all of it.

    Raises:
        Refused: `input-hollow`; what reading raises.
    """
    return examine_chunks(iter(partial(stream.read, CHUNK_BYTES), b""), where)


def examine_chunks(
    chunks: Iterable[bytes], where: str, also: Callable[[bytes], None] | None = None
) -> Examined:
    """Examine content that comes in chunks of `CHUNK_BYTES`, of which the last is shorter.

    `also` gets every chunk.

    Raises:
        Refused: `input-hollow`; what `chunks` raises.
    """
    blake, sha = blake3(), sha256()
    size_bytes = 0
    text: list[bytes] | None = None
    for chunk in solid(chunks, where):
        if size_bytes == 0 and _is_text(chunk):
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


def examine_bytes(content: bytes) -> Examined:
    """Examine content that is here whole, of at most `CHUNK_BYTES`; most files are."""
    assert len(content) <= CHUNK_BYTES, "longer content comes in chunks"
    return Examined(
        size_bytes=len(content),
        object=object_id(content),
        sha256=sha256(content).digest(),
        secrets=tuple(scan_text(content)) if _is_text(content) else (),
    )


def _is_text(beginning: bytes) -> bool:
    return b"\0" not in beginning[:SNIFFED_BYTES]
