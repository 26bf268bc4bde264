"""Content that was decompressed once, kept in a nameless file until its last reader is gone.

Decompressing costs more than writing and reading back: most of what is written here is read again
from memory, and the file has no name, so nothing is left behind whatever happens.
"""

import io
import os
import tempfile
from pathlib import Path
from threading import Lock
from typing import BinaryIO, Final, Self
from weakref import finalize

__all__ = ["Spool", "SpoolWriter"]

_WHOLE_BYTES_MAX: Final = 1024 * 1024


class Spool:
    """One file; places in it are reserved first, and may then be filled by several threads."""

    def __init__(self, file: BinaryIO) -> None:
        """Take over an empty file; it is closed with the last reader."""
        self._file = file
        self._end = 0
        self._lock = Lock()
        finalize(self, file.close)

    @classmethod
    def on_disk_of(cls, folder: Path) -> Self:
        """Return a spool on the disk of `folder`. Raises OSError where it can't be."""
        return cls(tempfile.TemporaryFile(dir=folder))

    def writer(self, size_bytes: int) -> "SpoolWriter":
        """Return a writer with a place of its own for so many bytes."""
        return SpoolWriter(self, self._reserve(size_bytes))

    def put(self, offset: int, data: bytes) -> None:
        """Write all of `data` at `offset`. Raises OSError, such as when the disk is full."""
        view = memoryview(data)
        while view:
            count = os.pwrite(self._file.fileno(), view, offset)
            view, offset = view[count:], offset + count

    def open(self, offset: int, size_bytes: int) -> BinaryIO:
        """Return what was put at `offset` as a stream. A reader checks what it gets by digest."""
        if size_bytes <= _WHOLE_BYTES_MAX:
            return io.BytesIO(os.pread(self._file.fileno(), size_bytes, offset))
        return io.BufferedReader(_Region(self, offset, size_bytes), _WHOLE_BYTES_MAX)

    def read_into(self, view: memoryview, offset: int) -> int:
        """Fill `view` with some bytes from `offset` and return how many."""
        return os.preadv(self._file.fileno(), [view], offset)

    def _reserve(self, size_bytes: int) -> int:
        with self._lock:
            offset = self._end
            self._end += size_bytes
            return offset


class SpoolWriter:
    """Take one chunk after another; a disk that is full ends that and is no error.

    Short chunks are written many at a time.
    """

    def __init__(self, spool: Spool, offset: int) -> None:
        self.offset = offset
        """Where the next chunk goes."""
        self.written = offset
        """What was put before here is in the spool."""
        self._spool = spool
        self._pending: list[bytes] = []
        self._is_full = False

    def put(self, chunk: bytes) -> None:
        """Put the next chunk."""
        self.offset += len(chunk)
        if not self._is_full:
            self._pending.append(chunk)
            if self.offset - self.written >= _WHOLE_BYTES_MAX:
                self.flush()

    def flush(self) -> None:
        """Write what is not written yet."""
        try:
            if not self._is_full:
                self._spool.put(self.written, b"".join(self._pending))
                self.written = self.offset
        except OSError:
            self._is_full = True
        self._pending.clear()


class _Region(io.RawIOBase):
    def __init__(self, spool: Spool, offset: int, size_bytes: int) -> None:
        super().__init__()
        self._spool = spool
        self._offset = offset
        self._left = size_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        # The buffer protocol has a type from Python 3.12 on only.
        view = memoryview(buffer)[: self._left]  # type: ignore[arg-type]
        count = self._spool.read_into(view, self._offset) if view else 0
        self._offset += count
        self._left -= count
        return count
