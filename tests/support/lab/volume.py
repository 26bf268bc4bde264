"""The disk of one lab host: an ext4 file system in a file, over the read-only base tree.

A disk of its own makes three faults real: it can be full, it can go read-only by itself, and it
can lose power with everything that was not fsynced.
"""

import fcntl
import os
import shutil
from pathlib import Path

from support.lab.commands import command

__all__ = ["Volume"]

_EXT4_IOC_SHUTDOWN = 0x8004587D
_GOING_NO_FLUSH = 2
_BLOCK_BYTES = 4096
_COMMIT_S = 600  # the kernel's own commits would hide a missing fsync for 5 s in every 10


class Volume:
    """A file-backed disk below `folder`, and the root tree that it makes with the base."""

    def __init__(self, folder: Path, base: Path) -> None:
        self._file = folder / "disk.img"
        self._mount = folder / "disk"
        self._base = base
        self.root = folder / "root"

    def make(self, size_bytes: int, inodes: int) -> None:
        """Make an empty disk. The file is sparse: it takes the space that is written to."""
        with self._file.open("wb") as file:
            file.truncate(size_bytes)
        # What would be zeroed is a hole of the file already: a few MB a host, not 170.
        lazy = ("-E", "lazy_itable_init=1,lazy_journal_init=1")
        command("mkfs.ext4", "-q", "-F", "-m", "0", *lazy, "-N", str(inodes), self._file)

    def mount(self) -> None:
        """Mount disk and root tree, after repairing what a lost power or an error left."""
        if os.path.ismount(self.root):
            return
        # Exit code 1 says that something was repaired, which a fault makes likely.
        command("fsck.ext4", "-p", self._file, check=False)
        self._mount.mkdir(exist_ok=True)
        self.root.mkdir(exist_ok=True)
        options = f"loop,noinit_itable,errors=remount-ro,commit={_COMMIT_S}"
        command("mount", "-o", options, self._file, self._mount)
        upper, work = self._mount / "upper", self._mount / "work"
        upper.mkdir(exist_ok=True)
        work.mkdir(exist_ok=True)
        overlay = f"lowerdir={self._base},upperdir={upper},workdir={work}"
        command("mount", "-t", "overlay", "overlay", "-o", overlay, self.root)

    def unmount(self) -> None:
        """Unmount both; nothing may run in them any more."""
        for place in (self.root, self._mount):
            while os.path.ismount(place):
                command("umount", place)

    def lose_power(self) -> None:
        """Drop everything that was not fsynced, at once; every later access fails."""
        handle = os.open(self._mount, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(handle, _EXT4_IOC_SHUTDOWN, _GOING_NO_FLUSH.to_bytes(4, "little"))
        finally:
            os.close(handle)

    def fail(self) -> None:
        """Let the file system find an error: it goes read-only until it is mounted again."""
        command("mount", "-o", "remount,abort", self._mount)

    def fill(self, *, leave_bytes: int) -> None:
        """Take all space but so many bytes; the host sees its root full."""
        handle = os.open(self._mount / "filler", os.O_CREAT | os.O_WRONLY)
        try:
            piece = self._free() - leave_bytes
            while piece >= _BLOCK_BYTES:
                try:
                    os.posix_fallocate(handle, os.fstat(handle).st_size, piece)
                except OSError:
                    piece //= 2  # the file system needs some of it to note where the rest is
                else:
                    piece = min(piece, self._free() - leave_bytes)
        finally:
            os.close(handle)

    def fill_inodes(self) -> None:
        """Take every inode; nothing can be created, while files can still be written."""
        folder = self._mount / "empty"
        folder.mkdir(exist_ok=True)
        for number in range(os.statvfs(self._mount).f_favail):
            (folder / str(number)).touch()

    def empty(self) -> None:
        """Give back what `fill` and `fill_inodes` took."""
        (self._mount / "filler").unlink(missing_ok=True)
        shutil.rmtree(self._mount / "empty", ignore_errors=True)

    def _free(self) -> int:
        facts = os.statvfs(self._mount)
        return facts.f_bavail * facts.f_frsize
