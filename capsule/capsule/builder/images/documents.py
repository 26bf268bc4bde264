"""What an image says of itself: index, manifest, configuration. Bytes in, values out.

Documents of others are read tolerantly but for what is used: a digest that is followed is SHA-256,
a layer has a form that is known, and the configuration names as many layers as the manifest has.

Source: OCI Image specification 1.1; Docker Image Manifest V2, Schema 2.
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Final

from capsule_manifest.canonical import JsonValue, Limits, decode_foreign, encode
from capsule_manifest.errors import Refused
from capsule_manifest.fields import Object
from capsule_manifest.paths import escape

__all__ = [
    "DOCUMENT_BYTES_MAX",
    "ImageManifest",
    "Layer",
    "check_document",
    "decode_config",
    "decode_manifest",
    "is_index",
    "manifest_for",
    "rebuilt_layout",
]

DOCUMENT_BYTES_MAX: Final = 4 * 1024 * 1024
_LIMITS: Final = Limits(size_bytes_max=DOCUMENT_BYTES_MAX, depth_max=32, values_max=100_000)
_LAYERS_MAX: Final = 512
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")

_OCI = "application/vnd.oci.image"
_DOCKER = "application/vnd.docker"
_INDEXES: Final = {f"{_OCI}.index.v1+json", f"{_DOCKER}.distribution.manifest.list.v2+json"}
_MANIFESTS: Final = {f"{_OCI}.manifest.v1+json", f"{_DOCKER}.distribution.manifest.v2+json"}
_LAYERS: Final = {
    f"{_OCI}.layer.v1.tar": "none",
    f"{_OCI}.layer.v1.tar+gzip": "gzip",
    f"{_OCI}.layer.v1.tar+zstd": "zstd",
    f"{_DOCKER}.image.rootfs.diff.tar": "none",
    f"{_DOCKER}.image.rootfs.diff.tar.gzip": "gzip",
}
_MACHINES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A layer blob. `compression` is "none", "gzip" or "zstd"."""

    digest: str
    size_bytes: int
    compression: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageManifest:
    """A manifest: the digest of the configuration and the layers, the lowest first."""

    config: str
    layers: tuple[Layer, ...]


def check_document(raw: bytes, digest: str) -> bytes:
    """Return a document that is what its digest says.

    Raises:
        Refused: `image-digest-mismatch`.
    """
    got = f"sha256:{hashlib.sha256(raw).hexdigest()}"
    if got != digest:
        raise Refused(
            "image-digest-mismatch", "a document of an image is not the one that is pinned",
            expected=digest, got=got,
        )  # fmt: skip
    return raw


def is_index(raw: bytes, where: str) -> bool:
    """Say whether a document is an index over several platforms, by its own words.

    Raises:
        Refused: `image-malformed`, `json-*`.
    """
    document = _object(raw, where)
    kind = document.optional_text("mediaType") if document.has("mediaType") else None
    if kind is not None and kind not in _INDEXES | _MANIFESTS:
        raise _malformed("an unknown kind of image document", escape(kind), where)
    # Old layouts leave the media type out; the two kinds share no other field.
    return kind in _INDEXES if kind is not None else document.has("manifests")


def manifest_for(raw: bytes, machine: str, where: str) -> str:
    """Return the digest of the one manifest that an index has for Linux on a machine.

    An index that names no platform anywhere has one image, which is meant.

    Raises:
        Refused: `image-platform-missing`, `image-malformed`, `json-*`.
    """
    document = _object(raw, where)
    found = document.items("manifests", _platform_entry)
    wanted = f"linux/{_MACHINES[machine]}"
    # An attestation is listed like an image, for a platform that nobody has.
    images = [(digest, name) for digest, name in found if name != "unknown/unknown"]
    matching = [digest for digest, name in images if name == wanted]
    if not matching and len(images) == 1 and not images[0][1]:
        matching = [images[0][0]]
    if len(set(matching)) != 1:
        raise Refused(
            "image-platform-missing",
            "an image index has not one image for a platform",
            expected=f"one for {wanted}",
            got=", ".join(sorted(name or "no platform" for _, name in images)) or "none",
            where=where,
        )
    return matching[0]


def decode_manifest(raw: bytes, where: str) -> ImageManifest:
    """Read a manifest.

    Raises:
        Refused: `image-malformed`, `json-*`.
    """
    document = _object(raw, where)
    config = document.nested("config")
    layers = document.items("layers", _layer)
    if len(layers) > _LAYERS_MAX:
        raise _malformed(f"more than {_LAYERS_MAX} layers", len(layers), where)
    return ImageManifest(config=config.matching("digest", _DIGEST), layers=layers)


def decode_config(raw: bytes, machine: str, where: str) -> tuple[str, ...]:
    """Return the diffIDs of the layers of an image that is for Linux on `machine`.

    Raises:
        Refused: `image-platform-missing`, `image-malformed`, `json-*`.
    """
    document = _object(raw, where)
    name = f"{document.text('os')}/{document.text('architecture')}"
    if name != f"linux/{_MACHINES[machine]}":
        raise Refused(
            "image-platform-missing", "an image is for another platform",
            expected=f"linux/{_MACHINES[machine]}", got=escape(name), where=where,
        )  # fmt: skip
    diff_ids = document.nested("rootfs").texts("diff_ids")
    for item in diff_ids:
        if not _DIGEST.fullmatch(item):
            raise _malformed("a diffID is not SHA-256", escape(item), where)
    return diff_ids


def rebuilt_layout(
    config: str, config_bytes: int, layers: tuple[tuple[str, int], ...]
) -> tuple[bytes, str, bytes]:
    """Return the manifest, its digest and the index of a layout with uncompressed layers.

    `layers` are diffIDs with sizes in bytes. The configuration stays as it was, so the image keeps
    the id by which engines know it; the manifest differs, as the layers' blobs do.
    """
    manifest = encode(
        {
            "schemaVersion": 2,
            "mediaType": f"{_OCI}.manifest.v1+json",
            "config": _descriptor(f"{_OCI}.config.v1+json", config, config_bytes),
            "layers": [_descriptor(f"{_OCI}.layer.v1.tar", diff, size) for diff, size in layers],
        }
    )
    digest = f"sha256:{hashlib.sha256(manifest).hexdigest()}"
    index = encode(
        {
            "schemaVersion": 2,
            "mediaType": f"{_OCI}.index.v1+json",
            "manifests": [_descriptor(f"{_OCI}.manifest.v1+json", digest, len(manifest))],
        }
    )
    return manifest, digest, index


def _descriptor(kind: str, digest: str, size_bytes: int) -> JsonValue:
    return {"mediaType": kind, "digest": digest, "size": size_bytes}


def _platform_entry(item: Object) -> tuple[str, str]:
    name = ""
    if item.has("platform"):
        platform = item.nested("platform")
        name = f"{platform.text('os')}/{platform.text('architecture')}"
    return item.matching("digest", _DIGEST), name


def _layer(item: Object) -> Layer:
    kind = item.text("mediaType")
    if kind not in _LAYERS:
        raise _malformed("an unknown kind of layer", escape(kind), "layers")
    return Layer(
        digest=item.matching("digest", _DIGEST),
        size_bytes=item.integer("size"),
        compression=_LAYERS[kind],
    )


def _object(raw: bytes, where: str) -> Object:
    return Object(decode_foreign(raw, limits=_LIMITS, where=where), where)


def _malformed(what: str, got: object, where: str) -> Refused:
    return Refused("image-malformed", what, expected="an OCI image", got=got, where=where)
