"""Build the effects of this machine: the one place where the install half meets the real world."""

from importlib.resources import files
from typing import Final

from capsule_installer.clock import BootClock
from capsule_installer.disk import Disk
from capsule_installer.effects import Effects, FolderAccounts, HostAccounts
from capsule_installer.fsops import replace_file
from capsule_installer.identity import require_node_key
from capsule_installer.layout import Layout
from capsule_installer.processes import RealProcesses
from capsule_installer.prove import ProbeHttp, ServiceProver
from capsule_installer.receipts import ReceiptChain
from capsule_installer.services.process import ProcessServices
from capsule_installer.state import HostState
from capsule_installer.timers import ProcessTimers
from capsule_installer.worker import StepWorker

__all__ = ["place_rescue", "real_effects"]

_RESCUE_FILES: Final = ("rescue.sh", "service-process.sh")
_SCRIPT_BYTES_MAX: Final = 1024 * 1024


def place_rescue(disk: Disk, layout: Layout) -> None:
    """Copy the shell programs outside every generation, durable, before any op needs them.

    Raises: `disk-*`.
    """
    for name in _RESCUE_FILES:
        data = files("capsule_installer").joinpath("shell", name).read_bytes()
        path = f"{layout.recovery}/{name}"
        if disk.stat(path) is None or disk.read(path, _SCRIPT_BYTES_MAX) != data:
            replace_file(disk, path, data, 0o755)


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
    services = ProcessServices(
        disk=disk,
        layout=layout,
        processes=processes,
        script=f"{layout.recovery}/service-process.sh",
    )
    return Effects(
        disk=disk,
        layout=layout,
        state=state,
        chain=ReceiptChain(disk, layout, signer),
        signer=signer,
        node=state.require_enrolment().node,
        services=services,
        processes=processes,
        timers=ProcessTimers(layout=layout, processes=processes),
        prover=ServiceProver(
            services=services, processes=processes, clock=clock, probe=ProbeHttp()
        ),
        worker=StepWorker(processes=processes, clock=clock),
        clock=clock,
        accounts=FolderAccounts() if layout.root else HostAccounts(),
    )
