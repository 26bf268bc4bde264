"""Images of generations in the store of this host's engine: loaded, checked, pinned, found again.

A pin is a name, which keeps an image from a collector that takes nameless ones. A collector that
takes all unused images takes these too, so the engine is asked again just before the stop and just
before the start, and what is gone is loaded from the generation's own layout.

An engine may also hold what a power loss has left of a load. So there is a note for as long as one
is under way, and what it is about is never taken for an image.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from capsule_installer.engines.base import Container, Engine, WantedImage
from capsule_installer.engines.layout import check_layout
from capsule_installer.engines.wanted import pin_name, pinned_generation
from capsule_installer.host.layout import Layout
from capsule_installer.system.clock import Clock
from capsule_installer.system.disk import Disk
from capsule_installer.system.fsops import make_dirs, replace_file
from capsule_manifest.errors import CapsuleError, Failed, Refused

__all__ = ["EngineImages"]


class EngineImages:
    """`Images` of one engine."""

    def __init__(self, *, disk: Disk, layout: Layout, clock: Clock, engine: Engine) -> None:
        self._disk = disk
        self._used = f"{layout.state}/engines/{engine.name}"
        self._clock = clock
        self._engine = engine

    def ensure(
        self, images: Sequence[WantedImage], generation: str, until_ms: int
    ) -> tuple[str, ...]:
        """Load what the engine lacks, pin all. Source: `Images.ensure`."""
        loaded = []
        for image in images:
            if self._load(image, until_ms):
                loaded.append(image.name)
            # Before the first pin: a collection then knows to look for pins that a stop left.
            make_dirs(self._disk, self._used, 0o700)
            self._engine.pin(image.id, pin_name(image, generation))
        return tuple(loaded)

    def require(self, images: Sequence[WantedImage], until_ms: int) -> None:
        """Load again what the engine lost. Source: `Images.require`."""
        for image in images:
            try:
                self._load(image, until_ms)
            except CapsuleError as error:
                raise Failed(
                    "image-gone", f"{self._engine.name} lost an image and does not take it again",
                    expected=image.id, got=error, where=image.name,
                ) from error  # fmt: skip

    def forget(self, kept: AbstractSet[str]) -> int:
        """Drop the pins of other generations. Source: `Images.forget`."""
        if self._disk.stat(self._used) is None:
            return 0
        dropped = [name for name in self._engine.pins() if pinned_generation(name) not in kept]
        for name in dropped:
            self._engine.unpin(name)
        return len(dropped)

    def containers(self) -> tuple[Container, ...]:
        """Ask the engine. Source: `Images.containers`."""
        return self._engine.containers()

    def _load(self, image: WantedImage, until_ms: int) -> bool:
        note = f"{self._used}/{image.id.removeprefix('sha256:')}.loading"
        is_torn = self._disk.stat(note) is not None
        if self._engine.holds(image.id) and (not is_torn or self._runs(image.id)):
            # What a rescue has loaded over a note may serve by now: it can't be dropped, and the
            # note stays for when it can.
            return False
        check_layout(self._disk, image)
        make_dirs(self._disk, self._used, 0o700)
        replace_file(self._disk, note, b"", 0o600)
        pins: list[str] = []
        if is_torn:
            # Also those of other generations, which would not be asked for again.
            pins = [name for name, held in self._engine.pins().items() if held == image.id]
            # An engine keeps layers that it knows by name, also of an image that it does not hold
            # yet. With the image it drops them, so it is made once only to be dropped.
            self._engine.discard(image.id)
            self._engine.load(image.layout, self._left_ms(until_ms))
            self._engine.discard(image.id)
        self._engine.load(image.layout, self._left_ms(until_ms))
        if not self._engine.holds(image.id):
            raise Refused(
                "image-digest-wrong", f"{self._engine.name} made another image of a layout",
                expected=image.id, got="an image with another id", where=image.layout,
            )  # fmt: skip
        for name in pins:
            self._engine.pin(image.id, name)
        self._disk.unlink(note)
        # A note that came back would have an image removed that serves by then.
        self._disk.fsync_dir(self._used, "finished load's note")
        return True

    def _runs(self, image: str) -> bool:
        return any(container.image == image for container in self._engine.containers())

    def _left_ms(self, until_ms: int) -> int:
        return max(1, until_ms - self._clock.boot_ms())
