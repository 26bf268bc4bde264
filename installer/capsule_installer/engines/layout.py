"""Check an OCI layout against the id that the signed manifest gives its image.

The bytes were proved on their way in; what is proved here is that they are the image that units
name, before an engine reads them. Layers are checked by the engine, against these documents.

Source: OCI Image Layout specification 1.1.
"""

import hashlib
import re
from typing import Final

from capsule_installer.engines.base import WantedImage
from capsule_installer.system.disk import Disk
from capsule_manifest.canonical import Limits, decode_foreign
from capsule_manifest.errors import Refused
from capsule_manifest.fields import Object

__all__ = ["check_layout"]

_BYTES_MAX: Final = 4 * 1024 * 1024
_LIMITS: Final = Limits(size_bytes_max=_BYTES_MAX, depth_max=32, values_max=100_000)
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


def check_layout(disk: Disk, image: WantedImage) -> None:
    """Refuse a layout that does not hold the image, and it alone.

    Raises:
        Refused: `image-digest-wrong`, `json-*`, `document-invalid`.
    """
    try:
        index = _document(disk.read(f"{image.layout}/index.json", _BYTES_MAX), image)
        manifests = index.items("manifests", _descriptor)
        if len(manifests) != 1:
            raise _wrong("a layout holds not one image", image, "one", len(manifests))
        config = _descriptor(_document(_blob(disk, image, manifests[0]), image).nested("config"))
        if config != image.id:
            raise _wrong("a layout holds another image", image, image.id, config)
        _blob(disk, image, config)
    except OSError as error:
        raise _wrong("a layout lacks a document", image, "a whole layout", error) from None


def _blob(disk: Disk, image: WantedImage, digest: str) -> bytes:
    raw = disk.read(f"{image.layout}/blobs/{digest.replace(':', '/')}", _BYTES_MAX)
    got = f"sha256:{hashlib.sha256(raw).hexdigest()}"
    if got != digest:
        raise _wrong("a document of an image is not what its name says", image, digest, got)
    return raw


def _document(raw: bytes, image: WantedImage) -> Object:
    return Object(decode_foreign(raw, limits=_LIMITS, where=image.layout), image.layout)


def _descriptor(item: Object) -> str:
    return item.matching("digest", _DIGEST)


def _wrong(what: str, image: WantedImage, expected: object, got: object) -> Refused:
    return Refused("image-digest-wrong", what, expected=expected, got=got, where=image.layout)
