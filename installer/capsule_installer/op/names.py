"""Run lists of name operations on a disk: the half of `rescue.sh` that Python does as well.

Each operation is done already when its source or path is gone, so a list is simply run again after
a stop anywhere in it. Making the new names durable is a step of its own, one fsync a folder.
"""

from collections.abc import Iterable

from capsule_installer.op.switch_plan import NameOperation, Rename, Unlink, folders_of
from capsule_installer.system.disk import Disk, FileKind
from capsule_manifest.errors import Failed

__all__ = ["apply_names", "sync_names"]


def apply_names(disk: Disk, operations: Iterable[NameOperation]) -> None:
    """Run a list from its beginning.

    Raises:
        Failed: `switch-target-blocked` when a folder stands where a name shall be; `disk-*`.
    """
    for operation in operations:
        match operation:
            case Rename(source=source, target=target):
                _rename(disk, source, target)
            case Unlink(path=path):
                if disk.stat(path) is not None:
                    disk.unlink(path)


def sync_names(disk: Disk, operations: Iterable[NameOperation], why: str) -> None:
    """Make durable what a list did. Raises: `disk-*`."""
    for folder in folders_of(operations):
        if disk.stat(folder) is not None:
            disk.fsync_dir(folder, why)


def _rename(disk: Disk, source: str, target: str) -> None:
    waiting = disk.stat(source)
    if waiting is None:
        return
    present = disk.stat(target)
    if present is not None and present.kind is FileKind.DIRECTORY:
        raise Failed("switch-target-blocked", "a folder is where a file shall be", where=target)
    if present is not None and present.inode == waiting.inode:
        # rename(2) does nothing when both names are of one inode, and would leave `source`.
        disk.unlink(source)
        return
    disk.rename(source, target)
