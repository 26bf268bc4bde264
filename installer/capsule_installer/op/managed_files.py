"""Whether a managed file is as its release put it: kind, bytes, mode and owner.

One comparison for everybody who asks: the survey before anything stops, the op before it lays
anything beside, the repair, and the verb that sets an edited file aside.

Source: design, section 9 ("Markers and identity"); `docs/reference/managed-files.md`.
"""

from dataclasses import dataclass
from typing import Final

from capsule_installer.op.switch_plan import aside_name
from capsule_installer.system.disk import Disk, FileKind, FileStat
from capsule_manifest.digest import ObjectId, blake3_text, object_id
from capsule_manifest.errors import CapsuleError

__all__ = ["ABSENT_FILE", "FILE_BYTES_MAX", "WantedFile", "difference", "names_aside"]

ABSENT_FILE: Final = "absent"
FILE_BYTES_MAX: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedFile:
    """What shall be at `path`. `mode` and `owner` are None where anything will do."""

    path: str
    digest: ObjectId
    mode: int | None
    owner: tuple[int, int] | None

    @property
    def text(self) -> str:
        """Return it as an operator reads it."""
        mode = "" if self.mode is None else f", mode {self.mode:#o}"
        owner = "" if self.owner is None else f", owner {_owner(*self.owner)}"
        return f"{blake3_text(self.digest)}{mode}{owner}"


def difference(disk: Disk, wanted: WantedFile) -> str:
    """Return "" if the file is as wanted, `absent`, or everything in which it differs.

    A link to a file with the wanted bytes differs: whoever owns what it leads to owns the file.
    """
    try:
        found = disk.stat(wanted.path)
        if found is None:
            return ABSENT_FILE
        if found.kind is not FileKind.FILE:
            return f"a {found.kind}"
        got = object_id(disk.read(wanted.path, FILE_BYTES_MAX))
    except FileNotFoundError:
        return ABSENT_FILE
    except (CapsuleError, OSError) as error:
        return f"can't be read: {error}"
    differs = [] if got == wanted.digest else [blake3_text(got)]
    return ", ".join([*differs, *_attributes(found, wanted)])


def names_aside(disk: Disk, path: str) -> list[str]:
    """Return the names beside `path` under which edits lie that nobody has set aside yet.

    The first free name is given and the last one is finished first, so there is no gap.
    """
    names: list[str] = []
    while disk.stat(name := aside_name(path, len(names) + 1)) is not None:
        names.append(name)
    return names


def _attributes(found: FileStat, wanted: WantedFile) -> list[str]:
    differs = []
    if wanted.mode is not None and found.mode != wanted.mode:
        differs.append(f"mode {found.mode:#o}")
    if wanted.owner is not None and (found.uid, found.gid) != wanted.owner:
        differs.append(f"owner {_owner(found.uid, found.gid)}")
    return differs


def _owner(uid: int, gid: int) -> str:
    return f"{uid}:{gid}"
