"""What the kernel answers about a path, as typed errors. Source: errno(3)."""

import errno
from types import TracebackType
from typing import Final

from capsule_manifest.errors import Failed

__all__ = ["PASSED", "disk_error", "translated"]

PASSED: Final = (FileNotFoundError, FileExistsError)
"""Callers decide by these, so they pass as they are."""


def disk_error(error: OSError, path: str) -> Failed:
    """Return the typed error for what the kernel answered about `path`."""
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            error_id, what = "disk-full", "the disk is full"
        case errno.EROFS:
            error_id, what = "disk-read-only", "the file system is read-only"
        case errno.EACCES | errno.EPERM:
            error_id, what = "disk-denied", "the user may not do this"
        case _:
            error_id, what = "disk-failed", "a file operation failed"
    # `strerror` and not the error itself, which may repeat a path that nobody has cleaned.
    return Failed(error_id, what, got=error.strerror or error, where=path)


class translated:  # noqa: N801  # reads as a clause where it is used
    """Turn the kernel's errors about `path` into typed ones. A class: this is on every write."""

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, OSError) and not isinstance(error, PASSED):
            raise disk_error(error, self._path) from error
