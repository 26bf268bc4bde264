"""Everything through which an op acts on its host, as one value that is handed in.

Production builds it from the real disk, clock and processes; tests put models in its place. Nothing
of the install half reaches the world any other way.
"""

import grp
import pwd
from dataclasses import dataclass
from typing import Protocol

from capsule_installer.clock import Clock
from capsule_installer.disk import Disk
from capsule_installer.engines.base import Images
from capsule_installer.layout import Layout
from capsule_installer.processes import Processes
from capsule_installer.prove import Prover
from capsule_installer.receipts import ReceiptChain
from capsule_installer.services.base import ServiceManager
from capsule_installer.services.detached import Supervisors
from capsule_installer.state import HostState
from capsule_installer.timers import Timers
from capsule_installer.worker import Worker
from capsule_manifest.errors import Refused
from capsule_manifest.keys import Signer

__all__ = ["Accounts", "Effects", "FolderAccounts", "HostAccounts"]


class Accounts(Protocol):
    """Who owns managed files."""

    def ids(self, owner: str, group: str) -> tuple[int, int] | None:
        """Return the numbers of an owner and group, None where files stay whose they are.

        Raises:
            Refused: `account-unknown`.
        """
        ...


class HostAccounts:
    """The accounts of this machine."""

    def ids(self, owner: str, group: str) -> tuple[int, int] | None:
        """Look both up. Source: `Accounts.ids`."""
        try:
            return pwd.getpwnam(owner).pw_uid, grp.getgrnam(group).gr_gid
        except KeyError as error:
            raise Refused(
                "account-unknown", "a managed file's owner or group is no account of this host",
                got=f"{owner}:{group}",
            ) from error  # fmt: skip


class FolderAccounts:
    """The accounts of a folder host: everything in the folder belongs to whoever runs it."""

    def ids(self, owner: str, group: str) -> tuple[int, int] | None:
        """Leave files whose they are."""
        del owner, group
        return None


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
