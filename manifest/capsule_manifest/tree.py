"""The canonical listing of a component: what lies where, and the exact bytes of it.

A tree file is a header and one record per directory, in pre-order. A record names its directory's
entries in the order of their name bytes; a child directory is named by the digest of its record, so
a directory's digest covers everything below it, and the digest of the root record, the *tree root*,
covers the component. `docs/reference/tree.md` has the layout byte by byte.

There is one spelling: bytes that `encode_tree` would not write do not decode.
"""

import struct
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from blake3 import blake3

from capsule_manifest.digest import ObjectId, blake3_text
from capsule_manifest.errors import Refused
from capsule_manifest.paths import (
    PATH_BYTES_MAX,
    PATH_LEVELS_MAX,
    check_name,
    check_path,
    escape,
)
from capsule_manifest.tree_entry import (
    CONTENT_BYTES_MAX,
    DIRECTORY_MODE,
    EMPTY_OBJECT,
    Entry,
    EntryKind,
    bad_entry,
    check_entry,
    tree_where,
)

__all__ = [
    "DEFAULT_TREE_LIMITS",
    "EMPTY_OBJECT",
    "TREE_HEADER",
    "Entry",
    "EntryKind",
    "Tree",
    "TreeDiff",
    "TreeLimits",
    "build_tree",
    "content_order",
    "decode_tree",
    "diff_trees",
    "encode_tree",
]

TREE_HEADER: Final = b"CPSLTREE" + (1).to_bytes(4, "big")
"""Magic and version. The version is also part of the digest context."""

_DIGEST_CONTEXT = "capsule tree 1 directory record"

_COUNT = struct.Struct(">I")
_HEAD = struct.Struct(">HBHB")  # bytes that follow these two, type, mode, name length
_HEAD_AFTER_LENGTH = 4
_FILE = struct.Struct(">Q32s")
_DIGEST_BYTES = 32
_TYPE_FILE, _TYPE_DIRECTORY, _TYPE_LINK = 1, 2, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """List a component in path order. Comes only from `build_tree` and `decode_tree`.

    The root directory is no entry. A directory comes right before what it holds; siblings come in
    the order of their name bytes. `directories` has the digest of each, the root's under "".
    """

    entries: tuple[Entry, ...]
    root: ObjectId
    directories: Mapping[str, ObjectId] = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeLimits:
    """Bounds that are checked while a tree is read."""

    size_bytes_max: int = 256 * 1024 * 1024
    entries_max: int = 1_000_000
    # A listing names each directory once, but a decoded entry holds its whole path.
    path_bytes_max: int = 256 * 1024 * 1024


DEFAULT_TREE_LIMITS: Final = TreeLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeDiff:
    """Say what differs between two trees, each in path order.

    `changed` pairs the old and the new entry of one path. A directory is changed if its mode is.
    """

    added: tuple[Entry, ...]
    removed: tuple[Entry, ...]
    changed: tuple[tuple[Entry, Entry], ...]


def build_tree(entries: Iterable[Entry]) -> Tree:
    """Check, complete and order `entries`. Missing parent directories get mode 0o755.

    Raises:
        Refused: `path-invalid`, `link-escapes`, `tree-entry-invalid` (a duplicate, a mode, a file
            or link used as a directory, fields that don't fit the kind), `tree-too-large`.
    """
    by_path: dict[str, Entry] = {}
    for entry in entries:
        check_path(entry.path, "tree")
        check_entry(entry)
        if entry.path in by_path:
            raise bad_entry("a path is listed twice", "every path once", entry.path, entry.path)
        by_path[entry.path] = entry
    _add_parents(by_path)
    ordered = tuple(sorted(by_path.values(), key=_order))
    _check_sizes(ordered)
    path_bytes = sum(len(entry.path.encode()) for entry in ordered)
    _check_counts(len(ordered), path_bytes, DEFAULT_TREE_LIMITS)
    digests = _records(ordered)[1]
    return Tree(entries=ordered, root=digests[""], directories=MappingProxyType(digests))


def encode_tree(tree: Tree) -> bytes:
    """Return the tree file of `tree`.

    Raises:
        Refused: `tree-too-large`.
    """
    records, digests = _records(tree.entries)
    assert digests[""] == tree.root, "a tree's root must be the digest of its own entries"
    # Records are finished from the last directory to the first.
    raw = b"".join([TREE_HEADER, *reversed(records)])
    _check_size(len(raw), DEFAULT_TREE_LIMITS)
    return raw


def decode_tree(
    raw: bytes, *, root: ObjectId | None, limits: TreeLimits = DEFAULT_TREE_LIMITS
) -> Tree:
    """Read a tree file and prove that it is the tree named `root`.

    `root` is None only where no signed document names the tree yet, such as in `capsule inspect`.

    Raises:
        Refused: `tree-malformed`, `tree-digest-mismatch`, `tree-too-large`, `path-invalid`,
            `link-escapes`, `tree-entry-invalid`, `document-version`.
    """
    _check_size(len(raw), limits)
    _check_header(raw)
    walk = _Walk(raw, limits)
    walk.read_directory("", root, 0)
    if walk.position != len(raw):
        raise _malformed("bytes follow the last record", len(raw), walk.position, "")
    entries = tuple(walk.entries)
    _check_sizes(entries)
    return Tree(
        entries=entries,
        root=walk.directories[""],
        directories=MappingProxyType(walk.directories),
    )


def content_order(tree: Tree) -> tuple[tuple[ObjectId, int], ...]:
    """Return each non-empty object of `tree` once with its size, in path order.

    The objects' bytes in this order are the component's *content stream*, which packs carry.
    """
    sizes: dict[ObjectId, int] = {}
    for entry in tree.entries:
        if entry.object is not None and entry.size_bytes:
            sizes.setdefault(entry.object, entry.size_bytes)
    return tuple(sizes.items())


def diff_trees(old: Tree, new: Tree) -> TreeDiff:
    """Compare two trees. Directories with one digest are skipped without looking into them."""
    added: list[Entry] = []
    removed: list[Entry] = []
    changed: list[tuple[Entry, Entry]] = []
    i = j = 0
    if old.root == new.root:
        i, j = len(old.entries), len(new.entries)
    while i < len(old.entries) and j < len(new.entries):
        before, after = old.entries[i], new.entries[j]
        if before.path != after.path:
            if _order(before) < _order(after):
                removed.append(before)
                i += 1
            else:
                added.append(after)
                j += 1
            continue
        if before != after:
            changed.append((before, after))
        digest = old.directories.get(before.path)
        if digest is not None and digest == new.directories.get(after.path):
            i = _subtree_end(old.entries, i)
            j = _subtree_end(new.entries, j)
        else:
            i += 1
            j += 1
    removed.extend(old.entries[i:])
    added.extend(new.entries[j:])
    return TreeDiff(added=tuple(added), removed=tuple(removed), changed=tuple(changed))


class _Walk:
    """Read directory records in pre-order. Nesting is bounded, so recursion is."""

    def __init__(self, raw: bytes, limits: TreeLimits) -> None:
        self._raw = raw
        self._limits = limits
        self.position = len(TREE_HEADER)
        self.entries: list[Entry] = []
        self.directories: dict[str, ObjectId] = {}
        self._count = 0
        self._path_bytes = 0

    def read_directory(self, path: str, expected: ObjectId | None, level: int) -> None:
        """Read the record of the directory at `path` and all records below it."""
        start = self.position
        listing = self._read_record(path)
        if listing and level >= PATH_LEVELS_MAX:
            raise _malformed(
                "directories nest too deep", f"at most {PATH_LEVELS_MAX} levels", level + 1, path
            )
        digest = _directory_digest(self._raw[start : self.position])
        if expected is not None and digest != expected:
            raise Refused(
                "tree-digest-mismatch",
                "a directory record is not the one that was named",
                expected=blake3_text(expected),
                got=blake3_text(digest),
                where=tree_where(path),
            )
        self.directories[path] = digest
        for entry, child in listing:
            self.entries.append(entry)
            if child is not None:
                self.read_directory(entry.path, child, level + 1)

    def _read_record(self, path: str) -> list[tuple[Entry, ObjectId | None]]:
        raw, position = self._raw, self.position
        if len(raw) - position < _COUNT.size:
            raise _malformed("a record is cut off", _COUNT.size, len(raw) - position, path)
        (count,) = _COUNT.unpack_from(raw, position)
        position += _COUNT.size
        prefix = f"{path}/" if path else ""
        prefix_bytes = len(prefix.encode())
        where = tree_where(path)
        self._count += count
        self._path_bytes += count * prefix_bytes
        _check_counts(self._count, self._path_bytes, self._limits)
        listing: list[tuple[Entry, ObjectId | None]] = []
        previous = b""
        for _ in range(count):
            if len(raw) - position < _HEAD.size:
                raise _malformed("an entry is cut off", _HEAD.size, len(raw) - position, path)
            length, kind, mode, name_length = _HEAD.unpack_from(raw, position)
            end = position + 2 + length
            name_end = position + _HEAD.size + name_length
            if end > len(raw) or name_end > end:
                raise _malformed("an entry's length is wrong", f"at most {len(raw)}", end, path)
            name_raw = raw[position + _HEAD.size : name_end]
            if name_raw <= previous:
                raise _malformed(
                    "entries are not in order", f"after {escape(previous)}", escape(name_raw), path
                )
            if prefix_bytes + name_length > PATH_BYTES_MAX:
                raise _malformed("a path is too long", PATH_BYTES_MAX, "more", path)
            name = _decode_text(name_raw, path)
            check_name(name, where)
            listing.append(_read_entry(kind, mode, prefix + name, raw[name_end:end]))
            previous = name_raw
            position = end
        self.position = position
        return listing


def _read_entry(kind: int, mode: int, path: str, payload: bytes) -> tuple[Entry, ObjectId | None]:
    if kind == _TYPE_FILE and len(payload) == _FILE.size:
        size_bytes, digest = _FILE.unpack(payload)
        entry = Entry(
            path=path,
            kind=EntryKind.FILE,
            mode=mode,
            size_bytes=size_bytes,
            object=ObjectId(digest),
        )
        check_entry(entry)
        return entry, None
    if kind == _TYPE_DIRECTORY and len(payload) == _DIGEST_BYTES:
        entry = Entry(path=path, kind=EntryKind.DIRECTORY, mode=mode)
        check_entry(entry)
        return entry, ObjectId(payload)
    if kind == _TYPE_LINK:
        entry = Entry(path=path, kind=EntryKind.LINK, mode=mode, target=_decode_text(payload, path))
        check_entry(entry)
        return entry, None
    raise _malformed(
        "an entry has an unknown type or a wrong length",
        "a file (1), directory (2) or link (3)",
        f"type {kind} with {len(payload)} bytes",
        path,
    )


def _records(entries: Sequence[Entry]) -> tuple[list[bytes], dict[str, ObjectId]]:
    """Return the directory records, last directory first, and every directory's digest."""
    pending: dict[str, list[bytes]] = {}
    records: list[bytes] = []
    digests: dict[str, ObjectId] = {}

    def finish(path: str) -> ObjectId:
        children = pending.pop(path, [])
        record = b"".join([_COUNT.pack(len(children)), *reversed(children)])
        records.append(record)
        digest = digests[path] = _directory_digest(record)
        return digest

    # From the end, a directory's entries all come before the directory itself.
    for entry in reversed(entries):
        parent, _, name = entry.path.rpartition("/")
        if entry.kind is EntryKind.FILE:
            payload = _FILE.pack(entry.size_bytes, entry.object)
            kind = _TYPE_FILE
        elif entry.kind is EntryKind.LINK:
            assert entry.target is not None
            payload = entry.target.encode()
            kind = _TYPE_LINK
        else:
            payload = finish(entry.path)
            kind = _TYPE_DIRECTORY
        raw_name = name.encode()
        length = _HEAD_AFTER_LENGTH + len(raw_name) + len(payload)
        encoded = _HEAD.pack(length, kind, entry.mode, len(raw_name)) + raw_name + payload
        pending.setdefault(parent, []).append(encoded)
    finish("")
    return records, digests


def _add_parents(by_path: dict[str, Entry]) -> None:
    for path in tuple(by_path):
        parent = path.rpartition("/")[0]
        while parent:
            known = by_path.get(parent)
            if known is None:
                by_path[parent] = Entry(path=parent, kind=EntryKind.DIRECTORY, mode=DIRECTORY_MODE)
            elif known.kind is not EntryKind.DIRECTORY:
                raise bad_entry(
                    f"a {known.kind} is used as a directory", "a directory", path, parent
                )
            else:
                break
            parent = parent.rpartition("/")[0]


def _check_sizes(entries: Iterable[Entry]) -> None:
    sizes: dict[ObjectId, int] = {}
    for entry in entries:
        if entry.object is not None:
            known = sizes.setdefault(entry.object, entry.size_bytes)
            if known != entry.size_bytes:
                raise bad_entry("one object has two sizes", known, entry.size_bytes, entry.path)
    if sum(sizes.values()) > CONTENT_BYTES_MAX:
        raise Refused(
            "tree-too-large", "a tree's content is too large", expected="at most 2^53-1 bytes"
        )


def _check_header(raw: bytes) -> None:
    magic = TREE_HEADER[:8]
    if raw[:8] != magic:
        raise _malformed("this is no tree file", escape(magic), escape(raw[:8]), "")
    if raw[8 : len(TREE_HEADER)] != TREE_HEADER[8:]:
        raise Refused(
            "document-version",
            "a tree file has a version that is not known here",
            expected="1",
            got=int.from_bytes(raw[8 : len(TREE_HEADER)], "big"),
            where="tree",
        )


def _check_size(size_bytes: int, limits: TreeLimits) -> None:
    if size_bytes > limits.size_bytes_max:
        raise Refused(
            "tree-too-large",
            "a tree file is too large",
            expected=f"at most {limits.size_bytes_max} bytes",
            got=f"{size_bytes} bytes",
            where="tree",
        )


def _check_counts(entries: int, path_bytes: int, limits: TreeLimits) -> None:
    if entries > limits.entries_max:
        raise Refused(
            "tree-too-large",
            "a tree has too many entries",
            expected=f"at most {limits.entries_max}",
            got=entries,
            where="tree",
        )
    if path_bytes > limits.path_bytes_max:
        raise Refused(
            "tree-too-large",
            "a tree's paths are too long in all",
            expected=f"at most {limits.path_bytes_max} bytes",
            got=path_bytes,
            where="tree",
        )


def _order(entry: Entry) -> str:
    # No name holds a NUL, so this orders segment by segment; UTF-8 keeps the order of code points.
    return entry.path.replace("/", "\0")


def _subtree_end(entries: Sequence[Entry], start: int) -> int:
    after_all_below = _order(entries[start]) + "\x01"
    return bisect_left(entries, after_all_below, lo=start, key=_order)


def _directory_digest(record: bytes) -> ObjectId:
    return ObjectId(blake3(record, derive_key_context=_DIGEST_CONTEXT).digest())


def _decode_text(raw: bytes, path: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise Refused(
            "path-invalid",
            "a name or target is not UTF-8",
            expected="UTF-8",
            got=escape(raw),
            where=tree_where(path),
        ) from None


def _malformed(what: str, expected: object, got: object, path: str) -> Refused:
    return Refused("tree-malformed", what, expected=expected, got=got, where=tree_where(path))
