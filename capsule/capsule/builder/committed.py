"""Files that `release.toml` names one by one, as its commit has them.

Units, managed files and recovery material are read from the commit like every source. The disk is
not asked: git ignores some files that lie there, and a checkout may have converted others, so what
one builder sees could be missing or different for the next.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from posixpath import normpath
from typing import Final

from capsule.builder.config import ComponentSource, FilesSource, RecoverySource, ServiceSource
from capsule.builder.git_source import WorkTree, committed_entries
from capsule.builder.model import InputEntry
from capsule_manifest.errors import Refused
from capsule_manifest.tree_entry import EntryKind

__all__ = ["CommittedFiles", "committed_files"]

_TEXT_BYTES_MAX: Final = 1024 * 1024


class CommittedFiles:
    """The entries of the named paths, by the name that `release.toml` gives each."""

    def __init__(self, entries: dict[str, tuple[str, tuple[InputEntry, ...]]], where: str) -> None:
        self._entries = entries
        self._where = where

    def file(self, name: str, path: str, *, mode: int) -> InputEntry:
        """Return the regular file `name` as the entry `path`.

        Raises:
            Refused: `input-missing` for a folder or a link.
        """
        place, entries = self._entries[name]
        entry = entries[0]
        if entry.path != place or entry.kind is not EntryKind.FILE:
            raise Refused(
                "input-missing",
                "an input is of the wrong kind",
                expected="a regular file",
                got="a folder" if entry.path != place else f"a {entry.kind}",
                where=f"{self._where}: {name}",
            )
        return replace(entry, path=path, mode=mode)

    def text(self, name: str) -> str:
        """Return a text file, at most 1 MiB of UTF-8.

        Raises:
            Refused: `input-missing`.
        """
        entry = self.file(name, name, mode=0o644)
        assert entry.open is not None, "a file has content"
        try:
            if entry.size_bytes <= _TEXT_BYTES_MAX:
                with entry.open() as stream:
                    return stream.read().decode()
        except UnicodeDecodeError:
            pass
        raise Refused(
            "input-missing", "a file is not short UTF-8 text", where=f"{self._where}: {name}"
        )

    def below(self, name: str) -> tuple[InputEntry, ...]:
        """Return a file under its own name, or all of a folder below the folder's name."""
        place, entries = self._entries[name]
        parent = PurePosixPath(place).parent
        return tuple(
            replace(entry, path=PurePosixPath(entry.path).relative_to(parent).as_posix())
            for entry in entries
        )


def committed_files(work_tree: WorkTree, components: Sequence[ComponentSource]) -> CommittedFiles:
    """Return the files that services, managed files and recovery material name.

    Raises:
        Refused: `input-missing`, `source-entry-refused`, `path-invalid`, `link-escapes`.
        Failed: `source-git-failed`.
    """
    names: list[str] = []
    for item in components:
        match item:
            case ServiceSource():
                names += [unit.file for unit in item.units]
            case FilesSource():
                names += [managed.source for managed in item.files]
            case RecoverySource():
                names += item.paths
            case _:
                pass
    places = {name: normpath(f"{work_tree.prefix or '.'}/{name}") for name in names}
    entries = committed_entries(work_tree, tuple(sorted(set(places.values()))))
    where = f"{work_tree.top} at {work_tree.source.commit[:12]}"
    found: dict[str, tuple[str, tuple[InputEntry, ...]]] = {}
    for name, place in places.items():
        if not entries[place]:
            raise Refused(
                "input-missing",
                "an input is not in the commit",
                expected="a committed file; git ignores some that lie in the folder",
                got=name,
                where=where,
            )
        found[name] = (place, entries[place])
    return CommittedFiles(found, where)
