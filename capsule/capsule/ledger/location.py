"""Where a SQLite ledger may lie: on a file system of this machine.

SQLite's locks and its shared memory don't work over a network, and a lease that two machines both
hold is the failure that the ledger exists to prevent.
"""

from pathlib import Path
from typing import Final

from capsule_manifest.errors import Refused

__all__ = ["check_location", "filesystem_of"]

NETWORK_TYPES: Final = frozenset(
    {
        "nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "gfs2",
        "ocfs2", "beegfs", "virtiofs", "davfs", "ncpfs",
    }
)  # fmt: skip


def check_location(path: Path, mountinfo: str) -> None:
    """Refuse a path on a network file system.

    `mountinfo` is the text of `/proc/self/mountinfo`. Source: proc_pid_mountinfo(5).

    Raises:
        Refused: `ledger-on-network`.
    """
    kind = filesystem_of(path, mountinfo)
    if kind in NETWORK_TYPES or kind.startswith("fuse."):
        raise Refused(
            "ledger-on-network",
            "the ledger would lie on a network file system",
            expected="a file system of this machine, or PostgreSQL",
            got=kind,
            where=path,
        )


def filesystem_of(path: Path, mountinfo: str) -> str:
    """Return the type of the file system that holds an absolute path, "" if unknown."""
    best, kind = "", ""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, types = before.split(), after.split()
        if len(fields) < 5 or not types:
            continue
        # Spaces and the like are octal escapes in this file.
        point = fields[4].encode().decode("unicode_escape")
        # The last of several mounts on one point is the one that is seen, hence >=.
        if path.is_relative_to(point) and len(point) >= len(best):
            best, kind = point, types[0]
    return kind
