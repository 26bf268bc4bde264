"""One entry of a tree: a file, a directory or a link, and what makes it legal.

Owner, time and extended attributes are no part of an entry: they belong to the host. Modes are a
short list, so that no set-user-id bit or world-writable file can come with a release.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from capsule_manifest.digest import ObjectId, blake3_text, object_id
from capsule_manifest.errors import Refused
from capsule_manifest.paths import check_link, escape

__all__ = [
    "CONTENT_BYTES_MAX",
    "DIRECTORY_MODE",
    "EMPTY_OBJECT",
    "Entry",
    "EntryKind",
    "bad_entry",
    "check_entry",
    "tree_where",
]

EMPTY_OBJECT: Final = object_id(b"")

CONTENT_BYTES_MAX: Final = 2**53 - 1
"""The largest whole number that canonical JSON holds, for one file and for a whole tree."""

DIRECTORY_MODE: Final = 0o755
"""The mode of a directory that no input names."""

_FILE_MODES = frozenset({0o644, 0o755, 0o600, 0o640, 0o700, 0o750})
_DIRECTORY_MODES = frozenset({0o755, 0o700, 0o750})
_LINK_MODE = 0o777
_DIGEST_BYTES = 32


class EntryKind(StrEnum):
    """What an entry is; nothing else exists in a tree."""

    FILE = "file"
    DIRECTORY = "directory"
    LINK = "link"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Describe one path of a component.

    A file has `size_bytes` and `object`, a link has `target` and mode 0o777, a directory neither.
    """

    path: str
    kind: EntryKind
    mode: int
    size_bytes: int = 0
    object: ObjectId | None = None
    target: str | None = None


def check_entry(entry: Entry) -> None:
    """Refuse an entry whose mode or fields don't fit its kind. Its path is checked elsewhere.

    Raises:
        Refused: `tree-entry-invalid`, `path-invalid`, `link-escapes`.
    """
    path = entry.path
    if entry.kind is EntryKind.FILE:
        if entry.mode not in _FILE_MODES:
            raise _bad_mode(_FILE_MODES, entry)
        if entry.object is None or len(entry.object) != _DIGEST_BYTES or entry.target is not None:
            raise bad_entry("a file needs an object and no target", "an object", "none", path)
        if not 0 <= entry.size_bytes <= CONTENT_BYTES_MAX:
            raise bad_entry("a size is out of range", "0 to 2^53-1", entry.size_bytes, path)
        if (entry.size_bytes == 0) != (entry.object == EMPTY_OBJECT):
            raise bad_entry(
                "size and object disagree about being empty",
                "size 0 with the digest of no bytes, and only then",
                f"{entry.size_bytes} bytes, {blake3_text(entry.object)}",
                path,
            )
        return
    if entry.object is not None or entry.size_bytes != 0:
        raise bad_entry(f"a {entry.kind} has content", "no object", entry.size_bytes, path)
    if entry.kind is EntryKind.DIRECTORY:
        if entry.mode not in _DIRECTORY_MODES:
            raise _bad_mode(_DIRECTORY_MODES, entry)
        if entry.target is not None:
            raise bad_entry("a directory has a target", "none", escape(entry.target), path)
        return
    if entry.mode != _LINK_MODE:
        raise _bad_mode({_LINK_MODE}, entry)
    if entry.target is None:
        raise bad_entry("a link has no target", "a target", "none", path)
    check_link(path, entry.target, tree_where(path))


def tree_where(path: str) -> str:
    """Return the place of `path` for messages."""
    return f"tree, {escape(path)}" if path else "tree"


def bad_entry(what: str, expected: object, got: object, path: str) -> Refused:
    """Return the refusal of an entry at `path`."""
    return Refused("tree-entry-invalid", what, expected=expected, got=got, where=tree_where(path))


def _bad_mode(modes: Iterable[int], entry: Entry) -> Refused:
    return bad_entry(
        f"the mode of a {entry.kind} is not one that a tree may hold",
        ", ".join(f"{mode:#o}" for mode in sorted(modes)),
        f"{entry.mode:#o}",
        entry.path,
    )
