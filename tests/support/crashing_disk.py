"""Stop a program before, within or after its n-th write to a disk.

`CrashingDisk` counts the primitives that write. When the count is reached it raises `Stopped`,
which is no `Exception`, and from then on every write raises it again: clean-up code does nothing
that a stopped program would not have done.

With `watch` one run shows every such moment: it is called before the first write, in the middle of
each write of bytes, and after each write, with the moment and what is written.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from types import TracebackType
from typing import BinaryIO, Self

from capsule_installer.system.disk import Disk, FileStat, Lock, Writer

__all__ = ["CrashingDisk", "Moment", "Stopped"]


class Moment(StrEnum):
    """When a program is stopped, relative to one write."""

    BEFORE = "before"
    WITHIN = "within"
    AFTER = "after"


class Stopped(BaseException):
    """The program was stopped here; `where` names the primitive and its path."""


class CrashingDisk:
    """Pass everything to `disk` until the write number `stop_at`, counted from 1. 0 never stops."""

    def __init__(
        self,
        disk: Disk,
        *,
        stop_at: int = 0,
        moment: Moment = Moment.BEFORE,
        watch: Callable[[Moment, str], None] | None = None,
    ) -> None:
        self._disk = disk
        self._stop_at = stop_at
        self._moment = moment
        self._watch = watch
        self._is_stopped = False
        self.writes: list[str] = []

    @property
    def count(self) -> int:
        """Return how many writes were asked for."""
        return len(self.writes)

    # --- reading -------------------------------------------------------------------------------

    def read(self, path: str, size_bytes_max: int) -> bytes:
        return self._disk.read(path, size_bytes_max)

    def stat(self, path: str) -> FileStat | None:
        return self._disk.stat(path)

    def list(self, path: str) -> list[str]:
        return self._disk.list(path)

    def list_inodes(self, path: str) -> Mapping[str, int]:
        return self._disk.list_inodes(path)

    def read_link(self, path: str) -> str:
        return self._disk.read_link(path)

    def open_read(self, path: str) -> BinaryIO:
        return self._disk.open_read(path)

    def free(self, path: str) -> tuple[int, int]:
        return self._disk.free(path)

    def lock(self, path: str) -> Lock:
        return self._disk.lock(path)

    # --- writing -------------------------------------------------------------------------------

    def create(self, path: str, mode: int) -> Writer:
        made: list[Writer] = []
        self.step(f"create {path}", lambda: made.append(self._disk.create(path, mode)))
        return _CrashingWriter(self, made[0], path)

    def put(self, path: str, data: bytes | memoryview, mode: int) -> None:
        with self.create(path, mode) as writer:
            writer.write(data)

    def grow(self, path: str, keep_bytes: int) -> Writer:
        made: list[Writer] = []
        self.step(f"grow {path}", lambda: made.append(self._disk.grow(path, keep_bytes)))
        return _CrashingWriter(self, made[0], path)

    def rename(self, source: str, target: str) -> None:
        self.step(f"rename {source} {target}", lambda: self._disk.rename(source, target))

    def link(self, source: str, target: str) -> None:
        self.step(f"link {source} {target}", lambda: self._disk.link(source, target))

    def symlink(self, target: str, path: str) -> None:
        self.step(f"symlink {path}", lambda: self._disk.symlink(target, path))

    def unlink(self, path: str) -> None:
        self.step(f"unlink {path}", lambda: self._disk.unlink(path))

    def mkdir(self, path: str, mode: int) -> None:
        self.step(f"mkdir {path}", lambda: self._disk.mkdir(path, mode))

    def rmdir(self, path: str) -> None:
        self.step(f"rmdir {path}", lambda: self._disk.rmdir(path))

    def chmod(self, path: str, mode: int) -> None:
        self.step(f"chmod {path}", lambda: self._disk.chmod(path, mode))

    def chown(self, path: str, uid: int, gid: int) -> None:
        self.step(f"chown {path}", lambda: self._disk.chown(path, uid, gid))

    def fsync_dir(self, path: str, why: str) -> None:
        self.step(f"fsync_dir {path} {why}", lambda: self._disk.fsync_dir(path, why))

    def sync_filesystem(self, path: str, why: str) -> None:
        self.step(f"sync {path} {why}", lambda: self._disk.sync_filesystem(path, why))

    def begin_sync(self, path: str) -> None:
        self._disk.begin_sync(path)

    def end_sync(self) -> None:
        self._disk.end_sync()

    def step(
        self,
        where: str,
        action: Callable[[], None],
        halves: tuple[Callable[[], None], Callable[[], None]] | None = None,
    ) -> None:
        """Count one write and do it, or stop; `halves` do the same in two pieces."""
        if self._is_stopped:
            raise Stopped(where)
        self.writes.append(where)
        if self.count == self._stop_at:
            self._is_stopped = True
            if self._moment is Moment.AFTER:
                action()
            elif self._moment is Moment.WITHIN and halves is not None:
                halves[0]()
            raise Stopped(f"{self._moment} write {self.count}: {where}")
        if self._watch is None:
            action()
        else:
            self._show(where, action, halves, self._watch)

    def _show(
        self,
        where: str,
        action: Callable[[], None],
        halves: tuple[Callable[[], None], Callable[[], None]] | None,
        watch: Callable[[Moment, str], None],
    ) -> None:
        if self.count == 1:
            # Before any other is the same as after the one before it.
            watch(Moment.BEFORE, where)
        if halves is None:
            action()
        else:
            halves[0]()
            watch(Moment.WITHIN, where)
            halves[1]()
        watch(Moment.AFTER, where)


class _CrashingWriter:
    def __init__(self, disk: CrashingDisk, writer: Writer, path: str) -> None:
        self._disk = disk
        self._writer = writer
        self._path = path

    def write(self, data: bytes | memoryview) -> None:
        raw, half = bytes(data), len(data) // 2
        self._disk.step(
            f"write {self._path}",
            lambda: self._writer.write(data),
            (lambda: self._writer.write(raw[:half]), lambda: self._writer.write(raw[half:])),
        )

    def fsync(self, why: str) -> None:
        self._disk.step(f"fsync {self._path} {why}", lambda: self._writer.fsync(why))

    def close(self) -> None:
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


_: type[Disk] = CrashingDisk
