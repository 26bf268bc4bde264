"""A capsule to read from, in either form: named members, each a range of bytes of a file.

Opening checks names, kinds and order only. Nothing read from it is trusted before `verify` said so.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from capsule_manifest.container import (
    ContainerReader,
    MemberStart,
    check_member_name,
)
from capsule_manifest.errors import Failed, Refused

__all__ = ["OpenCapsule", "open_capsule"]

_CHUNK_BYTES: Final = 1024 * 1024
_MEMBERS_MAX: Final = 100_000
_BLOCK_BYTES: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class _Range:
    path: Path
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCapsule:
    """The members of a capsule by name, such as `capsule.json` or `packs/….pack`."""

    path: Path
    members: Mapping[str, _Range]

    def size(self, name: str) -> int:
        """Return a member's size in bytes.

        Raises:
            Failed: `capsule-incomplete`.
        """
        return self._range(name).size_bytes

    def read(self, name: str, size_bytes_max: int) -> bytes:
        """Return a whole member of at most so many bytes.

        Raises:
            Refused: `document-invalid` when it is larger.
            Failed: `capsule-incomplete`, `controller-disk`.
        """
        found = self._range(name)
        if found.size_bytes > size_bytes_max:
            raise Refused(
                "document-invalid",
                "a member is too large",
                expected=f"at most {size_bytes_max} bytes",
                got=found.size_bytes,
                where=f"{self.path}: {name}",
            )
        return b"".join(self.chunks(name))

    def chunks(self, name: str, offset: int = 0, size_bytes: int | None = None) -> Iterator[bytes]:
        """Yield a member's bytes, or `size_bytes` of them from `offset`.

        Raises:
            Failed: `capsule-incomplete`, `controller-disk`.
        """
        found = self._range(name)
        left = found.size_bytes - offset if size_bytes is None else size_bytes
        if offset + left > found.size_bytes:
            raise self._incomplete(name)
        try:
            with found.path.open("rb") as file:
                file.seek(found.offset + offset)
                while left:
                    chunk = file.read(min(_CHUNK_BYTES, left))
                    if not chunk:
                        raise self._incomplete(name)
                    left -= len(chunk)
                    yield chunk
        except OSError as error:
            raise Failed("controller-disk", "a capsule can't be read", where=found.path) from error

    def below(self, folder: str) -> list[str]:
        """Return the names of members in a folder, sorted."""
        return sorted(name for name in self.members if name.startswith(f"{folder}/"))

    def _range(self, name: str) -> _Range:
        found = self.members.get(name)
        if found is None:
            raise self._incomplete(name)
        return found

    def _incomplete(self, name: str) -> Failed:
        return Failed(
            "capsule-incomplete", "a capsule lacks a member", where=f"{self.path}: {name}"
        )


def open_capsule(path: Path) -> OpenCapsule:
    """Open a capsule directory or a single-file capsule.

    Raises:
        Refused: `container-*`.
        Failed: `capsule-incomplete` when there is none, `controller-disk`.
    """
    try:
        if path.is_dir():
            return OpenCapsule(path=path, members=_directory(path))
        if path.is_file():
            return OpenCapsule(path=path, members=_single_file(path))
    except OSError as error:
        raise Failed("controller-disk", "a capsule can't be read", where=path) from error
    raise Failed("capsule-incomplete", "there is no capsule", where=path)


def _directory(path: Path) -> dict[str, _Range]:
    members: dict[str, _Range] = {}
    for folder, folders, names in os.walk(path):
        # A link to a folder is listed as a folder and not entered: it would be passed over.
        for name in [*(name for name in folders if Path(folder, name).is_symlink()), *names]:
            file = Path(folder, name)
            member = file.relative_to(path).as_posix()
            check_member_name(member)
            if file.is_symlink() or not file.is_file() or len(members) >= _MEMBERS_MAX:
                raise Refused(
                    "container-member-refused",
                    "a capsule directory holds what no capsule has",
                    expected="regular files only",
                    where=file,
                )
            members[member] = _Range(path=file, offset=0, size_bytes=file.stat().st_size)
    return members


def _single_file(path: Path) -> dict[str, _Range]:
    members: dict[str, _Range] = {}
    reader = ContainerReader()
    position = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            for event in reader.feed(chunk):
                # Offsets follow from sizes: a header, the content, zeros up to a whole block.
                if isinstance(event, MemberStart):
                    offset = position + _BLOCK_BYTES
                    members[event.name] = _Range(path=path, offset=offset, size_bytes=event.size)
                    position = offset + event.size + -event.size % _BLOCK_BYTES
    reader.close()
    return members
