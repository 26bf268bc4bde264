"""Where the image of a component comes from: a layout beside `release.toml`, or a registry.

Locking decides which image a component means for each platform; building takes that one, from the
cache where it has all of it.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from capsule.builder.content_cache import ContentCache
from capsule.builder.images.documents import (
    DOCUMENT_BYTES_MAX,
    check_document,
    is_index,
    manifest_for,
)
from capsule.builder.images.image import Image, obtain_image
from capsule.builder.images.layout import BlobSource, FolderLayout, open_layout, read_blob
from capsule.builder.images.registry import ImageFetcher
from capsule_manifest.errors import Refused

__all__ = ["ImageOrigin", "ImageStore"]

_HEX: Final = "sha256:"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageOrigin:
    """Either `layout`, a path, or `reference`, a name in a registry; `digest` may fix which.

    `name` is what a person calls the image; it becomes part of the release manifest.
    """

    name: str
    layout: Path | None
    reference: str | None
    digest: str | None

    def input_sha256(self, layout: str) -> str:
        """Return a digest of what was asked; `layout` is the path as the release file has it."""
        asked = (layout, self.reference or "", self.digest or "")
        return hashlib.sha256("\0".join(asked).encode()).hexdigest()


class ImageStore:
    """Images from layouts and registries, all that was read kept in the cache."""

    def __init__(self, cache: ContentCache, fetcher: ImageFetcher) -> None:
        self._cache = cache
        self._fetcher = fetcher

    def resolve(self, origin: ImageOrigin, machine: str) -> str:
        """Return the digest of the manifest that is meant for a machine, `sha256:<hex>`.

        Raises:
            Refused: `image-malformed`, `image-digest-mismatch`, `image-platform-missing`, `json-*`.
            Failed: `image-fetch-failed`.
        """
        where = origin.name
        if origin.layout is not None:
            layout = open_layout(origin.layout)
            if origin.digest is None:
                # The list of a layout is an index like any other.
                digest = manifest_for(layout.index(), machine, where)
                raw = check_document(read_blob(layout, digest, DOCUMENT_BYTES_MAX), digest)
            else:
                digest = origin.digest
                raw = check_document(read_blob(layout, digest, DOCUMENT_BYTES_MAX), digest)
        else:
            assert origin.reference is not None, "an origin has a layout or a reference"
            raw = self._fetcher.describe(origin.reference)
            digest = _HEX + hashlib.sha256(raw).hexdigest()
            if origin.digest is not None and digest != origin.digest:
                raise Refused(
                    "image-digest-mismatch", "a registry has another image under the name",
                    expected=origin.digest, got=digest, where=where,
                )  # fmt: skip
        return manifest_for(raw, machine, where) if is_index(raw, where) else digest

    def obtain(self, origin: ImageOrigin, digest: str, machine: str) -> Image:
        """Return the image whose manifest is `digest`, fetched unless the cache has all of it.

        Raises:
            Refused: `image-malformed`, `image-digest-mismatch`, `image-platform-missing`, `json-*`,
                `document-invalid`.
            Failed: `image-fetch-failed`, `cache-failed`.
        """
        if origin.layout is not None:
            layout = open_layout(origin.layout)
            return obtain_image(origin.name, layout, digest, machine, self._cache)
        reference = origin.reference
        assert reference is not None, "an origin has a layout or a reference"
        with self._cache.scratch() as scratch:
            folder = Path(scratch, "layout")
            source = _Fetched(
                self._cache, lambda: self._fetcher.fetch(reference, digest, folder), folder
            )
            return obtain_image(origin.name, source, digest, machine, self._cache)


class _Fetched:
    """Blobs that the cache has, and for the first that it lacks, the whole image fetched."""

    def __init__(self, cache: ContentCache, fetch: Callable[[], None], folder: Path) -> None:
        self._cache = cache
        self._fetch = fetch
        self._folder = folder
        self._layout: BlobSource | None = None

    def index(self) -> bytes:
        return FolderLayout(self._folder).index()

    def open(self, digest: str) -> BinaryIO:
        kept = self._cache.kept(digest.removeprefix(_HEX))
        if kept is not None:
            return kept.open("rb")
        if self._layout is None:
            self._fetch()
            self._layout = FolderLayout(self._folder)
        return self._layout.open(digest)
