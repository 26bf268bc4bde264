"""Space and inodes put aside, so that a host can always go back, also on a full disk.

Staging can fill a disk to its last byte, and so can anybody else. A restore needs nothing: its
files were written before the stop. A rollback is an op of its own and writes some; what it needs is
kept here as files that are only ever removed. None of them has to survive a power cut: what lacks
is made good after each op.
"""

from typing import Final

from capsule_installer.op.effects import Effects
from capsule_installer.system.fsops import remove_tree
from capsule_manifest.errors import Failed

__all__ = ["ensure_spare", "free_spare"]

_FILES: Final = 128
_FILE_BYTES: Final = 4096
_NEEDED_BYTES: Final = 2 * 1024 * 1024
# On some file systems every further name of a file takes an inode as well.
_NEEDED_INODES: Final = 160


def ensure_spare(effects: Effects) -> None:
    """Put aside what a rollback needs, unless that would take the last that others need."""
    disk, folder = effects.disk, _folder(effects)
    if _is_short(effects):
        return
    try:
        effects.state.ensure_ballast()
        if disk.stat(folder) is None:
            disk.mkdir(folder, 0o700)
        present = set(disk.list(folder))
        for number in range(_FILES):
            name = f"{number:03}"
            if name not in present:
                with disk.create(f"{folder}/{name}", 0o600) as writer:
                    # Not zeros: a file system that compresses would reserve nothing.
                    writer.write(bytes(range(1, 129)) * (_FILE_BYTES // 128))
    except Failed as error:
        # The next op tries again; what has happened is told in any case.
        if error.error_id != "disk-full":
            raise


def free_spare(effects: Effects) -> None:
    """Give back all that was put aside if there is little left without it. Raises: `disk-*`."""
    if _is_short(effects):
        remove_tree(effects.disk, effects.layout.ballast)
        remove_tree(effects.disk, _folder(effects))


def _is_short(effects: Effects) -> bool:
    free_bytes, free_inodes = effects.disk.free(effects.layout.state)
    return free_bytes < _NEEDED_BYTES or free_inodes < _NEEDED_INODES


def _folder(effects: Effects) -> str:
    return f"{effects.layout.state}/spare"
