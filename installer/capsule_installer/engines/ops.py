"""What an op makes sure of before it stops anything: the images of both releases."""

from capsule_installer.op.effects import Effects
from capsule_installer.op.installed import Installation
from capsule_manifest.errors import CapsuleError

__all__ = ["keep_images"]


def keep_images(
    effects: Effects, old: Installation | None, new: Installation, until_ms: int
) -> None:
    """Make the engine hold what the new release runs, and what a restore would start.

    An engine may lose the image of the old release as soon as that is stopped. Where the old
    release is down already there is nothing to come back to, and the new one may be what mends it.

    Raises: as `Images.ensure`; for the old release only while one of its units runs.
    """
    if new.images:
        effects.images.ensure(new.images, new.marker.generation, until_ms)
    if old is None or not old.images:
        return
    try:
        effects.images.ensure(old.images, old.marker.generation, until_ms)
    except CapsuleError:
        units = {unit for image in old.images for unit in image.units}
        if any(effects.services.state(unit).active for unit in units):
            raise
