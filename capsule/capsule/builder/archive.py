"""Read tar and zip archives, single files and folders as the entries of a tool.

Nothing is unpacked to disk by an archive's own idea of a path: members are read as streams, their
names are checked like all others, modes are reduced to "may run or not", owners and times are left
out. tarfile ends without a word at a damaged header, so here what follows the last member must be
zeros.

Source: POSIX.1-2017 pax, "ustar Interchange Format"; cpython's tarfile documentation.
"""

import bz2
import errno
import gzip
import hashlib
import lzma
import os
import stat
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final
from weakref import finalize

from capsule.builder.lockfile import ToolPin
from capsule.builder.model import InputEntry
from capsule.builder.section import open_section_of
from capsule.builder.solid import solid_chunks
from capsule.builder.zip_view import ZipView
from capsule_manifest.errors import Failed, Refused
from capsule_manifest.paths import check_link, check_path, escape
from capsule_manifest.tree_entry import EntryKind

__all__ = ["archive_entries", "path_entries", "path_pin"]

Opener = Callable[[], BinaryIO]

_CONTENT_BYTES_MAX: Final = 8 * 1024**3
_RATIO_MAX: Final = 250
_RATIO_FREE_BYTES: Final = 64 * 1024**2
_CHUNK_BYTES: Final = 1024 * 1024
_CAPABILITY: Final = "security.capability"
_TAR_SUFFIXES: Final = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2", ".tbz2")


def archive_entries(path: Path, name: str, member: str | None) -> tuple[InputEntry, ...]:
    """Return a fetched file as entries. `name` is its name at its origin; it says the format.

    An archive is a tree, or with `member`, a glob, the programs `bin/<name>` that match. Any other
    file is the program `bin/<name>`.

    Raises:
        Refused: `archive-refused`, `zip-refused`, `capability-refused`, `path-invalid`,
            `link-escapes`, `tool-member-missing`.
    """
    if name.endswith(".zip"):
        entries = _zip_entries(path)
    elif name.endswith(_TAR_SUFFIXES):
        entries = tuple(_Tar(path, name).entries())
    else:
        if member is not None:
            raise Refused(
                "archive-refused",
                "only an archive has members",
                expected=f"a name that ends with .zip, {', '.join(_TAR_SUFFIXES)}",
                got=name,
            )
        return (_program(name, path.stat().st_size, partial(_open_file, path)),)
    return entries if member is None else _picked(entries, member, name)


def path_entries(path: Path) -> tuple[InputEntry, ...]:
    """Return a file as the program `bin/<name>`, or a folder as a tree, in path order.

    Raises:
        Refused: `tool-path-missing`, `archive-refused` for a special file, `capability-refused`,
            `path-invalid`, `link-escapes`.
    """
    if path.is_file():
        _require_unprivileged(path)
        return (_program(path.name, path.stat().st_size, partial(_open_file, path)),)
    if not path.is_dir():
        raise Refused("tool-path-missing", "a tool's path is not there", where=path)
    return tuple(sorted(_folder_entries(path), key=lambda entry: entry.path))


def path_pin(entries: Iterable[InputEntry]) -> ToolPin:
    """Return the pin of entries from a path: of their names, modes, link targets and content.

    Raises:
        Refused: `input-hollow`.
    """
    digest = hashlib.sha256()
    size_bytes = 0
    for entry in entries:
        content = hashlib.sha256()
        if entry.open is not None:
            with entry.open() as stream:
                for chunk in solid_chunks(stream, escape(entry.path)):
                    content.update(chunk)
        fields = (entry.path, entry.kind.value, f"{entry.mode:o}", entry.target or "")
        # NUL occurs in no field, so no two listings have the same bytes.
        digest.update("\0".join([*fields, content.hexdigest(), ""]).encode())
        size_bytes += entry.size_bytes
    return ToolPin(sha256=digest.hexdigest(), size_bytes=size_bytes)


def _folder_entries(folder: Path) -> Iterator[InputEntry]:
    for root, folders, files in os.walk(folder):
        # A link to a folder is listed among the folders, but is an entry of its own.
        links = [name for name in folders if (Path(root) / name).is_symlink()]
        for name in [*files, *links]:
            path = Path(root) / name
            relative = path.relative_to(folder).as_posix()
            check_path(relative, str(folder))
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                target = str(path.readlink())
                check_link(relative, target, str(folder))
                yield InputEntry(path=relative, kind=EntryKind.LINK, mode=0o777, target=target)
            elif stat.S_ISREG(mode):
                _require_unprivileged(path)
                yield _file(
                    relative,
                    path.stat().st_size,
                    partial(_open_file, path),
                    is_executable=bool(mode & 0o111),
                )
            else:
                raise _refused("a special file can't be shipped", relative, str(folder))


def _zip_entries(path: Path) -> tuple[InputEntry, ...]:
    view = ZipView(path)
    return tuple(
        _file(
            name,
            member.size_bytes,
            partial(view.open, name),
            is_executable=member.is_executable,
        )
        for name, member in sorted(view.members.items())
    )


def _picked(entries: Iterable[InputEntry], pattern: str, name: str) -> tuple[InputEntry, ...]:
    files = [entry for entry in entries if entry.open is not None]
    found: dict[str, InputEntry] = {}
    for entry in files:
        if fnmatchcase(entry.path, pattern) and entry.open is not None:
            program = _program(entry.path.rpartition("/")[2], entry.size_bytes, entry.open)
            if program.path in found:
                raise _refused("two members have one name", program.path, name)
            found[program.path] = program
    if not found:
        raise Refused(
            "tool-member-missing",
            "no file of an archive matches the pattern",
            expected=escape(pattern),
            got=", ".join(escape(entry.path) for entry in files[:5]),
            where=name,
        )
    return tuple(found[path] for path in sorted(found))


class _Tar:
    """A tar archive, decompressed into a file that has no name and lives as long as its entries."""

    def __init__(self, path: Path, name: str) -> None:
        self._where = name
        self._stream = tempfile.TemporaryFile()  # noqa: SIM115  # entries read it later
        finalize(self, self._stream.close)
        try:
            self._decompress(path, name)
        except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise Failed("cache-failed", "an archive can't be unpacked", where=name) from error
            raise _refused("compressed data is damaged", "", name) from error

    def entries(self) -> Iterator[InputEntry]:
        """Yield the members in path order."""
        found: dict[str, InputEntry] = {}
        try:
            self._stream.seek(0)
            with tarfile.open(
                fileobj=self._stream, mode="r:", encoding="utf-8", errors="surrogateescape"
            ) as archive:
                for member in archive:
                    entry = self._entry(member, found)
                    if entry is None:
                        continue
                    if entry.path in found:
                        raise _refused("a member is listed twice", entry.path, self._where)
                    found[entry.path] = entry
                self._check_end(archive.offset)
        except tarfile.TarError as error:
            raise _refused("the archive is malformed", "", self._where) from error
        for path in sorted(found):
            yield found[path]

    def _entry(self, member: tarfile.TarInfo, found: dict[str, InputEntry]) -> InputEntry | None:
        path = member.name.removeprefix("./").rstrip("/")
        if path in {"", "."}:
            return None
        check_path(path, self._where)
        if member.isdir():
            return InputEntry(path=path, kind=EntryKind.DIRECTORY, mode=0o755)
        if member.issym():
            check_link(path, member.linkname, self._where)
            return InputEntry(path=path, kind=EntryKind.LINK, mode=0o777, target=member.linkname)
        if member.islnk():
            # A hard link is a second name of a file that came before, and becomes a file.
            first = found.get(member.linkname.removeprefix("./"))
            if first is None or first.kind is not EntryKind.FILE:
                raise _refused("a hard link names no earlier file", path, self._where)
            return replace(first, path=path)
        if not member.isreg() or member.issparse():
            raise _refused("a member is a special or sparse file", path, self._where)
        if f"SCHILY.xattr.{_CAPABILITY}" in member.pax_headers:
            raise _privileged(path, self._where)
        return _file(
            path,
            member.size,
            partial(self._open, member.offset_data, member.size),
            is_executable=bool(member.mode & 0o111),
        )

    def _open(self, offset: int, size_bytes: int) -> BinaryIO:
        return open_section_of(self._stream.fileno(), offset, size_bytes)

    def _check_end(self, offset: int) -> None:
        self._stream.seek(offset)
        size_bytes = 0
        while chunk := self._stream.read(_CHUNK_BYTES):
            size_bytes += len(chunk)
            if chunk.strip(b"\0"):
                raise _refused("a header is damaged", f"byte {offset}", self._where)
        if size_bytes < tarfile.BLOCKSIZE:
            raise _refused("the archive has no end", f"byte {offset}", self._where)

    def _decompress(self, path: Path, name: str) -> None:
        packed_bytes = path.stat().st_size
        size_bytes = 0
        with path.open("rb") as raw, _opened(raw, name) as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                size_bytes += len(chunk)
                ratio_limit = max(_RATIO_FREE_BYTES, packed_bytes * _RATIO_MAX)
                if size_bytes > min(_CONTENT_BYTES_MAX, ratio_limit):
                    raise _refused("the content is too large", f"{size_bytes} bytes", name)
                self._stream.write(chunk)
        self._stream.flush()


def _opened(raw: BinaryIO, name: str) -> gzip.GzipFile | lzma.LZMAFile | bz2.BZ2File | BinaryIO:
    if name.endswith((".gz", ".tgz")):
        return gzip.GzipFile(fileobj=raw)
    if name.endswith((".xz", ".txz")):
        return lzma.LZMAFile(raw)
    if name.endswith((".bz2", ".tbz2")):
        return bz2.BZ2File(raw)
    return raw


def _open_file(path: Path) -> BinaryIO:
    return path.open("rb")


def _program(name: str, size_bytes: int, opener: Opener | None) -> InputEntry:
    check_path(name, "bin")
    return _file(f"bin/{name}", size_bytes, opener, is_executable=True)


def _file(path: str, size_bytes: int, opener: Opener | None, *, is_executable: bool) -> InputEntry:
    return InputEntry(
        path=path,
        kind=EntryKind.FILE,
        mode=0o755 if is_executable else 0o644,
        size_bytes=size_bytes,
        open=opener,
    )


def _require_unprivileged(path: Path) -> None:
    try:
        attributes = os.listxattr(path)
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise
        return
    if _CAPABILITY in attributes:
        raise _privileged(path.name, str(path.parent))


def _privileged(path: str, where: str) -> Refused:
    # Without it the program would fail on a host in ways that nobody looks for in a capsule.
    return Refused(
        "capability-refused",
        "a program has file capabilities, which a capsule does not carry",
        expected="AmbientCapabilities= in the unit instead",
        got=escape(path),
        where=where,
    )


def _refused(what: str, got: str, where: str) -> Refused:
    return Refused("archive-refused", what, got=escape(got), where=where)
