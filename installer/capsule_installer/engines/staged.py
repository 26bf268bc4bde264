"""Load a generation's images while it is staged, when services still run and time is no outage."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from capsule_installer.engines.base import Images
from capsule_installer.engines.wanted import wanted_images
from capsule_installer.system.clock import Clock
from capsule_manifest.release import Component

__all__ = ["load_staged_images"]

_LOAD_MS: Final = 1_800_000
_UNITS: Final = "units/"


def load_staged_images(
    images: Callable[[], Images],
    components: Iterable[Component],
    rendered: Mapping[str, bytes],
    *,
    folder: str,
    clock: Clock,
) -> bool:
    """Make the engine hold what the rendered units of a realised generation run; say if any do.

    `folder` is the generation's. `images` is called only if there are any.

    Raises: as `Images.ensure`.
    """
    units = {
        path.removeprefix(_UNITS): data.decode()
        for path, data in rendered.items()
        if path.startswith(_UNITS)
    }
    wanted = wanted_images(components, units, folder)
    if wanted:
        images().ensure(wanted, folder.rpartition("/")[2], clock.boot_ms() + _LOAD_MS)
    return bool(wanted)
