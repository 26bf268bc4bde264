"""Read a file that is meant to be content: one that is mostly nothing is refused while it is read.

A sparse file says a size that no disk holds, and a host that unpacks it writes every byte of it.
Whether a file is sparse depends on the file system it happens to lie on; what it reads as doesn't.
"""

from collections.abc import Iterator
from typing import BinaryIO, Final

from capsule_manifest.errors import Refused

__all__ = ["EMPTY_BYTES_MAX", "solid_chunks"]

EMPTY_BYTES_MAX: Final = 256 * 1024 * 1024
"""How many bytes of one file may be whole chunks of zeros."""
_CHUNK_BYTES: Final = 1024 * 1024
_EMPTY: Final = bytes(_CHUNK_BYTES)


def solid_chunks(stream: BinaryIO, where: str) -> Iterator[bytes]:
    """Yield the bytes of a file in chunks of at most a mebibyte.

    Raises:
        Refused: `input-hollow` once more than `EMPTY_BYTES_MAX` bytes were in empty chunks.
    """
    empty_bytes = 0
    while chunk := stream.read(_CHUNK_BYTES):
        if chunk[0] == 0 and chunk == _EMPTY[: len(chunk)]:
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
