"""Everything through which an op acts on its host, as one value that is handed in.

Production builds it from the real disk, clock and processes; tests put models in its place. Nothing
of the install half reaches the world any other way.
"""

from dataclasses import dataclass

from capsule_installer.engines.base import Images
from capsule_installer.host.layout import Layout
from capsule_installer.host.receipts import ReceiptChain
from capsule_installer.host.state import HostState
from capsule_installer.op.prove import Prover
from capsule_installer.op.worker import Worker
from capsule_installer.services.base import ServiceManager
from capsule_installer.services.detached import Supervisors
from capsule_installer.services.timers import Timers
from capsule_installer.system.accounts import Accounts, FolderAccounts, HostAccounts
from capsule_installer.system.clock import Clock
from capsule_installer.system.disk import Disk
from capsule_installer.system.processes import Processes
from capsule_manifest.keys import Signer

__all__ = ["Accounts", "Effects", "FolderAccounts", "HostAccounts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """The world of one host."""

    disk: Disk
    layout: Layout
    state: HostState
    chain: ReceiptChain
    signer: Signer
    node: str
    services: ServiceManager
    processes: Processes
    supervisors: Supervisors
    timers: Timers
    prover: Prover
    worker: Worker
    clock: Clock
    accounts: Accounts
    images: Images
