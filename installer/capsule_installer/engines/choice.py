"""Which container engine this host has: podman where it is installed, on a host with systemd."""

from typing import Final

from capsule_installer.engines.base import Images, NoImages
from capsule_installer.engines.images import EngineImages
from capsule_installer.engines.podman import Podman
from capsule_installer.host.layout import Layout
from capsule_installer.services.choice import manager_name
from capsule_installer.system.clock import Clock
from capsule_installer.system.disk import Disk
from capsule_installer.system.processes import CLEAN_ENVIRONMENT, Processes

__all__ = ["make_images"]

_PODMAN: Final = "podman"


def make_images(disk: Disk, layout: Layout, processes: Processes, clock: Clock) -> Images:
    """Return this host's images.

    A folder host has none: what its containers are would be visible nowhere in the folder, and
    without systemd nothing says which unit a container belongs to.
    """
    program = _program(disk, _PODMAN)
    if program is None or manager_name(disk, layout) != "systemd":
        return NoImages()
    engine = Podman(
        processes=processes,
        program=program,
        sync=lambda path: disk.sync_filesystem(path, "loaded image"),
    )
    return EngineImages(disk=disk, layout=layout, clock=clock, engine=engine)


def _program(disk: Disk, name: str) -> str | None:
    paths = (f"{folder}/{name}" for folder in CLEAN_ENVIRONMENT["PATH"].split(":"))
    return next((path for path in paths if disk.stat(path) is not None), None)
