"""The last word of an image's layers on a few files, read without unpacking anything.

A layer adds files, and takes away what lower ones have: by a whiteout of a name, by an opaque
folder, or by another thing of the same name. Links are not followed: a wanted file is a plain one.

Source: OCI Image specification 1.1, "Image Layer Filesystem Changeset".
"""

import io
import tarfile
from collections.abc import Callable, Sequence
from typing import BinaryIO, Final

from capsule_manifest.errors import Refused
from capsule_manifest.paths import escape

__all__ = ["last_words"]

_WHITEOUT: Final = ".wh."
_OPAQUE: Final = ".wh..wh..opq"
_CHUNK_BYTES: Final = 1024 * 1024


def last_words(
    layers: Sequence[Callable[[], BinaryIO]], limit_of: Callable[[str], int | None], *, where: str
) -> dict[str, bytes]:
    """Return the wanted files that the topmost state of the layers has, the lowest layer first.

    `limit_of` says of a path how many bytes are wanted at most, or None. A limit of 0 asks only
    whether the file is there.

    Raises:
        Refused: `image-malformed` when a layer is no archive, or a wanted file exceeds its limit.
    """
    found: dict[str, bytes] = {}
    for layer in layers:
        with layer() as stream:
            change = _change(stream, limit_of, where)
        found = {path: data for path, data in found.items() if not change.hides(path)}
        found.update(change.added)
    return found


class _Change:
    """What one layer does: it adds files, takes names away, empties folders."""

    def __init__(self) -> None:
        self.added: dict[str, bytes] = {}
        self._gone: set[str] = set()
        self._emptied: set[str] = set()

    def take(
        self,
        member: tarfile.TarInfo,
        archive: tarfile.TarFile,
        limit_of: Callable[[str], int | None],
        where: str,
    ) -> None:
        path = "/".join(part for part in member.name.split("/") if part not in {"", "."})
        folder, _, name = path.rpartition("/")
        if name == _OPAQUE:
            self._emptied.add(folder)
        elif name.startswith(_WHITEOUT):
            self._gone.add(f"{folder}/{name.removeprefix(_WHITEOUT)}".lstrip("/"))
        elif not member.isdir():
            # Whatever it is: nothing of a lower layer is at this name or below it any more.
            self._gone.add(path)
            limit = limit_of(path)
            if limit is not None and member.isreg():
                self.added[path] = _content(member, archive, limit, f"{where}: {escape(path)}")
            else:
                self.added.pop(path, None)

    def hides(self, path: str) -> bool:
        """Say whether this layer takes a file of a lower one away."""
        if path in self._gone or "" in self._emptied:
            return True
        parts = path.split("/")
        folders = ("/".join(parts[:count]) for count in range(1, len(parts)))
        return any(folder in self._gone or folder in self._emptied for folder in folders)


def _content(member: tarfile.TarInfo, archive: tarfile.TarFile, limit: int, where: str) -> bytes:
    if limit == 0:
        return b""
    if member.size > limit:
        raise Refused(
            "image-malformed", "a list of packages is too large",
            expected=f"at most {limit} bytes", got=f"{member.size} bytes", where=where,
        )  # fmt: skip
    stream = archive.extractfile(member)
    assert stream is not None, "a regular file has content"
    return stream.read()


def _change(stream: BinaryIO, limit_of: Callable[[str], int | None], where: str) -> _Change:
    """Read an archive to its end.

    tarfile ends without a word at a damaged header, so what follows the last member must be zeros.
    """
    change = _Change()
    size_bytes = stream.seek(0, io.SEEK_END)
    stream.seek(0)
    try:
        with tarfile.open(
            fileobj=stream, mode="r:", encoding="utf-8", errors="surrogateescape"
        ) as archive:
            member = archive.next()
            while member is not None:
                change.take(member, archive, limit_of, where)
                # It keeps every member that it has read: a layer may have a million.
                archive.members.clear()  # type: ignore[attr-defined]
                # umoci writes layers that end with the last byte of content, without its padding.
                is_last = size_bytes == member.offset_data + member.size
                member = None if is_last else archive.next()
            end = min(archive.offset, size_bytes)
    except (tarfile.TarError, ValueError, EOFError) as error:
        raise _malformed(error, where) from None
    stream.seek(end)
    while chunk := stream.read(_CHUNK_BYTES):
        if chunk.strip(b"\0"):
            raise _malformed(f"a damaged header near byte {end}", where)
    return change


def _malformed(got: object, where: str) -> Refused:
    return Refused(
        "image-malformed", "a layer can't be read", expected="a tar archive", got=got, where=where
    )
