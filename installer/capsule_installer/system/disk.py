"""The disk as a Protocol of primitives: the only module of the host program that writes.

Tests run everything above it on a model that forgets what was not made durable, and stop it within
every write. So the primitives say exactly what the kernel promises and nothing more: data of a file
is durable after `Writer.fsync`, a name after `fsync_dir` of its folder, everything after
`sync_filesystem`. Each of these three takes `why`, a short label that names the promise made; a
test removes them one by one by that label.

Errors: `FileNotFoundError` and `FileExistsError` pass as they are, because callers decide by them;
`link` may also raise an `OSError` with EMLINK, EXDEV or EPERM, where the caller copies instead.
Everything else becomes `disk-full`, `disk-read-only`, `disk-denied` or `disk-failed`.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple, Protocol, Self

from capsule_installer.system.disk_errors import PASSED, disk_error, translated
from capsule_manifest.errors import Failed, Refused

if TYPE_CHECKING:
    from capsule_installer.system.ahead import Ahead

__all__ = ["Disk", "FileKind", "FileStat", "Lock", "RealDisk", "Writer"]

_NO_LINK: Final = frozenset({errno.EMLINK, errno.EXDEV, errno.EPERM})
_OPEN_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_WRITE: Final = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC


class FileKind(StrEnum):
    """What a name stands for."""

    FILE = "file"
    DIRECTORY = "directory"
    LINK = "link"
    OTHER = "other"


_KINDS: Final = {
    stat.S_IFREG: FileKind.FILE,
    stat.S_IFDIR: FileKind.DIRECTORY,
    stat.S_IFLNK: FileKind.LINK,
}


class FileStat(NamedTuple):
    """What lstat says. `mode` has the permission bits only; `links` counts names of the inode.

    A tuple, because a staging makes one of every file: a frozen dataclass takes four times as long.
    """

    kind: FileKind
    mode: int
    size_bytes: int
    links: int
    inode: int
    uid: int
    gid: int


class Writer(Protocol):
    """One new file that is being written, or one that grows."""

    def write(self, data: bytes | memoryview) -> None:
        """Write all of `data`. Raises: `disk-*`."""
        ...

    def fsync(self, why: str) -> None:
        """Make the file's data and size durable, but not its name. Raises: `disk-*`."""
        ...

    def close(self) -> None:
        """Close; promises nothing. Raises: `disk-*`."""
        ...

    def __enter__(self) -> Self:
        """Return itself."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        ...


class Lock(Protocol):
    """A held lock; it ends with the process at the latest."""

    def release(self) -> None:
        """Let others in."""
        ...


class Disk(Protocol):
    """Primitives on absolute paths. No last component of a path is ever followed as a link."""

    def read(self, path: str, size_bytes_max: int) -> bytes:
        """Return a regular file's bytes. Raises: `FileNotFoundError`, `disk-*`."""
        ...

    def stat(self, path: str) -> FileStat | None:
        """Return what lstat says, None where there is nothing. Raises: `disk-*`."""
        ...

    def list(self, path: str) -> list[str]:
        """Return the sorted names in a folder. Raises: `FileNotFoundError`, `disk-*`."""
        ...

    def list_inodes(self, path: str) -> Mapping[str, int]:
        """Return the names in a folder with the number of each one's inode, in no order.

        Raises: `FileNotFoundError`, `disk-*`.
        """
        ...

    def read_link(self, path: str) -> str:
        """Return a link's target. Raises: `FileNotFoundError`, `disk-*`."""
        ...

    def open_read(self, path: str) -> BinaryIO:
        """Open a regular file for reading. Raises: `FileNotFoundError`, `disk-*`."""
        ...

    def create(self, path: str, mode: int) -> Writer:
        """Create a file that must not exist, with exactly this mode.

        Raises: `FileExistsError`, `FileNotFoundError`, `disk-*`.
        """
        ...

    def put(self, path: str, data: bytes | memoryview, mode: int) -> None:
        """Create a file that must not exist, with exactly this mode and content.

        As `create` and one write: for many small files. Raises: as `create`.
        """
        ...

    def grow(self, path: str, keep_bytes: int) -> Writer:
        """Cut a file to its first `keep_bytes` and write after them.

        Raises: `FileNotFoundError`, `disk-*`.
        """
        ...

    def rename(self, source: str, target: str) -> None:
        """Give a file, link or folder another name, replacing a file or link that has it."""
        ...

    def link(self, source: str, target: str) -> None:
        """Give a file a second name. Raises: `FileExistsError`; `OSError` where links end."""
        ...

    def symlink(self, target: str, path: str) -> None:
        """Make a symbolic link at `path`. Raises: `FileExistsError`, `disk-*`."""
        ...

    def unlink(self, path: str) -> None:
        """Remove a file's or link's name. Raises: `FileNotFoundError`, `disk-*`."""
        ...

    def mkdir(self, path: str, mode: int) -> None:
        """Make a folder with exactly this mode. Raises: `FileExistsError`, `disk-*`."""
        ...

    def rmdir(self, path: str) -> None:
        """Remove an empty folder. Raises: `FileNotFoundError`, `disk-*`."""
        ...

    def chmod(self, path: str, mode: int) -> None:
        """Set the permission bits of a file or folder. Raises: `disk-*`."""
        ...

    def chown(self, path: str, uid: int, gid: int) -> None:
        """Set owner and group of a file, folder or link itself. Raises: `disk-*`."""
        ...

    def fsync_dir(self, path: str, why: str) -> None:
        """Make the names in a folder durable. Raises: `disk-*`."""
        ...

    def sync_filesystem(self, path: str, why: str) -> None:
        """Make everything on the file system that holds `path` durable. Raises: `disk-*`."""
        ...

    def begin_sync(self, path: str) -> None:
        """Let the disk begin with what it will have to write, and go on; promises nothing.

        Of a call while an earlier one is at work nothing comes. Raises nothing: what failed is
        raised by the next `sync_filesystem` or `end_sync` of this disk.
        """
        ...

    def end_sync(self) -> None:
        """Wait for what was begun, and raise what any sync of this disk has failed with.

        The kernel tells of a failed write once: whoever heard of it must not leave behind what
        the next program would trust. Raises: `disk-*`.
        """
        ...

    def free(self, path: str) -> tuple[int, int]:
        """Return bytes and inodes that are free for this user where `path` lies."""
        ...

    def lock(self, path: str) -> Lock:
        """Take the exclusive lock of a file, made if absent, without waiting.

        Raises: `host-busy` when somebody else holds it.
        """
        ...


class RealDisk:
    """The disk of this machine. Source: the Linux manual pages named at each call."""

    def __init__(self) -> None:
        self._syncing: Ahead[None] | None = None
        self._sync_failure: Failed | None = None

    def read(self, path: str, size_bytes_max: int) -> bytes:
        """Read a file. Source: `Disk.read`; a larger one is `disk-file-too-large`."""
        with self.open_read(path) as file, translated(path):
            data = file.read(size_bytes_max + 1)
        if len(data) > size_bytes_max:
            raise Refused(
                "disk-file-too-large",
                "a file is larger than such a file can be",
                expected=f"at most {size_bytes_max} bytes",
                where=path,
            )
        return data

    def stat(self, path: str) -> FileStat | None:
        """Look at a name. Source: lstat(2)."""
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise disk_error(error, path) from error
        return _file_stat(found)

    def list(self, path: str) -> list[str]:
        """List a folder. Source: `Disk.list`."""
        with translated(path):
            return sorted(os.listdir(path))

    def list_inodes(self, path: str) -> Mapping[str, int]:
        """List a folder with inodes. Source: getdents(2), which has them without a look at each."""
        with translated(path), os.scandir(path) as entries:
            return {entry.name: entry.inode() for entry in entries}

    def read_link(self, path: str) -> str:
        """Read a link. Source: readlink(2)."""
        with translated(path):
            return os.readlink(path)

    def open_read(self, path: str) -> BinaryIO:
        """Open for reading. Source: open(2), O_NOFOLLOW."""
        with translated(path):
            # O_NONBLOCK, or a planted pipe would hang the program for ever.
            handle = os.open(path, _OPEN_READ | os.O_NONBLOCK)
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                os.close(handle)
                raise OSError(errno.EINVAL, "not a regular file", path)
            return os.fdopen(handle, "rb")

    def create(self, path: str, mode: int) -> Writer:
        """Create a file. Source: open(2), O_EXCL: it is new or the call fails."""
        with translated(path):
            handle = os.open(path, _OPEN_WRITE | os.O_CREAT | os.O_EXCL, mode)
        return _RealWriter(handle, path, mode)

    def put(self, path: str, data: bytes | memoryview, mode: int) -> None:
        """Create a whole file. Source: `Disk.put`."""
        with translated(path):
            handle = os.open(path, _OPEN_WRITE | os.O_CREAT | os.O_EXCL, mode)
            try:
                # The mode of open is cut by the umask, which is the caller's shell's.
                os.fchmod(handle, mode)
                written = os.write(handle, data)
                while written < len(data):
                    written += os.write(handle, memoryview(data)[written:])
            finally:
                os.close(handle)

    def grow(self, path: str, keep_bytes: int) -> Writer:
        """Open for growing. Source: ftruncate(2)."""
        with translated(path):
            handle = os.open(path, _OPEN_WRITE | os.O_APPEND)
            os.ftruncate(handle, keep_bytes)
        return _RealWriter(handle, path, None)

    def rename(self, source: str, target: str) -> None:
        """Give another name. Source: rename(2)."""
        with translated(target):
            os.rename(source, target)

    def link(self, source: str, target: str) -> None:
        """Give a second name. Source: link(2)."""
        try:
            os.link(source, target, follow_symlinks=False)
        except OSError as error:
            if isinstance(error, PASSED) or error.errno in _NO_LINK:
                raise
            raise disk_error(error, target) from error

    def symlink(self, target: str, path: str) -> None:
        """Make a symbolic link. Source: symlink(2)."""
        with translated(path):
            os.symlink(target, path)

    def unlink(self, path: str) -> None:
        """Remove a name. Source: unlink(2)."""
        with translated(path):
            os.unlink(path)

    def mkdir(self, path: str, mode: int) -> None:
        """Make a folder. Source: mkdir(2)."""
        with translated(path):
            os.mkdir(path, mode)
            # The mode of mkdir is cut by the umask, which is the caller's shell's.
            os.chmod(path, mode)

    def rmdir(self, path: str) -> None:
        """Remove a folder. Source: rmdir(2)."""
        with translated(path):
            os.rmdir(path)

    def chmod(self, path: str, mode: int) -> None:
        """Set the mode of what is no link. Source: fchmod(2)."""
        with translated(path):
            handle = os.open(path, _OPEN_READ | os.O_NONBLOCK)
            try:
                os.fchmod(handle, mode)
            finally:
                os.close(handle)

    def chown(self, path: str, uid: int, gid: int) -> None:
        """Set the owner. Source: lchown(2)."""
        with translated(path):
            os.lchown(path, uid, gid)

    def fsync_dir(self, path: str, why: str) -> None:
        """Make names durable. Source: fsync(2), on the folder's descriptor."""
        del why
        with translated(path):
            handle = os.open(path, _OPEN_READ | os.O_DIRECTORY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def sync_filesystem(self, path: str, why: str) -> None:
        """Make a whole file system durable. Source: syncfs(2)."""
        del why
        self.end_sync()
        try:
            _sync(path)
        except Failed as failure:
            self._sync_failure = failure
            raise

    def end_sync(self) -> None:
        """Wait and raise. Source: `Disk.end_sync`."""
        syncing, self._syncing = self._syncing, None
        try:
            if syncing is not None:
                syncing.result()
        except Failed as failure:
            self._sync_failure = failure
        if self._sync_failure is not None:
            raise self._sync_failure

    def begin_sync(self, path: str) -> None:
        """Begin to write in the background. Source: `Disk.begin_sync`."""
        # Only a staging has so much to write that it needs a thread.
        from capsule_installer.system.ahead import Ahead

        if self._syncing is None or (self._syncing.is_done and not self._syncing.has_failed):
            self._syncing = Ahead(lambda: _sync(path))

    def free(self, path: str) -> tuple[int, int]:
        """Count free space. Source: statvfs(3)."""
        with translated(path):
            found = os.statvfs(path)
        # File systems without fixed inodes, such as btrfs, report none at all.
        inodes = found.f_favail if found.f_files else 2**53 - 1
        return found.f_bavail * found.f_frsize, inodes

    def lock(self, path: str) -> Lock:
        """Take a lock. Source: flock(2): it ends with the last descriptor, a dead holder's too."""
        with translated(path):
            handle = os.open(path, _OPEN_WRITE | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise Failed(
                "host-busy",
                "another capsule program is changing this host",
                where=path,
                retryable=True,
            ) from None
        return _RealLock(handle)


class _RealWriter:
    def __init__(self, handle: int, path: str, mode: int | None) -> None:
        self._handle = handle
        self._path = path
        if mode is not None:
            with translated(path):
                # The mode of open is cut by the umask, which is the caller's shell's.
                os.fchmod(handle, mode)

    def write(self, data: bytes | memoryview) -> None:
        rest = memoryview(data)
        with translated(self._path):
            while rest:
                rest = rest[os.write(self._handle, rest) :]

    def fsync(self, why: str) -> None:
        del why
        with translated(self._path):
            os.fsync(self._handle)

    def close(self) -> None:
        if self._handle >= 0:
            handle, self._handle = self._handle, -1
            with translated(self._path):
                os.close(handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _RealLock:
    def __init__(self, handle: int) -> None:
        self._handle = handle

    def release(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def _sync(path: str) -> None:
    # Python 3.11 has no name for the call, and most runs of the program don't make it.
    from ctypes import CDLL, get_errno

    try:
        handle = os.open(path, _OPEN_READ | os.O_DIRECTORY)
        try:
            if CDLL(None, use_errno=True).syncfs(handle) != 0:
                raise OSError(get_errno(), "syncfs failed", path)
        finally:
            os.close(handle)
    except OSError as error:
        # Also of a folder that is not there: nobody decides by that here.
        raise disk_error(error, path) from error


@cache
def _kind_and_mode(mode: int) -> tuple[FileKind, int]:
    return _KINDS.get(stat.S_IFMT(mode), FileKind.OTHER), stat.S_IMODE(mode)


def _file_stat(found: os.stat_result) -> FileStat:
    return FileStat(
        *_kind_and_mode(found.st_mode),
        found.st_size,
        found.st_nlink,
        found.st_ino,
        found.st_uid,
        found.st_gid,
    )
