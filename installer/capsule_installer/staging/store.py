"""The object store: files named by the digest of their bytes, shared by all generations.

A name in the store proves nothing: power loss leaves names of files whose data never came. An
object counts as held only if a durable staged marker refers to it and its size is right, or if it
was hashed in this run. What does not count is replaced as a whole; an inode that a generation may
hold is never written into.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final

from blake3 import blake3

from capsule_installer.host.layout import Layout
from capsule_installer.system.disk import Disk, FileKind
from capsule_manifest.digest import ObjectId, blake3_text
from capsule_manifest.errors import Refused

__all__ = ["ObjectStore", "hash_file"]

_CHUNK_BYTES: Final = 1024 * 1024
_PLAIN_MODE: Final = 0o444
_EXECUTABLE_MODE: Final = 0o555


class ObjectStore:
    """Find and add objects. Writers hold the host's lock.

    `trusted` are objects to which durable markers refer.
    """

    def __init__(self, disk: Disk, layout: Layout, trusted: Iterable[ObjectId]) -> None:
        self._disk = disk
        self._layout = layout
        self._trusted = set(trusted)
        self._found: dict[ObjectId, str | None] = {}
        self._new: list[str] = []
        self._folders: set[str] = set()
        self._before: dict[int, Mapping[str, int]] = {}

    def find(self, digest: ObjectId, size_bytes: int) -> str | None:
        """Return the path of an object that counts as held, in either mode; None if there is none.

        Hashes what no marker refers to, once a run. Raises: `disk-*`.
        """
        if digest not in self._found:
            self._found[digest] = None
            # Most objects of a new release are not here: one list of a folder says so of many.
            before = self._names(digest)
            for name, executable in ((digest.hex(), False), (f"{digest.hex()}.x", True)):
                path = self._layout.object(digest, executable=executable)
                if name in before and self._is_held(path, digest, size_bytes):
                    self._found[digest] = path
                    break
        return self._found[digest]

    def is_inode(self, digest: ObjectId, inode: int) -> bool:
        """Say whether `inode` is that of an object to which a durable marker refers.

        False may also be said where the file system numbers a folder's entries in another way.
        Raises: `disk-*`.
        """
        before, name = self._names(digest), digest.hex()
        return digest in self._trusted and inode in (before.get(name), before.get(name + ".x"))

    def require(self, digest: ObjectId, size_bytes: int, *, executable: bool) -> str:
        """Return the path of a held object in this mode, made from the other one if need be.

        Raises:
            Refused: `object-malformed` when it is not held, or the copy has another digest.
            Failed: `disk-*`.
        """
        path = self._layout.object(digest, executable=executable)
        held = self._found.get(digest) or self.find(digest, size_bytes)
        if held == path or (held and self._is_held(path, digest, size_bytes)):
            return path
        if held is None:
            if size_bytes:
                raise Refused(
                    "object-malformed", "an object has not come", expected=blake3_text(digest)
                )
            self.put(digest, b"", executable=executable)
            return path
        return self._copy(held, path, digest, executable=executable)

    def put(self, digest: ObjectId, content: bytes | memoryview, *, executable: bool) -> None:
        """Add an object whose digest the caller has just checked. Raises: `disk-*`."""
        path = self._layout.object(digest, executable=executable)
        self._make_folder(path)
        mode = _mode(executable=executable)
        try:
            self._disk.put(path, content, mode)
        except FileExistsError:
            self._make_room(path)
            self._disk.put(path, content, mode)
        self._new.append(path)
        self._found[digest] = path

    def adopt(self, path: str, digest: ObjectId, *, executable: bool) -> None:
        """Move a complete file, whose digest the caller has checked, into the store.

        Raises: `disk-*`.
        """
        target = self._layout.object(digest, executable=executable)
        self._make_room(target)
        self._disk.chmod(path, _mode(executable=executable))
        self._disk.rename(path, target)
        self._new.append(target)
        self._found[digest] = target

    def drop_new(self) -> None:
        """Remove what this run has added: a disk that could not write it may tell nobody again.

        Raises: `disk-*`.
        """
        for path in self._new:
            with suppress(FileNotFoundError):
                self._disk.unlink(path)
        self._new.clear()
        self._found.clear()

    def share(self, path: str, digest: ObjectId, *, executable: bool) -> None:
        """Give a file that lies elsewhere and was hashed just now a name in the store.

        Raises: `disk-*`; `OSError` where links end.
        """
        target = self._layout.object(digest, executable=executable)
        self._make_room(target)
        self._disk.chmod(path, _mode(executable=executable))
        self._disk.link(path, target)
        self._found[digest] = target

    def _names(self, digest: ObjectId) -> Mapping[str, int]:
        """Return names and inodes of the folder of `digest` when it was first looked at."""
        before = self._before.get(digest[0])
        if before is None:
            folder = self._layout.object(digest, executable=False).rpartition("/")[0]
            try:
                before = self._disk.list_inodes(folder)
            except FileNotFoundError:
                before = {}
            self._before[digest[0]] = before
        return before

    def _is_held(self, path: str, digest: ObjectId, size_bytes: int) -> bool:
        found = self._disk.stat(path)
        if found is None or found.kind is not FileKind.FILE or found.size_bytes != size_bytes:
            return False
        mode = _mode(executable=path.endswith(".x"))
        if found.mode == mode and digest in self._trusted:
            return True
        if hash_file(self._disk, path) != digest:
            return False
        if found.mode != mode:
            # Somebody made it writable, so it was hashed, whoever vouches for it.
            self._disk.chmod(path, mode)
        return True

    def _copy(self, held: str, path: str, digest: ObjectId, *, executable: bool) -> str:
        self._make_room(path)
        hasher = blake3()
        with (
            self._disk.open_read(held) as file,
            self._disk.create(path, _mode(executable=executable)) as writer,
        ):
            while chunk := file.read(_CHUNK_BYTES):
                hasher.update(chunk)
                writer.write(chunk)
        if hasher.digest() != digest:
            self._disk.unlink(path)
            raise Refused(
                "object-malformed",
                "an object of the store has other bytes than its name says",
                expected=blake3_text(digest),
                got=f"blake3:{hasher.hexdigest()}",
                where=held,
            )
        return path

    def _make_folder(self, path: str) -> None:
        folder = path.rpartition("/")[0]
        if folder not in self._folders:
            # Not made durable one by one: the sync of the whole file system before the marker is.
            if self._disk.stat(folder) is None:
                self._disk.mkdir(folder, 0o700)
            self._folders.add(folder)

    def _make_room(self, path: str) -> None:
        self._make_folder(path)
        if self._disk.stat(path) is not None:
            # It did not count as held. Unlinked, never overwritten: it may be in a generation too.
            self._disk.unlink(path)


def hash_file(disk: Disk, path: str) -> ObjectId:
    """Return the digest of a file's bytes, read in pieces. Raises: `disk-*`."""
    hasher = blake3()
    with disk.open_read(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            hasher.update(chunk)
    return ObjectId(hasher.digest())


def _mode(*, executable: bool) -> int:
    return _EXECUTABLE_MODE if executable else _PLAIN_MODE
