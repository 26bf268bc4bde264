"""Small container images as layouts, with every blob by its digest, and ways to damage them."""

import gzip
import hashlib
import io
import json
import tarfile
from dataclasses import dataclass, field
from pathlib import Path

import zstandard

from capsule_manifest.errors import Failed

__all__ = ["ImageFile", "LayoutRegistry", "digest_of", "layer_of", "write_archive", "write_layout"]

_OCI = "application/vnd.oci.image"


def digest_of(data: bytes) -> str:
    """Return `sha256:<hex>`."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def layer_of(**files: bytes) -> bytes:
    """Return an uncompressed layer with these files."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return stream.getvalue()


@dataclass(kw_only=True)
class ImageFile:
    """One image: its layers' content, how they are compressed, and for which machine it is."""

    layers: list[bytes] = field(default_factory=lambda: [layer_of(hello=b"hello\n")])
    compression: str = "gzip"
    architecture: str = "amd64"
    diff_ids: list[str] | None = None

    def blobs(self) -> tuple[str, dict[str, bytes]]:
        """Return the digest of the manifest and all blobs."""
        packed = [_pack(layer, self.compression) for layer in self.layers]
        suffix = {"none": "", "gzip": "+gzip", "zstd": "+zstd"}[self.compression]
        diff_ids = self.diff_ids or [digest_of(layer) for layer in self.layers]
        config = _json(
            {
                "os": "linux",
                "architecture": self.architecture,
                "rootfs": {"type": "layers", "diff_ids": diff_ids},
                "config": {"Cmd": ["/hello"]},
            }
        )
        manifest = _json(
            {
                "schemaVersion": 2,
                "mediaType": f"{_OCI}.manifest.v1+json",
                "config": _descriptor(f"{_OCI}.config.v1+json", config),
                "layers": [_descriptor(f"{_OCI}.layer.v1.tar{suffix}", item) for item in packed],
            }
        )
        blobs = {digest_of(item): item for item in (*packed, config, manifest)}
        return digest_of(manifest), blobs

    def descriptor(self) -> dict[str, object]:
        """Return what an index says of this image."""
        digest, blobs = self.blobs()
        return _descriptor(f"{_OCI}.manifest.v1+json", blobs[digest]) | {
            "platform": {"os": "linux", "architecture": self.architecture}
        }


def index_of(*images: ImageFile) -> bytes:
    """Return an index over images."""
    return _json(
        {
            "schemaVersion": 2,
            "mediaType": f"{_OCI}.index.v1+json",
            "manifests": [image.descriptor() for image in images],
        }
    )


def write_layout(folder: Path, *images: ImageFile) -> str:
    """Write a layout of images, its index as a blob too; return the digest of the index."""
    blobs = folder / "blobs/sha256"
    blobs.mkdir(parents=True, exist_ok=True)
    index = index_of(*images)
    every = {digest_of(index): index}
    for image in images:
        every |= image.blobs()[1]
    for digest, data in every.items():
        (blobs / digest.removeprefix("sha256:")).write_bytes(data)
    (folder / "oci-layout").write_bytes(b'{"imageLayoutVersion":"1.0.0"}')
    (folder / "index.json").write_bytes(index)
    return digest_of(index)


def write_archive(path: Path, folder: Path) -> None:
    """Write a layout as one archive, the way `skopeo copy … oci-archive:` does."""
    with tarfile.open(path, "w") as archive:
        for file in sorted(folder.rglob("*")):
            archive.add(file, file.relative_to(folder).as_posix(), recursive=False)


class LayoutRegistry:
    """A registry with one name. Implements `ImageFetcher`; counts what is fetched."""

    def __init__(self, name: str, *images: ImageFile) -> None:
        self.name = name
        self.images = list(images)
        self.fetched: list[str] = []

    def describe(self, name: str) -> bytes:
        """Return the index, or the manifest of the only image. See `ImageFetcher`."""
        self._require(name)
        if len(self.images) == 1:
            digest, blobs = self.images[0].blobs()
            return blobs[digest]
        return index_of(*self.images)

    def fetch(self, name: str, digest: str, folder: Path) -> None:
        """Write the layout of one image. See `ImageFetcher`."""
        self._require(name)
        self.fetched.append(digest)
        for image in self.images:
            if image.blobs()[0] == digest:
                write_layout(folder, image)
                return
        raise Failed("image-fetch-failed", "there is no such image", got=digest, where=name)

    def _require(self, name: str) -> None:
        if name != self.name:
            raise Failed("image-fetch-failed", "there is no such name", where=name)


def _pack(layer: bytes, compression: str) -> bytes:
    match compression:
        case "gzip":
            return gzip.compress(layer, mtime=0)
        case "zstd":
            return zstandard.ZstdCompressor().compress(layer)
        case _:
            return layer


def _descriptor(kind: str, data: bytes) -> dict[str, object]:
    return {"mediaType": kind, "digest": digest_of(data), "size": len(data)}


def _json(value: object) -> bytes:
    # Not canonical on purpose: others write their documents as they like.
    return json.dumps(value, indent=3).encode()
