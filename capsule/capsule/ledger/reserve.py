"""Space that is set aside beside a SQLite ledger, so that what was started can be ended.

A controller whose disk fills up must still record how the nodes under way end: their permits, holds
and outcomes are worth more than any new node. A file of zeros lies beside the ledger; when a write
finds the disk full, the file goes and the write is tried once more. Without the file whole, no new
permit is given: what it paid for is needed for those that are out.

The guarantee is the file system's: one that compresses or copies on write may give back less than
the file's length.
"""

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from capsule_manifest.errors import Failed

__all__ = ["RESERVE_BYTES", "Reserve"]

RESERVE_BYTES: Final = 16 * 1024 * 1024
"""Four times SQLite's log at its usual length: hundreds of outcomes, and the log's own growth."""

_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class Reserve:
    """The file of one ledger. `release` and `require` may be called by several processes."""

    def __init__(self, path: Path, *, size_bytes: int = RESERVE_BYTES) -> None:
        self._path = path
        self._size_bytes = size_bytes

    @property
    def is_whole(self) -> bool:
        """Say whether the space is set aside now."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return False
        # A sparse file has the length and none of the space.
        return found.st_size >= self._size_bytes and found.st_blocks * 512 >= self._size_bytes

    def require(self) -> None:
        """Set the space aside unless it is, and refuse to go on if there is none.

        Raises:
            Failed: `ledger-full`.
        """
        if self.is_whole:
            return
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, self._size_bytes)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise
            # Half of it would take what an outcome may need.
            self.release()
            raise Failed(
                "ledger-full",
                "no new permit while the ledger's reserve can't be set aside",
                expected=f"{self._size_bytes} free bytes",
                got="a full disk",
                where=self._path.parent,
            ) from error

    def release(self) -> bool:
        """Give the space back; say whether there was any."""
        with suppress(FileNotFoundError):
            self._path.unlink()
            return True
        return False
