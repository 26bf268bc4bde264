"""Durable operations made of primitives, each with the reason for each of its fsyncs.

After a call returned, its effect survives power loss; after a stop inside a call, the old or the
new state is there whole, and at most a temporary name is left, which the next call removes.
"""

import os
from contextlib import suppress

from capsule_installer.system.disk import Disk, FileKind
from capsule_manifest.errors import Failed

__all__ = [
    "keep_name",
    "make_dirs",
    "publish_once",
    "remove_tree",
    "replace_file",
    "switch_link",
]


def replace_file(disk: Disk, path: str, data: bytes, mode: int) -> None:
    """Give `path` the content `data`, whole or not at all. Needs one writer at a time.

    Raises: `disk-*`.
    """
    temporary = _temporary(path)
    _write_temporary(disk, temporary, data, mode)
    disk.rename(temporary, path)
    # The new name is in the page cache only: without this the caller goes on, power fails, and the
    # old content is back under what was built on the new.
    disk.fsync_dir(_folder(path), "replaced file's name")


def publish_once(disk: Disk, path: str, data: bytes, mode: int) -> bool:
    """Create `path` with `data` if it does not exist; False if it does, with either content.

    Of several writers exactly one wins: link(2) fails where a name exists, rename(2) would not.

    Raises: `disk-*`.
    """
    # Writers race here by design, so each has a temporary name of its own: with a shared one the
    # first could publish what the second has half written.
    temporary = f"{_temporary(path)}.{os.getpid()}"
    _write_temporary(disk, temporary, data, mode)
    try:
        disk.link(temporary, path)
    except FileExistsError:
        won = False
    else:
        won = True
    disk.unlink(temporary)
    # Also for the loser: what he now acts on must not vanish either, and the winner may have been
    # stopped before his own fsync.
    disk.fsync_dir(_folder(path), "published file's name")
    return won


def make_dirs(disk: Disk, path: str, mode: int) -> None:
    """Make a folder and its missing parents, durable each. An existing one keeps its mode.

    Raises: `disk-*`.
    """
    if disk.stat(path) is not None:
        _keep_folder(disk, path)
        return
    parent = _folder(path)
    make_dirs(disk, parent, mode)
    with suppress(FileExistsError):
        # Whoever was faster may be stopped before his own fsync, and a boot looks only once.
        disk.mkdir(path, mode)
    # A file that is durable in a folder whose own name is not is lost with the folder.
    disk.fsync_dir(parent, "new folder's name")


def keep_name(disk: Disk, path: str) -> None:
    """Make a name durable that was found; whoever gave it may have been stopped before its fsync.

    To be called wherever finding something already there is a reason to do nothing and to go on.

    Raises: `disk-*`.
    """
    disk.fsync_dir(_folder(path), "found name")


def remove_tree(disk: Disk, path: str) -> None:
    """Remove a file, link or folder with all that is in it; nothing there is no error.

    Not durable: a removal that power loss undoes is done again by whoever finds the remains.
    Links are removed, never followed. Raises: `disk-*`.
    """
    found = disk.stat(path)
    if found is None:
        return
    if found.kind is not FileKind.DIRECTORY:
        disk.unlink(path)
        return
    if found.mode & 0o700 != 0o700:
        disk.chmod(path, 0o700)
    for name in disk.list(path):
        remove_tree(disk, f"{path}/{name}")
    disk.rmdir(path)


def switch_link(disk: Disk, path: str, target: str) -> None:
    """Let the link `path` point to `target`, whole or not at all.

    Raises: `disk-*`.
    """
    temporary = _temporary(path)
    remove_tree(disk, temporary)
    disk.symlink(target, temporary)
    disk.rename(temporary, path)
    # Without this the switch may come undone after the caller has said that it is done.
    disk.fsync_dir(_folder(path), "switched link's name")


def _keep_folder(disk: Disk, path: str) -> None:
    try:
        keep_name(disk, path)
    except Failed as error:
        # Where this user may not even look he has made no folder either.
        if error.error_id != "disk-denied":
            raise


def _write_temporary(disk: Disk, temporary: str, data: bytes, mode: int) -> None:
    try:
        writer = disk.create(temporary, mode)
    except FileExistsError:
        # Left by a stop: its content is unknown, so it is never reused.
        disk.unlink(temporary)
        writer = disk.create(temporary, mode)
    with writer:
        writer.write(data)
        # Data first, then the name: many file systems make a rename durable before the data, and
        # the file is then empty or torn under its final name.
        writer.fsync("temporary file's data")


def _temporary(path: str) -> str:
    # In the same folder: a rename over file systems is a copy and not atomic.
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.tmp"


def _folder(path: str) -> str:
    return path.rpartition("/")[0] or "/"
