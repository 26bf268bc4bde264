"""The hold file: while it is there no managed unit starts, not even by an automatic restart.

Each rendered unit carries a condition on it. Its content names the op that placed it. It is placed
by linking a file that the op prepared, so that placing needs no space.
"""

from capsule_installer.host.layout import Layout
from capsule_installer.op.op_folder import OpFile, OpFolder
from capsule_installer.system.disk import Disk

__all__ = ["hold_reason", "place_hold", "remove_hold"]

_SIZE_BYTES_MAX = 4096


def place_hold(disk: Disk, layout: Layout, op: OpFolder) -> None:
    """Place the hold of `op`; an existing hold is kept. Durable. Raises: `disk-*`."""
    if disk.stat(layout.hold) is None:
        disk.link(f"{op.path}/{OpFile.HOLD}", layout.hold)
    # From here on names change: after a power cut nothing may start on a mixture of two releases.
    disk.fsync_dir(layout.var, "hold's name")


def remove_hold(disk: Disk, layout: Layout) -> None:
    """Let units start. Durable. Raises: `disk-*`."""
    if disk.stat(layout.hold) is not None:
        disk.unlink(layout.hold)
    # A hold that comes back after a power cut would keep a committed node down.
    disk.fsync_dir(layout.var, "hold's removal")


def hold_reason(disk: Disk, layout: Layout) -> str | None:
    """Return what the hold says, None when there is none."""
    try:
        raw = disk.read(layout.hold, _SIZE_BYTES_MAX)
    except FileNotFoundError:
        return None
    return raw.decode("utf-8", "replace").strip()
