"""Read the pieces of objects again, in content order, and prove each object while it is read."""

from collections.abc import Mapping, Sequence
from typing import BinaryIO, Final

from blake3 import blake3

from capsule.builder.frame_plan import Piece
from capsule.builder.model import InputEntry
from capsule_manifest.digest import ObjectId, object_id
from capsule_manifest.errors import Failed

__all__ = ["ObjectReader"]

_CHUNK_BYTES: Final = 1024 * 1024


class ObjectReader:
    """One object is open at a time. Whatever piece of one is wanted, all of it is read and proved.

    Frames with wrong bytes may be written before that is noticed; nothing will ever name them.
    """

    def __init__(self, sources: Mapping[ObjectId, InputEntry]) -> None:
        self._sources = sources
        self._digest: ObjectId | None = None
        self._stream: BinaryIO | None = None
        self._hasher = blake3()
        self._position = 0

    def read(self, pieces: Sequence[Piece], content: memoryview) -> None:
        """Fill `content` with the bytes of some pieces, one after another.

        Raises:
            Failed: `input-changed`.
        """
        end = 0
        for piece in pieces:
            begin, end = end, end + piece.size_bytes
            self._read(piece, content[begin:end])

    def close(self) -> None:
        """Close what is open, without a word about it."""
        if self._stream is not None:
            self._stream.close()
            self._stream = self._digest = None

    def finish(self) -> None:
        """Read what is left of the object that is open, and prove it.

        Raises:
            Failed: `input-changed`.
        """
        if self._stream is None or self._digest is None:
            return
        size_bytes = self._sources[self._digest].size_bytes
        with self._stream as stream:
            # One byte more than expected is asked for at the end, so growth is noticed too.
            while chunk := stream.read(min(_CHUNK_BYTES, size_bytes - self._position + 1)):
                self._hasher.update(chunk)
                self._position += len(chunk)
                if self._position > size_bytes:
                    break
        digest, self._stream, self._digest = self._digest, None, None
        if self._position != size_bytes or self._hasher.digest() != digest:
            raise _changed(self._sources[digest].path, digest, self._hasher.digest().hex())

    def _read(self, piece: Piece, content: memoryview) -> None:
        if self._digest != piece.object or self._position > piece.offset:
            self.finish()
            if self._read_whole(piece, content):
                return
            self._open(piece.object)
        self._take(piece.offset - self._position, None)
        self._take(piece.size_bytes, content)

    def _read_whole(self, piece: Piece, content: memoryview) -> bool:
        """Read a short object in one step; False if it is no such, or not what it was."""
        source = self._sources[piece.object]
        if not source.size_bytes == piece.size_bytes <= _CHUNK_BYTES:
            return False
        assert source.open is not None, "a file has content"
        with source.open() as stream:
            raw = stream.read(piece.size_bytes + 1)
        if len(raw) != piece.size_bytes or object_id(raw) != piece.object:
            return False
        content[:] = raw
        return True

    def _open(self, digest: ObjectId) -> None:
        source = self._sources[digest]
        assert source.open is not None, "a file has content"
        self._digest, self._stream = digest, source.open()
        self._hasher = blake3()
        self._position = 0

    def _take(self, size_bytes: int, content: memoryview | None) -> None:
        """Read what comes next of the object that is open, into `content` if it is wanted."""
        assert self._stream is not None, "an object is open"
        offset = 0
        while offset < size_bytes:
            chunk = self._stream.read(min(_CHUNK_BYTES, size_bytes - offset))
            if not chunk:
                self.finish()
                # What is there may be right and the entry's size wrong.
                raise _changed("an object", None, "its end came early")
            self._hasher.update(chunk)
            if content is not None:
                content[offset : offset + len(chunk)] = chunk
            self._position += len(chunk)
            offset += len(chunk)


def _changed(where: str, expected: ObjectId | None, got: str) -> Failed:
    return Failed(
        "input-changed",
        "an input changed while it was being built",
        expected=expected.hex() if expected else "all of it",
        got=got,
        where=where,
        retryable=True,
    )
