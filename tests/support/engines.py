"""Container engines of tests: one that only remembers, and images small enough to be made anew."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from capsule_installer.engines.base import PIN_PREFIX, Container
from capsule_installer.system.disk import Disk
from capsule_manifest.errors import Failed
from capsule_manifest.release import External
from support.images import ImageFile, digest_of

__all__ = ["FakeEngine", "config_of", "layout_files", "named_by"]


def layout_files(image: ImageFile) -> dict[str, bytes]:
    """Return the files of the layout of an image with plain layers, as a component has them."""
    assert image.compression == "none", "a component's layers are plain"
    manifest, blobs = image.blobs()
    index = {
        "schemaVersion": 2,
        "manifests": [
            {
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "digest": manifest,
                "size": len(blobs[manifest]),
            }
        ],
    }
    files = {f"blobs/{digest.replace(':', '/')}": data for digest, data in blobs.items()}
    files["index.json"] = json.dumps(index).encode()
    files["oci-layout"] = b'{"imageLayoutVersion":"1.0.0"}'
    return files


def config_of(image: ImageFile) -> str:
    """Return the id of an image: the digest of its configuration."""
    manifest, blobs = image.blobs()
    digest: str = json.loads(blobs[manifest])["config"]["digest"]
    return digest


def named_by(name: str, image: ImageFile) -> tuple[External, ...]:
    """Return what the builder says of an image in the release manifest."""
    return (
        External(type="image", name=name, digest=image.blobs()[0]),
        External(type="image-config", name=name, digest=config_of(image)),
    )


@dataclass(kw_only=True)
class FakeEngine:
    """An engine with a store in memory, which reads layouts through `disk`.

    `breaks` maps a layout to the id that the engine makes of it instead; `refuses` is what it says
    when it takes no image at all.
    """

    disk: Disk
    store: dict[str, set[str]] = field(default_factory=dict)
    running: tuple[Container, ...] = ()
    breaks: Mapping[str, str] = field(default_factory=dict)
    refuses: str = ""
    loads: list[str] = field(default_factory=list)
    discarded: list[str] = field(default_factory=list)

    name = "fake"

    def holds(self, image: str) -> bool:
        return image in self.store

    def load(self, layout: str, timeout_ms: int) -> None:
        if self.refuses:
            raise Failed("image-load-failed", "the engine takes nothing", got=self.refuses)
        self.loads.append(layout)
        try:
            image = self._read(layout)
        except (OSError, ValueError) as error:
            raise Failed("image-load-failed", "no layout", got=error, where=layout) from error
        self.store.setdefault(self.breaks.get(layout, image), set())

    def discard(self, image: str) -> None:
        if image in {item.image for item in self.running}:
            raise Failed("engine-failed", "a container uses it", got=image)
        self.discarded.append(image)
        self.store.pop(image, None)

    def pin(self, image: str, name: str) -> None:
        if image not in self.store:
            raise Failed("engine-failed", "no such image", got=image)
        for names in self.store.values():
            names.discard(name)
        self.store[image].add(name)

    def unpin(self, name: str) -> None:
        for image, names in list(self.store.items()):
            if name in names:
                names.discard(name)
                if not names and image not in {item.image for item in self.running}:
                    del self.store[image]

    def pins(self) -> dict[str, str]:
        return {
            name: image
            for image, names in self.store.items()
            for name in names
            if name.startswith(PIN_PREFIX)
        }

    def containers(self) -> tuple[Container, ...]:
        return self.running

    def prune(self, *, every_unused: bool) -> None:
        """Collect as engines do: images without a name, or all that no container uses."""
        used = {item.image for item in self.running}
        for image, names in list(self.store.items()):
            if image not in used and (every_unused or not names):
                del self.store[image]

    def _read(self, layout: str) -> str:
        index = json.loads(self.disk.read(f"{layout}/index.json", 2**20))
        raw = self._blob(layout, index["manifests"][0]["digest"])
        manifest = json.loads(raw)
        for item in (manifest["config"], *manifest["layers"]):
            self._blob(layout, item["digest"])
        image: str = manifest["config"]["digest"]
        return image

    def _blob(self, layout: str, digest: str) -> bytes:
        raw = self.disk.read(f"{layout}/blobs/{digest.replace(':', '/')}", 2**26)
        if digest_of(raw) != digest:
            got = hashlib.sha256(raw).hexdigest()
            message = f"a blob is {got}, not {digest}"
            raise ValueError(message)
        return raw
