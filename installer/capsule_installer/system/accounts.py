"""Who owns managed files: names of accounts to numbers."""

import grp
import pwd
from typing import Protocol

from capsule_manifest.errors import Refused

__all__ = ["Accounts", "FolderAccounts", "HostAccounts"]


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
