"""Durable files of the controller: the only module of the controller that renames.

A file is either absent, old or new after power loss, never half. Everything else in the controller
reads, or writes through here.
"""

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from capsule_manifest.errors import Failed, Refused

__all__ = [
    "exclusive",
    "link_file",
    "make_folder",
    "publish_once",
    "publish_path",
    "read_bounded",
    "replace_file",
]

_PRIVATE_FOLDER = 0o700


def make_folder(folder: Path) -> None:
    """Create `folder` and its parents, private to this user, and make their names durable."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir(mode=_PRIVATE_FOLDER)
    _sync_folder(folder.parent)


def replace_file(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Replace `path` with `data`, durably and at once.

    Raises:
        Failed: `controller-disk`.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        _write(temporary, data, mode)
        os.rename(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise _failed("a file can't be written", path) from error
    finally:
        temporary.unlink(missing_ok=True)


def publish_once(path: Path, data: bytes, *, mode: int = 0o600) -> bool:
    """Write `path` if it does not exist; return False, changing nothing, if it does.

    Raises:
        Failed: `controller-disk`.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        _write(temporary, data, mode)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        _sync_folder(path.parent)
    except OSError as error:
        raise _failed("a file can't be written", path) from error
    finally:
        temporary.unlink(missing_ok=True)
    return True


def link_file(source: Path, target: Path) -> None:
    """Give a file that is never written again a second name; copy it where that can't be.

    The name becomes durable with the folder that holds it, in `publish_path`.

    Raises:
        Failed: `controller-disk`.
    """
    if target.exists():
        return
    try:
        os.link(source, target)
    except OSError:
        # Another file system, one without links, or too many of them.
        try:
            shutil.copyfile(source, target)
        except OSError as error:
            raise _failed("a file can't be copied", target) from error


def publish_path(work: Path, path: Path) -> None:
    """Give a complete file or folder its name, durably: no name is ever seen on half of it.

    A file takes the place of an older one; a folder needs a name that is free or an empty folder.
    Modes become 0644 and 0755, whatever this process's umask was.

    Raises:
        Failed: `controller-disk`.
    """
    try:
        # Bottom up, so that a folder's sync also covers the names that it holds.
        for item in sorted((work, *work.rglob("*")), reverse=True):
            is_folder = item.is_dir()
            item.chmod(0o755 if is_folder else 0o644)
            descriptor = os.open(item, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        os.rename(work, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise _failed("a file or folder can't be written", path) from error


def read_bounded(path: Path, size_bytes_max: int) -> bytes | None:
    """Return the bytes of a file, or None if it is not there.

    Raises:
        Failed: `controller-disk` when it can't be read.
        Refused: `document-invalid` when it is larger than `size_bytes_max`.
    """
    try:
        with path.open("rb") as stream:
            data = stream.read(size_bytes_max + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _failed("a file can't be read", path) from error
    if len(data) > size_bytes_max:
        raise Refused(
            "document-invalid",
            "a file is too large",
            expected=f"at most {size_bytes_max} bytes",
            where=path,
        )
    return data


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the lock file `path` while the block runs; the kernel frees it if this process dies.

    Raises:
        Failed: `controller-busy` when another process holds it.
    """
    make_folder(path.parent)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in {errno.EWOULDBLOCK, errno.EACCES}:
                raise
            raise Failed(
                "controller-busy",
                "another capsule command works with the same controller folder",
                where=path,
                retryable=True,
            ) from None
        yield
    finally:
        os.close(descriptor)


def _write(path: Path, data: bytes, mode: int) -> None:
    path.unlink(missing_ok=True)  # left by a process that was killed and had our number
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, mode)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
        stream.flush()
        # Before the name exists: a rename may reach the disk before the bytes do.
        os.fsync(stream.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # The name itself is data of the folder.
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _failed(what: str, path: Path) -> Failed:
    return Failed("controller-disk", what, where=path)
