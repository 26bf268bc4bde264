"""A container engine as a Protocol, and what the steps of a release ask of it.

An engine's store belongs to the engine: it has a garbage collector and an administrator of its own.
So what is in it is never relied on without a look, and everything in it can be made again from the
layout in the generation, without a network.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final, Protocol

from capsule_manifest.errors import Refused

__all__ = ["PIN_PREFIX", "Container", "Engine", "Images", "NoImages", "WantedImage"]

PIN_PREFIX: Final = "capsule.local/"
"""How the names begin by which images of generations are kept; no registry has this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedImage:
    """An image that units of one generation run.

    `id` is `sha256:` and the digest of its configuration. `layout` is the folder of an OCI layout.
    """

    name: str
    id: str
    layout: str
    units: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A running container: its own id, the id of its image, its first process on this host."""

    id: str
    image: str
    pid: int


class Engine(Protocol):
    """What is done with an engine. Images are named by id, limits are milliseconds."""

    @property
    def name(self) -> str:
        """Return the engine's name, for people."""
        ...

    def holds(self, image: str) -> bool:
        """Say whether the engine has an image now.

        Raises:
            Failed: `engine-failed`, `process-*`.
        """
        ...

    def load(self, layout: str, timeout_ms: int) -> None:
        """Take the one image of an OCI layout, from its folder alone; again is no error.

        Durable once it returns. A stop or a power loss before that may leave an image that the
        engine holds and that is not whole.

        Raises:
            Failed: `image-load-failed`, `engine-failed`, `process-*`, `disk-*`.
        """
        ...

    def discard(self, image: str) -> None:
        """Remove an image with all its names; none is no error.

        Raises:
            Failed: `engine-failed` while a container uses it, `process-*`.
        """
        ...

    def pin(self, image: str, name: str) -> None:
        """Give an image that the engine holds one more name; again is no error.

        Raises:
            Failed: `engine-failed`, `process-*`.
        """
        ...

    def unpin(self, name: str) -> None:
        """Take a name away, and the image with its last name unless a container uses it.

        Raises:
            Failed: `engine-failed`, `process-*`.
        """
        ...

    def pins(self) -> dict[str, str]:
        """Return each name that begins with `PIN_PREFIX`, and the id of its image.

        Raises:
            Failed: `engine-failed`, `process-*`.
        """
        ...

    def containers(self) -> tuple[Container, ...]:
        """Return the containers that run.

        Raises:
            Failed: `engine-failed`, `process-*`.
        """
        ...


class Images(Protocol):
    """What staging, installing and collecting ask about images."""

    def ensure(
        self, images: Sequence[WantedImage], generation: str, until_ms: int
    ) -> tuple[str, ...]:
        """Make the engine hold and keep these; return the names of those that it lacked.

        Raises:
            Refused: `engine-missing`, `image-digest-wrong`.
            Failed: `image-load-failed`, `engine-failed`, `process-*`, `disk-*`.
        """
        ...

    def require(self, images: Sequence[WantedImage], until_ms: int) -> None:
        """Look whether the engine still holds these, and load again what it lost.

        Raises:
            Failed: `image-gone`, `engine-failed`, `process-*`.
        """
        ...

    def forget(self, kept: AbstractSet[str]) -> int:
        """Let the engine drop what it keeps for generations other than `kept`; return how many.

        Raises:
            Failed: `engine-failed`, `process-*`.
        """
        ...

    def containers(self) -> tuple[Container, ...]:
        """Return the containers that run. Raises: as `Engine.containers`."""
        ...


class NoImages:
    """A host without an engine."""

    def ensure(
        self, images: Sequence[WantedImage], generation: str, until_ms: int
    ) -> tuple[str, ...]:
        """Refuse what needs an engine. Source: `Images.ensure`."""
        del generation, until_ms
        if images:
            raise Refused(
                "engine-missing",
                "units run images, and this host has no engine for them",
                expected="podman, on a host with systemd",
                where=", ".join(f"{unit} from {item.name}" for item in images
                                for unit in item.units),
            )  # fmt: skip
        return ()

    def require(self, images: Sequence[WantedImage], until_ms: int) -> None:
        """Refuse what needs an engine. Source: `Images.require`."""
        self.ensure(images, "", until_ms)

    def forget(self, kept: AbstractSet[str]) -> int:
        """Keep nothing, so there is nothing to drop. Source: `Images.forget`."""
        del kept
        return 0

    def containers(self) -> tuple[Container, ...]:
        """Return none. Source: `Images.containers`."""
        return ()
