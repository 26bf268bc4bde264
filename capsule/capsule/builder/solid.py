"""Read a file that is meant to be content: one that is mostly nothing is refused while it is read.

A sparse file says a size that no disk holds, and a host that unpacks it writes every byte of it.
Whether a file is sparse depends on the file system it happens to lie on; what it reads as doesn't.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import BinaryIO, Final

from capsule_manifest.errors import Refused

__all__ = ["CHUNK_BYTES", "EMPTY_BYTES_MAX", "solid", "solid_chunks"]

EMPTY_BYTES_MAX: Final = 256 * 1024 * 1024
"""How many bytes of one file may be whole chunks of zeros."""
CHUNK_BYTES: Final = 1024 * 1024
_EMPTY: Final = bytes(CHUNK_BYTES)


def solid_chunks(stream: BinaryIO, where: str) -> Iterator[bytes]:
    """Yield the bytes of a file in chunks of at most a mebibyte.

    Raises:
        Refused: `input-hollow` once more than `EMPTY_BYTES_MAX` bytes were in empty chunks.
    """
    return solid(iter(partial(stream.read, CHUNK_BYTES), b""), where)


def solid(chunks: Iterable[bytes], where: str) -> Iterator[bytes]:
    """Yield `chunks`, which are of `CHUNK_BYTES` each but the last.

    Raises:
        Refused: `input-hollow`, as `solid_chunks`.
    """
    empty_bytes = 0
    for chunk in chunks:
        if chunk[:1] == b"\0" and chunk == _EMPTY[: len(chunk)]:
            empty_bytes += len(chunk)
            if empty_bytes > EMPTY_BYTES_MAX:
                raise Refused(
                    "input-hollow",
                    "a file is mostly nothing: sparse, or filled with zeros",
                    expected=f"at most {EMPTY_BYTES_MAX} bytes in empty mebibytes",
                    got="more, and the file was not read further",
                    where=where,
                )
        yield chunk
