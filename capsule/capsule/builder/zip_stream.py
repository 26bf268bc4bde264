"""Read one member of a zip file as a stream that ends with an error if it is not as listed."""

import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

from capsule_manifest.errors import Refused
from capsule_manifest.paths import escape

__all__ = [
    "DEFLATED",
    "STORED",
    "WHOLE_BYTES_MAX",
    "MemberReader",
    "MemberStream",
    "ZipMember",
    "read_member",
]

STORED: Final = 0
DEFLATED: Final = 8
WHOLE_BYTES_MAX: Final = 1024 * 1024
"""A member that is no longer, stored or not, may be read in one step."""
_CHUNK_BYTES: Final = 128 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ZipMember:
    """One file of the archive. `is_executable` is False where the archive keeps no modes."""

    name: str
    size_bytes: int
    is_executable: bool
    crc: int
    method: int
    stored_bytes: int
    data_offset: int

    @property
    def is_short(self) -> bool:
        """Say whether `read_member` may be used."""
        return max(self.size_bytes, self.stored_bytes) <= WHOLE_BYTES_MAX


def read_member(stream: BinaryIO, member: ZipMember, where: str) -> bytes:
    """Return a short member whole, proved to be as it is listed: what a stream does, in one step.

    Raises:
        Refused: `zip-refused`.
    """
    assert member.is_short, "a longer member is a stream"
    stream.seek(member.data_offset)
    stored = stream.read(member.stored_bytes)
    content, is_whole = stored, len(stored) == member.stored_bytes
    if member.method == DEFLATED:
        inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            # One byte more than is listed, so that more is noticed and never allocated.
            content = inflate.decompress(stored, member.size_bytes + 1)
        except zlib.error:
            is_whole = False
        is_whole = is_whole and inflate.eof and not inflate.unused_data
    crc = zlib.crc32(content)
    if len(content) > member.size_bytes:
        what = "more content than the directory says"
        raise _refused(member, what, len(content), crc, where)
    if not is_whole or (len(content), crc) != (member.size_bytes, member.crc):
        raise _refused(member, "content is not what the directory says", len(content), crc, where)
    return content


class MemberReader:
    """Decompress one member; every byte that leaves was counted, and the end is checked."""

    def __init__(self, stream: BinaryIO, member: ZipMember, where: str) -> None:
        self._stream = stream
        self._member = member
        self._where = where
        self._left = member.stored_bytes
        self._inflate = zlib.decompressobj(-zlib.MAX_WBITS) if member.method == DEFLATED else None
        self._pending = b""
        self._crc = 0
        self._size_bytes = 0
        stream.seek(member.data_offset)

    def chunks(self, size_bytes: int) -> Iterator[bytes]:
        """Yield all content in chunks of one size, of which the last is shorter.

        Raises:
            Refused: `zip-refused`.
        """
        while chunk := b"".join(self._parts(size_bytes)):
            yield chunk

    def read_some(self, most: int) -> bytes:
        """Return some content; none, if `most` is not 0, means that the whole member was right.

        Raises:
            Refused: `zip-refused`.
        """
        data = b""
        while most and not data:
            if self._inflate is None:
                data = self._take(min(most, _CHUNK_BYTES))
                if not data:
                    break
            else:
                if self._inflate.eof:
                    break
                source = self._pending or self._take(_CHUNK_BYTES)
                if not source and not self._inflate.unconsumed_tail:
                    raise self._refused("compressed data ends early")
                try:
                    data = self._inflate.decompress(source, most)
                except zlib.error as error:
                    raise self._refused("compressed data is damaged") from error
                self._pending = self._inflate.unconsumed_tail
        self._crc = zlib.crc32(data, self._crc)
        self._size_bytes += len(data)
        if self._size_bytes > self._member.size_bytes:
            raise self._refused("more content than the directory says")
        if not data and most:
            self._check_end()
        return data

    def _parts(self, size_bytes: int) -> Iterator[bytes]:
        while size_bytes and (data := self.read_some(size_bytes)):
            size_bytes -= len(data)
            yield data

    def _take(self, most: int) -> bytes:
        data = self._stream.read(min(most, self._left))
        self._left -= len(data)
        return data

    def _check_end(self) -> None:
        trailing = self._left or self._pending or (self._inflate and self._inflate.unused_data)
        if trailing or (self._size_bytes, self._crc) != (self._member.size_bytes, self._member.crc):
            raise self._refused("content is not what the directory says")

    def _refused(self, what: str) -> Refused:
        return _refused(self._member, what, self._size_bytes, self._crc, self._where)


class MemberStream(io.RawIOBase):
    """One member as a file. It owns the file it reads from; reading raises as `MemberReader`."""

    def __init__(self, stream: BinaryIO, member: ZipMember, where: str) -> None:
        super().__init__()
        self._stream = stream
        self._reader = MemberReader(stream, member, where)

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: object) -> int:
        """Fill `buffer` with some content; 0 bytes mean that the whole member was right.

        Raises:
            Refused: `zip-refused`.
        """
        # The buffer protocol has a type from Python 3.12 on only.
        view = memoryview(buffer)  # type: ignore[arg-type]
        data = self._reader.read_some(len(view))
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Close the file too."""
        self._stream.close()
        super().close()


def _refused(member: ZipMember, what: str, size_bytes: int, crc: int, where: str) -> Refused:
    return Refused(
        "zip-refused",
        f"{escape(member.name)}: {what}",
        expected=f"{member.size_bytes} bytes, CRC {member.crc:08x}",
        got=f"{size_bytes} bytes, CRC {crc:08x}",
        where=where,
    )
