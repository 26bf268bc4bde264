"""Read blobs of an OCI image layout: a folder, or the same as an uncompressed tar archive.

Nothing is unpacked: a blob is a range of a file, whatever an archive says of paths and owners.
Whether a blob is what its name says is checked by who reads it.

Source: OCI Image Layout specification 1.1.
"""

import re
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from capsule.builder.section import open_section
from capsule_manifest.errors import Refused
from capsule_manifest.paths import escape

__all__ = ["ArchiveLayout", "BlobSource", "FolderLayout", "open_layout", "read_blob"]

_INDEX_BYTES_MAX: Final = 4 * 1024 * 1024
_MEMBERS_MAX: Final = 100_000
_DIGEST: Final = re.compile(r"sha256:([0-9a-f]{64})")


class BlobSource(Protocol):
    """Blobs by digest, and the list of what is there to begin with."""

    def index(self) -> bytes:
        """Return `index.json`.

        Raises:
            Refused: `image-malformed`.
        """

    def open(self, digest: str) -> BinaryIO:
        """Open the blob `sha256:<hex>`; the caller closes.

        Raises:
            Refused: `image-malformed` when it is not there.
        """


class FolderLayout:
    """A layout as a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def index(self) -> bytes:
        """Return `index.json`. See `BlobSource`."""
        try:
            with (self._folder / "index.json").open("rb") as stream:
                raw = stream.read(_INDEX_BYTES_MAX + 1)
        except OSError as error:
            raise _malformed("there is no index.json", error, self._folder) from None
        if len(raw) > _INDEX_BYTES_MAX:
            raise _malformed("index.json is too large", len(raw), self._folder)
        return raw

    def open(self, digest: str) -> BinaryIO:
        """Open a blob. See `BlobSource`."""
        try:
            return (self._folder / "blobs/sha256" / _hex(digest, self._folder)).open("rb")
        except OSError as error:
            raise _malformed(f"the blob {digest} is missing", error, self._folder) from None


@dataclass(frozen=True, slots=True)
class _Range:
    offset: int
    size_bytes: int


class ArchiveLayout:
    """A layout as one tar archive, which is listed once and read in place."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._members: dict[str, _Range] = {}
        try:
            with tarfile.open(path, "r:") as archive:
                for member in archive:
                    name = member.name.removeprefix("./")
                    if len(self._members) >= _MEMBERS_MAX or name in self._members:
                        raise _malformed("a member is given twice", escape(name), path)
                    if member.isreg() and not member.issparse():
                        self._members[name] = _Range(member.offset_data, member.size)
        except (OSError, tarfile.TarError) as error:
            raise _malformed("it is no uncompressed tar archive", error, path) from None

    def index(self) -> bytes:
        """Return `index.json`. See `BlobSource`."""
        found = self._members.get("index.json")
        if found is None or found.size_bytes > _INDEX_BYTES_MAX:
            raise _malformed("there is no index.json of a legal size", found, self._path)
        with self._path.open("rb") as stream:
            stream.seek(found.offset)
            return stream.read(found.size_bytes)

    def open(self, digest: str) -> BinaryIO:
        """Open a blob. See `BlobSource`."""
        found = self._members.get(f"blobs/sha256/{_hex(digest, self._path)}")
        if found is None:
            raise _malformed(f"the blob {digest} is missing", "none", self._path)
        return open_section(self._path, found.offset, found.size_bytes)


def open_layout(path: Path) -> BlobSource:
    """Open a layout in either form.

    Raises:
        Refused: `image-malformed`.
    """
    return FolderLayout(path) if path.is_dir() else ArchiveLayout(path)


def read_blob(source: BlobSource, digest: str, size_bytes_max: int) -> bytes:
    """Return a small blob whole. That it is the right one the caller checks.

    Raises:
        Refused: `image-malformed`.
    """
    with source.open(digest) as stream:
        raw = stream.read(size_bytes_max + 1)
    if len(raw) > size_bytes_max:
        raise Refused(
            "image-malformed", "a document of an image is too large",
            expected=f"at most {size_bytes_max} bytes", where=digest,
        )  # fmt: skip
    return raw


def _hex(digest: str, where: Path) -> str:
    match = _DIGEST.fullmatch(digest)
    if match is None:
        raise _malformed("a digest is not SHA-256", escape(digest), where)
    return match[1]


def _malformed(what: str, got: object, where: Path) -> Refused:
    return Refused("image-malformed", what, expected="an OCI layout", got=got, where=where)
