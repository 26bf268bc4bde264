"""A generation on disk: signed trees realised as links into the store, at their final path.

Paths come from listings that were checked entry by entry, and everything lies in folders that only
the host's own user can write: so no name leads out of a generation, and nobody can swap one under
the program's feet.

Files lose their write bits: 0644 becomes 0444. Modes that keep others out can't be of a shared
inode, so such files are copies.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from capsule_installer.staging.store import ObjectStore, hash_file
from capsule_installer.system.disk import Disk, FileKind, FileStat
from capsule_installer.system.fsops import remove_tree
from capsule_manifest.digest import ObjectId
from capsule_manifest.release import ComponentKind
from capsule_manifest.tree import Entry, EntryKind, Tree

__all__ = ["LINKED_KINDS", "Problem", "disk_mode", "is_whole", "problems_of", "realise"]

LINKED_KINDS: Final = frozenset(
    {
        ComponentKind.SOURCE,
        ComponentKind.TOOLCHAIN,
        ComponentKind.WHEELS,
        ComponentKind.HELPER,
        ComponentKind.IMAGE,
        ComponentKind.RECOVERY,
    }
)
"""Components whose tree lies in the generation, in a folder of their name."""

_SHARED_MODES: Final = frozenset({0o444, 0o555})
_NO_WRITE: Final = ~0o222
_CHUNK_BYTES: Final = 1024 * 1024
_KINDS: Final = {
    EntryKind.FILE: FileKind.FILE,
    EntryKind.DIRECTORY: FileKind.DIRECTORY,
    EntryKind.LINK: FileKind.LINK,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One path that is not as its listing says. `what` is a class of `capsule verify`."""

    path: str
    what: str


def disk_mode(entry: Entry) -> int:
    """Return the mode that a file or folder of a tree has on disk."""
    return entry.mode & _NO_WRITE if entry.kind is EntryKind.FILE else entry.mode


def realise(disk: Disk, store: ObjectStore, tree: Tree, folder: str) -> None:
    """Make `folder` hold `tree`; what is right already stays, what is wrong is replaced.

    A file is replaced by renaming over it, so that whoever runs from the folder finds the old or
    the new one. Into a folder that is not there yet everything goes without a look. Not durable
    before the file system is synced.

    Raises:
        Refused: `object-malformed` when an object is not held.
        Failed: `disk-*`.
    """
    is_new = disk.stat(folder) is None
    for entry in (Entry(path="", kind=EntryKind.DIRECTORY, mode=0o755), *tree.entries):
        path = f"{folder}/{entry.path}" if entry.path else folder
        found = None if is_new else disk.stat(path)
        match entry.kind:
            case EntryKind.DIRECTORY:
                _make_folder(disk, path, entry.mode, found)
            case EntryKind.LINK:
                _make_link(disk, path, entry.target or "", found)
            case EntryKind.FILE:
                _make_file(disk, store, entry, path, found)


def problems_of(disk: Disk, tree: Tree, folder: str) -> Iterator[Problem]:
    """Yield what differs in kind, size, mode or link target: one lstat an entry, nothing hashed.

    Raises: `disk-*`.
    """
    for entry in tree.entries:
        path = f"{folder}/{entry.path}"
        found = disk.stat(path)
        what = _problem(disk, entry, path, found)
        if what is not None:
            yield Problem(path=path, what=what)


def is_whole(disk: Disk, store: ObjectStore | None, tree: Tree, folder: str) -> bool:
    """Say whether `folder` holds `tree`, as far as that is known without hashing links.

    A file with another name is a link to an object, and right if that object is still held: damaged
    ones are taken out of the store by `capsule verify --quarantine`. A file with one name is a copy
    that nothing else vouches for, so it is hashed. Without a store all files are such.

    Raises: `disk-*`.
    """
    file = FileKind.FILE
    for entry in tree.entries:
        path = f"{folder}/{entry.path}"
        found = disk.stat(path)
        if entry.object is None:
            if _problem(disk, entry, path, found) is not None:
                return False
            continue
        # There are many, so the checks of `_problem` stand here in one.
        if found is None or found[:3] != (file, entry.mode & _NO_WRITE, entry.size_bytes):
            return False
        if found.links > 1 and store is not None:
            if store.is_inode(entry.object, found.inode):
                continue
            if store.find(entry.object, entry.size_bytes) is None:
                return False
        elif hash_file(disk, path) != entry.object:
            return False
    return True


def _problem(disk: Disk, entry: Entry, path: str, found: FileStat | None) -> str | None:
    if found is None:
        return "missing"
    if found.kind is not _KINDS[entry.kind]:
        return "unexpected"
    if entry.kind is EntryKind.LINK:
        return None if disk.read_link(path) == entry.target else "digest-mismatch"
    if entry.kind is EntryKind.FILE and found.size_bytes != entry.size_bytes:
        return "size-mismatch"
    return None if found.mode == disk_mode(entry) else "mode-mismatch"


def _make_folder(disk: Disk, path: str, mode: int, found: FileStat | None) -> None:
    if found is not None and found.kind is not FileKind.DIRECTORY:
        disk.unlink(path)
        found = None
    if found is None:
        disk.mkdir(path, mode)
    elif found.mode != mode:
        disk.chmod(path, mode)


def _make_link(disk: Disk, path: str, target: str, found: FileStat | None) -> None:
    if found is None:
        disk.symlink(target, path)
        return
    if found.kind is FileKind.LINK and disk.read_link(path) == target:
        return
    remove_tree(disk, _beside(path))
    disk.symlink(target, _beside(path))
    _replace(disk, path, found)


def _make_file(
    disk: Disk, store: ObjectStore, entry: Entry, path: str, found: FileStat | None
) -> None:
    assert entry.object is not None, "a file has an object"
    mode = disk_mode(entry)
    source = store.require(entry.object, entry.size_bytes, executable=bool(mode & 0o100))
    if found is not None:
        shared = disk.stat(source)
        if shared is not None and found.inode == shared.inode and mode in _SHARED_MODES:
            if found.mode != mode:
                disk.chmod(path, mode)
            return
        if _is_right_copy(disk, path, found, mode, entry.object):
            return
        remove_tree(disk, _beside(path))
        _link_or_copy(disk, source, _beside(path), mode)
        _replace(disk, path, found)
        return
    _link_or_copy(disk, source, path, mode)


def _is_right_copy(disk: Disk, path: str, found: FileStat, mode: int, digest: ObjectId) -> bool:
    if found.kind is not FileKind.FILE or found.mode != mode or found.links != 1:
        return False
    return hash_file(disk, path) == digest


def _link_or_copy(disk: Disk, source: str, path: str, mode: int) -> None:
    if mode in _SHARED_MODES:
        try:
            disk.link(source, path)
        except FileExistsError:
            raise
        except OSError:
            # Too many links to one inode, or a file system without links: a copy serves as well.
            pass
        else:
            return
    with disk.open_read(source) as file, disk.create(path, mode) as writer:
        while chunk := file.read(_CHUNK_BYTES):
            writer.write(chunk)


def _replace(disk: Disk, path: str, found: FileStat) -> None:
    if found.kind is FileKind.DIRECTORY:
        remove_tree(disk, path)
    disk.rename(_beside(path), path)


def _beside(path: str) -> str:
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name[:200]}.capsule-new"
