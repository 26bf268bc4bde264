"""Turn an image into the entries of a component: the same layout, with its layers uncompressed.

Layers that are compressed differ between builders for the same content, and no delta helps them.
Uncompressed, a layer is named by its diffID, which the configuration states; so the image keeps its
id, hosts unpack nothing, and a release that changes one layer sends only what changed in it.
"""

import gzip
import hashlib
import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, cast

import zstandard

from capsule.builder.content_cache import ContentCache
from capsule.builder.images.documents import (
    DOCUMENT_BYTES_MAX,
    ImageManifest,
    Layer,
    check_document,
    decode_config,
    decode_manifest,
    is_index,
    manifest_for,
    rebuilt_layout,
)
from capsule.builder.images.layout import BlobSource, read_blob
from capsule.builder.model import External, InputEntry
from capsule_manifest.errors import Refused
from capsule_manifest.tree_entry import EntryKind

__all__ = ["Image", "image_entries", "obtain_image"]

_CHUNK_BYTES: Final = 1024 * 1024
_LAYER_BYTES_MAX: Final = 16 * 1024**3
_RATIO_MAX: Final = 250
_RATIO_FREE_BYTES: Final = 64 * 1024**2
_WINDOW_LOG_MAX: Final = 27
_LAYOUT: Final = b'{"imageLayoutVersion":"1.0.0"}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image whose every part is in the cache. `layers` are diffIDs with their files."""

    name: str
    manifest_digest: str
    config_digest: str
    config: bytes
    layers: tuple[tuple[str, Path], ...]


def obtain_image(
    name: str, source: BlobSource, digest: str, machine: str, cache: ContentCache
) -> Image:
    """Read the image `digest`, or its part for `machine` if that is an index, into the cache.

    Every document and blob is checked against the digest by which it is named, every layer's
    content against the diffID that the configuration states. What the cache has isn't read again.

    Raises:
        Refused: `image-malformed`, `image-digest-mismatch`, `image-platform-missing`, `json-*`,
            `document-invalid`.
        Failed: `cache-failed`.
    """
    raw = _document(source, digest, cache)
    manifest_digest = digest
    if is_index(raw, f"{name}: {digest}"):
        manifest_digest = manifest_for(raw, machine, f"{name}: {digest}")
        raw = _document(source, manifest_digest, cache)
    manifest = decode_manifest(raw, f"{name}: {manifest_digest}")
    config = _document(source, manifest.config, cache)
    diff_ids = decode_config(config, machine, f"{name}: {manifest.config}")
    _check_count(manifest, diff_ids, name)
    layers = []
    for layer, diff_id in zip(manifest.layers, diff_ids, strict=True):
        write = partial(_write_layer, source, layer, f"{name}: {layer.digest}")
        path = cache.obtain_content(diff_id.removeprefix("sha256:"), write, where=name)
        layers.append((diff_id, path))
    return Image(
        name=name,
        manifest_digest=manifest_digest,
        config_digest=manifest.config,
        config=config,
        layers=tuple(layers),
    )


def image_entries(image: Image) -> tuple[tuple[InputEntry, ...], tuple[External, ...]]:
    """Return an OCI layout of the image, and what the ecosystem calls the image."""
    sized = tuple((diff_id, path.stat().st_size) for diff_id, path in image.layers)
    manifest, digest, index = rebuilt_layout(image.config_digest, len(image.config), sized)
    files = {
        "oci-layout": _memory("oci-layout", _LAYOUT),
        "index.json": _memory("index.json", index),
    }
    for blob, raw in ((digest, manifest), (image.config_digest, image.config)):
        path = _blob(blob)
        files[path] = _memory(path, raw)
    for (diff_id, file), (_, size_bytes) in zip(image.layers, sized, strict=True):
        path = _blob(diff_id)
        files[path] = _entry(path, size_bytes, partial(_open, file))
    external = (
        External(type="image", name=image.name, digest=image.manifest_digest),
        External(type="image-config", name=image.name, digest=image.config_digest),
    )
    return tuple(files[path] for path in sorted(files)), external


def _document(source: BlobSource, digest: str, cache: ContentCache) -> bytes:
    raw = check_document(read_blob(source, digest, DOCUMENT_BYTES_MAX), digest)
    cache.obtain_content(
        digest.removeprefix("sha256:"), lambda stream: _write(stream, raw), where=digest
    )
    return raw


def _write(stream: BinaryIO, raw: bytes) -> None:
    stream.write(raw)


def _check_count(manifest: ImageManifest, diff_ids: tuple[str, ...], name: str) -> None:
    if len(manifest.layers) != len(diff_ids):
        raise Refused(
            "image-malformed", "manifest and configuration name different layers",
            expected=f"{len(manifest.layers)} diffIDs", got=len(diff_ids), where=name,
        )  # fmt: skip


def _write_layer(source: BlobSource, layer: Layer, where: str, target: BinaryIO) -> None:
    """Write the content of a layer; the blob is proved, the cache proves the content."""
    written = 0
    limit = min(_LAYER_BYTES_MAX, max(_RATIO_FREE_BYTES, layer.size_bytes * _RATIO_MAX))
    with source.open(layer.digest) as stream:
        blob = _Hashing(stream, layer.size_bytes)
        try:
            with _decompressed(blob, layer.compression) as content:
                while chunk := content.read(_CHUNK_BYTES):
                    written += len(chunk)
                    if written > limit:
                        raise Refused(
                            "image-malformed", "a layer is too large for its blob",
                            expected=f"at most {limit} bytes", got="more", where=where,
                        )  # fmt: skip
                    target.write(chunk)
        except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
            raise Refused(
                "image-malformed", "a layer can't be unpacked", got=error, where=where
            ) from None
        got = blob.finish()
    if got != (layer.digest, layer.size_bytes):
        raise Refused(
            "image-digest-mismatch", "a layer is not the one that its manifest names",
            expected=f"{layer.size_bytes} bytes, {layer.digest}", got=f"{got[1]} bytes, {got[0]}",
            where=where,
        )  # fmt: skip


class _Hashing(io.RawIOBase):
    """A blob that is hashed while it is read; never more than one byte beyond its size."""

    def __init__(self, stream: BinaryIO, size_bytes: int) -> None:
        super().__init__()
        self._stream = stream
        self._left = size_bytes + 1
        self._read = 0
        self._hash = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self._stream.read(min(len(buffer), self._left))
        self._left -= len(data)
        self._read += len(data)
        self._hash.update(data)
        buffer[: len(data)] = data
        return len(data)

    def finish(self) -> tuple[str, int]:
        """Read what a decompressor left unread; return the digest and the size in bytes."""
        while self.read(_CHUNK_BYTES):
            pass
        return f"sha256:{self._hash.hexdigest()}", self._read


@contextmanager
def _decompressed(blob: _Hashing, compression: str) -> Iterator[BinaryIO]:
    if compression == "gzip":
        with gzip.GzipFile(fileobj=blob, mode="rb") as stream:
            yield stream  # type: ignore[misc]
    elif compression == "zstd":
        decompressor = zstandard.ZstdDecompressor(max_window_size=1 << _WINDOW_LOG_MAX)
        reader = decompressor.stream_reader(
            cast("BinaryIO", blob), read_across_frames=True, closefd=False
        )
        with reader as stream:
            yield stream
    else:
        yield blob  # type: ignore[misc]


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _open(path: Path) -> BinaryIO:
    return path.open("rb")


def _memory(path: str, data: bytes) -> InputEntry:
    return _entry(path, len(data), partial(io.BytesIO, data))


def _entry(path: str, size_bytes: int, opener: Callable[[], BinaryIO]) -> InputEntry:
    return InputEntry(
        path=path, kind=EntryKind.FILE, mode=0o644, size_bytes=size_bytes, open=opener
    )
