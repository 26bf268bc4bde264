"""A range of a file as a stream of its own: content that lies in an archive is read in place."""

import io
import os
from pathlib import Path
from typing import BinaryIO

__all__ = ["open_section", "open_section_of"]


def open_section(path: Path, offset: int, size_bytes: int) -> BinaryIO:
    """Open `size_bytes` of a file from `offset` on; the caller closes."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return io.BufferedReader(_Section(descriptor, offset, size_bytes))


def open_section_of(descriptor: int, offset: int, size_bytes: int) -> BinaryIO:
    """Open a section of a file that has a descriptor and perhaps no name; the caller closes."""
    return io.BufferedReader(_Section(os.dup(descriptor), offset, size_bytes))


class _Section(io.RawIOBase):
    """Own `descriptor`, and read it in places, so that its position is nobody's."""

    def __init__(self, descriptor: int, offset: int, size_bytes: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._position = offset
        self._end = offset + size_bytes

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: object) -> int:
        """Fill `buffer` from where the last read ended."""
        # The buffer protocol has a type from Python 3.12 on only.
        view = memoryview(buffer)  # type: ignore[arg-type]
        data = os.pread(
            self._descriptor, min(len(view), self._end - self._position), self._position
        )
        view[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        """Close the file, once."""
        if not self.closed:
            os.close(self._descriptor)
        super().close()
