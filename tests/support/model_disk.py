"""A disk in memory that forgets at power loss whatever was not made durable.

It keeps what the kernel promises and nothing more. A file's bytes are durable after its `fsync`;
before, they may be the old ones, none, torn, or the new ones. A change of names is durable after
`fsync_dir` of a folder that it touches; before, each change may be lost by itself and in any order,
but a rename is never half done. `sync_filesystem` makes everything durable.

`ModelDisk(skip={label})` ignores every fsync that gives this label as its `why`: a test that still
passes then has not shown that the fsync is needed. `survivors` yields the disks that a power loss
may leave.

A copy shares every inode with its origin until one of them changes it: crash tests copy a disk
after each of its writes.
"""

import errno
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import BinaryIO, Self

from capsule_installer.system.disk import Disk, FileKind, FileStat, Lock, Writer
from capsule_manifest.errors import Failed

__all__ = ["ModelDisk", "survivor", "survivors"]

_ROOT = 1


@dataclass(slots=True)
class Inode:
    """A file, folder or link. `durable` is a file's content after its last fsync."""

    kind: FileKind
    mode: int
    data: bytes = b""
    durable: bytes | None = None
    target: str = ""
    names: dict[str, int] = field(default_factory=dict)
    durable_names: dict[str, int] = field(default_factory=dict)
    uid: int = 0
    gid: int = 0
    links: int = 0

    @property
    def is_unsure(self) -> bool:
        """Say whether a power loss may change the bytes."""
        return self.kind is FileKind.FILE and self.durable is not self.data

    def copy(self) -> "Inode":
        return Inode(
            self.kind,
            self.mode,
            self.data,
            self.durable,
            self.target,
            dict(self.names),
            dict(self.durable_names),
            self.uid,
            self.gid,
            self.links,
        )


@dataclass(frozen=True, slots=True)
class NameChange:
    """One change of names that is not durable yet: (folder, name) to inode, None when removed."""

    entries: tuple[tuple[int, str, int | None], ...]


class ModelDisk:
    """See the module. Implements `Disk`."""

    def __init__(self, *, skip: Iterable[str] = ()) -> None:
        self.inodes: dict[int, Inode] = {_ROOT: Inode(FileKind.DIRECTORY, 0o755)}
        self.pending: list[NameChange] = []
        self.skip = frozenset(skip)
        self.labels: set[str] = set()
        self.locked: set[str] = set()
        self.free_bytes = 2**40
        self.free_inodes = 2**20
        # Below this folder no file can have a second name, as on some file systems.
        self.unlinkable = ""
        self._next = _ROOT + 1
        # The inodes that no copy of this disk shares.
        self._owned = {_ROOT}

    def fingerprint(self) -> int:
        """Return a number that is equal for disks with equal names, bytes, modes and owners."""
        return self._content(_ROOT)

    def copy(self) -> "ModelDisk":
        """Return an independent disk in the same state, without anybody's locks."""
        other = ModelDisk(skip=self.skip)
        other.inodes = dict(self.inodes)
        other._owned = set()
        self._owned = set()
        other.pending = list(self.pending)
        other.labels = self.labels
        other.unlinkable = self.unlinkable
        other.free_bytes, other.free_inodes = self.free_bytes, self.free_inodes
        other._next = self._next
        return other

    # --- reading -------------------------------------------------------------------------------

    def read(self, path: str, size_bytes_max: int) -> bytes:
        data = self._file(path).data
        assert len(data) <= size_bytes_max, path
        return data

    def stat(self, path: str) -> FileStat | None:
        try:
            number = self._find(path)
        except FileNotFoundError:
            return None
        inode = self.inodes[number]
        return FileStat(
            kind=inode.kind,
            mode=inode.mode,
            size_bytes=len(inode.data),
            links=inode.links,
            inode=number,
            uid=inode.uid,
            gid=inode.gid,
        )

    def list(self, path: str) -> list[str]:
        return sorted(self._folder(path).names)

    def list_inodes(self, path: str) -> dict[str, int]:
        return dict(self._folder(path).names)

    def read_link(self, path: str) -> str:
        return self.inodes[self._find(path)].target

    def open_read(self, path: str) -> BinaryIO:
        return io.BytesIO(self._file(path).data)

    def free(self, path: str) -> tuple[int, int]:
        del path
        return self.free_bytes, self.free_inodes

    # --- writing -------------------------------------------------------------------------------

    def create(self, path: str, mode: int) -> Writer:
        if self.stat(path) is not None:
            raise FileExistsError(path)
        number = self._add(Inode(FileKind.FILE, mode), path)
        return _ModelWriter(self, number)

    def put(self, path: str, data: bytes | memoryview, mode: int) -> None:
        with self.create(path, mode) as writer:
            writer.write(data)

    def grow(self, path: str, keep_bytes: int) -> Writer:
        number = self._find(path)
        inode = self.own(number)
        assert inode.kind is FileKind.FILE, path
        inode.data = inode.data[:keep_bytes]
        return _ModelWriter(self, number)

    def rename(self, source: str, target: str) -> None:
        number = self._find(source)
        present = self.stat(target)
        if present is not None and present.inode == number:
            return
        self._change((source, None), (target, number))

    def link(self, source: str, target: str) -> None:
        if self.stat(target) is not None:
            raise FileExistsError(target)
        if self.unlinkable and target.startswith(self.unlinkable):
            raise OSError(errno.EPERM, "no second names here", target)
        self._change((target, self._find(source)))

    def symlink(self, target: str, path: str) -> None:
        if self.stat(path) is not None:
            raise FileExistsError(path)
        self._add(Inode(FileKind.LINK, 0o777, target=target), path)

    def unlink(self, path: str) -> None:
        number = self._find(path)
        assert self.inodes[number].kind is not FileKind.DIRECTORY, path
        self._change((path, None))

    def mkdir(self, path: str, mode: int) -> None:
        if self.stat(path) is not None:
            raise FileExistsError(path)
        self._add(Inode(FileKind.DIRECTORY, mode), path)

    def rmdir(self, path: str) -> None:
        assert not self._folder(path).names, path
        self._change((path, None))

    def chmod(self, path: str, mode: int) -> None:
        self.own(self._find(path)).mode = mode

    def chown(self, path: str, uid: int, gid: int) -> None:
        inode = self.own(self._find(path))
        inode.uid, inode.gid = uid, gid

    def fsync_dir(self, path: str, why: str) -> None:
        number = self._find(path)
        if self._ignores(why):
            return
        kept: list[NameChange] = []
        for change in self.pending:
            if any(folder == number for folder, _, _ in change.entries):
                # A rename between folders is one change: durable in both at once.
                self._settle(change)
            else:
                kept.append(change)
        self.pending = kept

    def sync_filesystem(self, path: str, why: str) -> None:
        del path
        if self._ignores(why):
            return
        for change in self.pending:
            self._settle(change)
        self.pending = []
        for number, inode in list(self.inodes.items()):
            if inode.is_unsure:
                self.own(number).durable = inode.data

    def begin_sync(self, path: str) -> None:
        del path  # it promises nothing, so nothing may be relied upon

    def end_sync(self) -> None:
        pass  # nothing was begun

    def lock(self, path: str) -> Lock:
        if path in self.locked:
            raise Failed("host-busy", "locked", where=path, retryable=True)
        if self.stat(path) is None:
            self.create(path, 0o600).close()
        self.locked.add(path)
        return _ModelLock(self, path)

    # --- inside --------------------------------------------------------------------------------

    def own(self, number: int) -> Inode:
        """Return an inode to change: from now on it is this disk's alone."""
        if number not in self._owned:
            self.inodes[number] = self.inodes[number].copy()
            self._owned.add(number)
        return self.inodes[number]

    def _content(self, number: int) -> int:
        inode = self.inodes[number]
        own = (inode.data, inode.target, inode.mode, inode.uid, inode.gid, inode.links)
        if inode.kind is not FileKind.DIRECTORY:
            return hash(own)
        held = frozenset((name, self._content(child)) for name, child in inode.names.items())
        return hash((own, held))

    def _ignores(self, why: str) -> bool:
        self.labels.add(why)
        return why in self.skip

    def _add(self, inode: Inode, path: str) -> int:
        number = self._next
        self._next += 1
        self.inodes[number] = inode
        self._owned.add(number)
        self._change((path, number))
        return number

    def _change(self, *changes: tuple[str, int | None]) -> None:
        entries = []
        for path, number in changes:
            folder, name = self._place(path)
            entries.append((folder, name, number))
        for folder, name, number in entries:
            names = self.own(folder).names
            for other, step in ((names.get(name), -1), (number, 1)):
                if other is not None:
                    self.own(other).links += step
            _put(names, name, number)
        self.pending.append(NameChange(tuple(entries)))

    def _settle(self, change: NameChange) -> None:
        for folder, name, number in change.entries:
            _put(self.own(folder).durable_names, name, number)

    def _find(self, path: str) -> int:
        number = _ROOT
        for part in path.strip("/").split("/"):
            if part:
                names = self.inodes[number].names
                if part not in names:
                    raise FileNotFoundError(path)
                number = names[part]
        return number

    def _place(self, path: str) -> tuple[int, str]:
        folder, _, name = path.rpartition("/")
        number = self._find(folder)
        assert self.inodes[number].kind is FileKind.DIRECTORY, path
        return number, name

    def _file(self, path: str) -> Inode:
        inode = self.inodes[self._find(path)]
        assert inode.kind is FileKind.FILE, path
        return inode

    def _folder(self, path: str) -> Inode:
        inode = self.inodes[self._find(path)]
        assert inode.kind is FileKind.DIRECTORY, path
        return inode


class _ModelWriter:
    def __init__(self, disk: ModelDisk, number: int) -> None:
        self._disk = disk
        self._number = number

    def write(self, data: bytes | memoryview) -> None:
        self._disk.own(self._number).data += bytes(data)

    def fsync(self, why: str) -> None:
        if not self._disk._ignores(why):
            inode = self._disk.own(self._number)
            inode.durable = inode.data

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _ModelLock:
    def __init__(self, disk: ModelDisk, path: str) -> None:
        self._disk = disk
        self._path = path

    def release(self) -> None:
        self._disk.locked.discard(self._path)


def survivors(
    disk: ModelDisk, *, alone: Iterable[int] | None = None
) -> Iterator[tuple[str, ModelDisk]]:
    """Yield (how, disk) for states that a power loss now may leave.

    All changes of names lost or kept, each with the bytes that no fsync made durable lost, torn in
    half, or kept; then each change lost alone while the bytes are kept, and kept alone without
    them. `alone` limits the latter to some of `pending`.
    """
    count = len(disk.pending)
    everything = frozenset(range(count))
    # Where all bytes are durable the three are one.
    is_unsure = any(inode.is_unsure for inode in disk.inodes.values())
    for data in ("lost", "kept", "torn") if is_unsure else ("kept",):
        yield f"no change of names kept, bytes {data}", survivor(disk, frozenset(), data)
        if everything:
            yield f"all changes of names kept, bytes {data}", survivor(disk, everything, data)
    chosen = range(count) if alone is None else alone
    for index in chosen if count > 1 else ():
        names = "/".join(name for _, name, _ in disk.pending[index].entries)
        change = f"change {index} ({names})"
        yield f"{change} lost, bytes kept", survivor(disk, everything - {index}, "kept")
        yield f"only {change} kept, bytes lost", survivor(disk, frozenset({index}), "lost")


def survivor(disk: ModelDisk, kept: frozenset[int], data: str) -> ModelDisk:
    """Return what a power loss leaves that keeps these of the pending changes of names.

    `data` says what becomes of bytes that no fsync made durable: `lost`, `kept` or `torn`.
    """
    other = disk.copy()
    other.pending = []
    for number, inode in disk.inodes.items():
        if inode.is_unsure:
            left = other.own(number)
            left.data = left.durable = _content(inode, data)
    changed = {n for change in disk.pending for n, _, _ in change.entries}
    changed |= {n for n, inode in disk.inodes.items() if inode.names != inode.durable_names}
    names = {number: dict(disk.inodes[number].durable_names) for number in changed}
    for index in sorted(kept):
        for folder, name, child in disk.pending[index].entries:
            _put(names[folder], name, child)
    for number, left_names in names.items():
        folder_left = other.own(number)
        for children, step in ((folder_left.names, -1), (left_names, 1)):
            for child in children.values():
                other.own(child).links += step
        folder_left.names, folder_left.durable_names = left_names, dict(left_names)
    return other


def _content(inode: Inode, data: str) -> bytes:
    if data == "kept" or inode.durable == inode.data:
        return inode.data
    if data == "torn" and len(inode.data) > 1:
        return inode.data[: len(inode.data) // 2]
    return inode.durable or b""


def _put(names: dict[str, int], name: str, number: int | None) -> None:
    if number is None:
        names.pop(name, None)
    else:
        names[name] = number


_: type[Disk] = ModelDisk
