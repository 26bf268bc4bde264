"""Which images a generation's units run: pure, from the signed manifest and the rendered units.

An image that no unit names is content like any other: it lies in the generation and needs no
engine.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from capsule_installer.engines.base import PIN_PREFIX, WantedImage
from capsule_installer.staging.render import image_values
from capsule_manifest.release import Component

__all__ = ["pin_name", "pinned_generation", "wanted_images"]

# Source: the grammar of a repository's path, OCI Distribution specification.
_PATH: Final = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")


def wanted_images(
    components: Iterable[Component], units: Mapping[str, str], folder: str
) -> tuple[WantedImage, ...]:
    """Return the images that the texts of rendered units name, by component.

    `folder` is the generation's.
    """
    wanted = []
    for name, image in sorted(image_values(components).items()):
        users = tuple(sorted(unit for unit, text in units.items() if image in text))
        if users:
            component = name.removeprefix("image.")
            wanted.append(
                WantedImage(name=component, id=image, layout=f"{folder}/{component}", units=users)
            )
    return tuple(wanted)


def pin_name(image: WantedImage, generation: str) -> str:
    """Return the name by which an engine keeps an image for a generation."""
    path = image.name if _PATH.fullmatch(image.name) else image.id.removeprefix("sha256:")
    return f"{PIN_PREFIX}{path}:{generation}"


def pinned_generation(name: str) -> str:
    """Return the generation that a name of `pin_name` is for."""
    return name.rpartition(":")[2]
