"""Build the effects of this machine: the one place where the install half meets the real world."""

import sys
from typing import Final

from capsule_installer import launch
from capsule_installer.engines.choice import make_images
from capsule_installer.guard.armed import GuardedWorker
from capsule_installer.guard.counters import read_traffic
from capsule_installer.guard.facts import host_levels, note_refusal
from capsule_installer.host.identity import require_node_key
from capsule_installer.host.layout import BOOT_UNIT, Layout
from capsule_installer.host.receipts import ReceiptChain
from capsule_installer.host.state import HostState
from capsule_installer.op.effects import Effects, FolderAccounts, HostAccounts
from capsule_installer.op.prove import ProbeHttp, ServiceProver
from capsule_installer.op.worker import StepWorker
from capsule_installer.services.choice import (
    make_services,
    make_supervisors,
    make_timers,
    manager_name,
)
from capsule_installer.system.clock import BootClock
from capsule_installer.system.conversation import RealConversations
from capsule_installer.system.disk import Disk
from capsule_installer.system.fsops import keep_name, make_dirs, replace_file, switch_link
from capsule_installer.system.processes import RealProcesses

__all__ = ["place_rescue", "real_effects"]

_RESCUE_FILES: Final = ("rescue.sh", "service-process.sh", "service-systemd.sh")
_SCRIPT_BYTES_MAX: Final = 1024 * 1024


def place_rescue(disk: Disk, layout: Layout) -> None:
    """Copy the shell programs outside every generation, durable, before any op needs them.

    A host with systemd also gets the unit that runs them at boot. It is read at the next boot, so
    nothing is reloaded here.

    Raises: `disk-*`.
    """
    for name in _RESCUE_FILES:
        _place(disk, name, f"{layout.recovery}/{name}", 0o755)
    if manager_name(disk, layout) == "systemd":
        _place(disk, BOOT_UNIT, f"{layout.units}/{BOOT_UNIT}", 0o644)
        wants = f"{layout.units}/sysinit.target.wants"
        if disk.stat(f"{wants}/{BOOT_UNIT}") is None:
            make_dirs(disk, wants, 0o755)
            switch_link(disk, f"{wants}/{BOOT_UNIT}", f"../{BOOT_UNIT}")
        else:
            keep_name(disk, f"{wants}/{BOOT_UNIT}")


def _place(disk: Disk, name: str, path: str, mode: int) -> None:
    # Only an install places it; every other verb would pay for the import.
    from importlib.resources import files

    data = files("capsule_installer").joinpath("shell", name).read_bytes()
    if disk.stat(path) is None or disk.read(path, _SCRIPT_BYTES_MAX) != data:
        replace_file(disk, path, data, mode)
    else:
        keep_name(disk, path)


def real_effects(disk: Disk, layout: Layout) -> Effects:
    """Return the effects of an enrolled host.

    Raises:
        Failed: `host-not-enrolled`.
        Refused: `node-key-exposed`, `key-malformed`, `document-*`.
    """
    signer = require_node_key(disk, layout)
    state = HostState(disk, layout)
    clock = BootClock()
    processes = RealProcesses()
    services = make_services(disk, layout, processes)
    images = make_images(disk, layout, processes, clock)
    return Effects(
        disk=disk,
        layout=layout,
        state=state,
        chain=ReceiptChain(disk, layout, signer),
        signer=signer,
        node=state.require_enrolment().node,
        services=services,
        processes=processes,
        supervisors=make_supervisors(layout, processes, services),
        timers=make_timers(layout, processes, services, clock),
        prover=ServiceProver(
            services=services,
            processes=processes,
            clock=clock,
            probe=ProbeHttp(),
            containers=images.containers,
        ),
        worker=GuardedWorker(
            plain=StepWorker(processes=processes, clock=clock),
            conversations=RealConversations(),
            processes=processes,
            clock=clock,
            program=[sys.executable, "-I", "-S", launch.__file__, "--root", "/", "guard"],
            levels=host_levels(layout, clock),
            traffic=read_traffic,
            on_refusal=lambda level: note_refusal(disk, layout, level, clock.boot_ms()),
        ),
        clock=clock,
        accounts=FolderAccounts() if layout.root else HostAccounts(),
        images=images,
    )
