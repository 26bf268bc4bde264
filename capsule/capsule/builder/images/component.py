"""The image components of a release: pinned for each platform, and built from their pins."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from capsule.builder.config import ImageSource, ReleaseSource
from capsule.builder.content_cache import ContentCache
from capsule.builder.images.image import image_entries
from capsule.builder.images.source import ImageOrigin, ImageStore
from capsule.builder.lockfile import ImagePin
from capsule.builder.model import ComponentInput
from capsule_manifest.errors import Refused

__all__ = ["fetch_images", "image_inputs", "image_pins", "moved_images", "pin_images"]

Pins = Mapping[tuple[str, str], ImagePin]


def pin_images(
    release: ReleaseSource, cache: ContentCache, known: Pins, *, report: Callable[[str], None]
) -> dict[tuple[str, str], ImagePin]:
    """Return the pin of each image on each platform; `known` is kept to where it answers.

    A tag that moved since is followed only where the question changed: ask for an upgrade by
    removing the pin.

    Raises:
        Refused: `image-*`, `json-*`, `document-invalid`.
        Failed: `image-fetch-failed`, `cache-failed`.
    """
    store = ImageStore(cache, cache.images)
    pins = {}
    for component, platform, origin in _asked(release):
        report(f"{component.name} for {platform}")
        machine = release.platforms[platform].machine
        pin = known.get((component.name, platform))
        is_moving = origin.layout is not None and origin.digest is None
        if pin is None or pin.input_sha256 != _question(component, origin) or is_moving:
            digest = store.resolve(origin, machine)
            pin = ImagePin(
                input_sha256=_question(component, origin),
                manifest_sha256=digest.removeprefix("sha256:"),
            )
        # Read whole now: a damaged image is found by who can still choose another.
        store.obtain(origin, f"sha256:{pin.manifest_sha256}", machine)
        pins[component.name, platform] = pin
    return pins


def moved_images(
    release: ReleaseSource, cache: ContentCache, pins: Pins, *, report: Callable[[str], None]
) -> dict[tuple[str, str], str]:
    """Return the images whose name in a registry stands for another one now, by its digest.

    Raises:
        Refused: `image-*`, `json-*`.
        Failed: `image-fetch-failed`.
    """
    store = ImageStore(cache, cache.images)
    moved = {}
    for component, platform, origin in _asked(release):
        pin = pins.get((component.name, platform))
        if pin is None or origin.reference is None or origin.digest is not None:
            continue
        report(f"{component.name} for {platform}, as it is now")
        digest = store.resolve(origin, release.platforms[platform].machine)
        if digest != f"sha256:{pin.manifest_sha256}":
            moved[component.name, platform] = digest
    return moved


def image_pins(release: ReleaseSource, pins: Pins) -> Iterator[tuple[str, str, str | None]]:
    """Yield each image component, its platform, and the digest that answers what it asks now."""
    for component, platform, origin in _asked(release):
        pin = pins.get((component.name, platform))
        is_answer = pin is not None and pin.input_sha256 == _question(component, origin)
        yield component.name, platform, pin.manifest_sha256 if pin and is_answer else None


def fetch_images(
    release: ReleaseSource, cache: ContentCache, pins: Pins, *, report: Callable[[str], None]
) -> int:
    """Fetch all images that are pinned into the cache; return how many.

    Raises:
        Refused: `lock-stale`, `image-*`, `json-*`, `document-invalid`.
        Failed: `image-fetch-failed`, `cache-failed`.
    """
    store = ImageStore(cache, cache.images)
    count = 0
    for component, platform, origin in _asked(release):
        report(f"{component.name} for {platform}")
        digest = _pinned(component, platform, origin, pins)
        store.obtain(origin, digest, release.platforms[platform].machine)
        count += 1
    return count


def image_inputs(
    release: ReleaseSource, cache: ContentCache, pins: Pins, *, report: Callable[[str], None]
) -> Iterator[ComponentInput]:
    """Yield the image components; platforms with the same image share one.

    Raises:
        Refused: `lock-stale`, `image-*`, `json-*`, `document-invalid`.
        Failed: `image-fetch-failed`, `cache-failed`.
    """
    store = ImageStore(cache, cache.images)
    groups: dict[tuple[str, str], list[str]] = {}
    asked = {}
    for component, platform, origin in _asked(release):
        digest = _pinned(component, platform, origin, pins)
        groups.setdefault((component.name, digest), []).append(platform)
        asked[component.name] = (component, origin)
    for (name, digest), platforms in groups.items():
        report(name)
        component, origin = asked[name]
        image = store.obtain(origin, digest, release.platforms[platforms[0]].machine)
        entries, external = image_entries(image)
        is_for_all = not component.platforms and len(platforms) == len(release.platforms)
        yield ComponentInput(
            name=name,
            kind=component.kind.value,
            platforms=() if is_for_all else tuple(sorted(platforms)),
            entries=entries,
            external=external,
        )


def _asked(release: ReleaseSource) -> Iterator[tuple[ImageSource, str, ImageOrigin]]:
    for component in release.components:
        if isinstance(component, ImageSource):
            origin = _origin(component, release.folder)
            for platform in release.platforms_of(component):
                yield component, platform, origin


def _origin(component: ImageSource, folder: Path) -> ImageOrigin:
    return ImageOrigin(
        name=component.reference or PurePosixPath(component.layout or "").name,
        layout=folder / component.layout if component.layout is not None else None,
        reference=component.reference,
        digest=component.digest,
    )


def _question(component: ImageSource, origin: ImageOrigin) -> str:
    # Of the path as it is written: two checkouts ask the same.
    return origin.input_sha256(component.layout or "")


def _pinned(component: ImageSource, platform: str, origin: ImageOrigin, pins: Pins) -> str:
    pin = pins.get((component.name, platform))
    if pin is None or pin.input_sha256 != _question(component, origin):
        raise Refused(
            "lock-stale", "the lock has no pin of an image as it is asked for now",
            expected=origin.name, where=f"release.lock: images.{component.name}.{platform}",
        )  # fmt: skip
    return f"sha256:{pin.manifest_sha256}"
