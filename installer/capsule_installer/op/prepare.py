"""Lay everything beside its target that a switch or its restore will need, before anything changes.

First the changes are found and checked: a file that an administrator edited, or that stands where
capsule has put none, is never overwritten. Then new content is written under a waiting name and the
present content gets a second name. Nothing here is visible to a service.

Source: design, section 9; ADR 0081.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from capsule_installer.op.effects import Effects
from capsule_installer.op.installed import Installation, PlacedFile, installed_marker_path
from capsule_installer.op.managed_files import (
    ABSENT_FILE,
    FILE_BYTES_MAX,
    WantedFile,
    difference,
    names_aside,
)
from capsule_installer.op.switch_plan import (
    Change,
    Group,
    NameOperation,
    aside_name,
    folders_of,
    new_name,
    old_name,
)
from capsule_installer.system.disk import Disk, FileKind
from capsule_installer.system.fsops import make_dirs
from capsule_manifest.digest import ObjectId, object_id
from capsule_manifest.errors import Failed, Refused
from capsule_manifest.orders import ABSENT, Order

__all__ = ["Target", "find_targets", "lay_beside", "require_as_prepared", "wanted_file"]

_QUICK_BYTES_MAX: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One change with its new content: `data` for a file, `leads_to` for a link."""

    change: Change
    data: bytes | None = None
    leads_to: str | None = None
    mode: int = 0o644
    owner: tuple[int, int] | None = None


def find_targets(
    effects: Effects,
    order: Order,
    old: Installation | None,
    new: Installation,
    marker: bytes,
) -> list[Target]:
    """Return every name that the op will change. `marker` is the signed marker of the new state.

    Raises:
        Refused: `managed-file-edited`, `account-unknown`, `unit-unsupported`.
    """
    return [
        *_units(effects, old, new),
        *_files(effects, old, new),
        *_links(effects, order),
        _file(
            effects.disk,
            installed_marker_path(effects.layout),
            Group.LINK,
            data=marker,
            mode=0o600,
        ),
    ]


def lay_beside(
    effects: Effects, op_id: str, targets: Sequence[Target], clean: Sequence[NameOperation]
) -> None:
    """Write the waiting and the kept names of all targets, durable.

    Raises: `disk-*`.
    """
    disk = effects.disk
    for target in targets:
        make_dirs(disk, target.change.path.rpartition("/")[0], 0o755)
        _lay_new(disk, new_name(target.change.path, op_id), target)
        if target.change.had:
            _lay_old(disk, target.change.path, old_name(target.change.path, op_id))
    for folder in folders_of(clean):
        # The switch renames these names, the restore may have to after a power cut.
        disk.fsync_dir(folder, "waiting and kept names")


def wanted_file(effects: Effects, file: PlacedFile) -> WantedFile:
    """Return what shall be where a generation puts `file`. Raises: `account-unknown`."""
    return WantedFile(
        path=file.target,
        digest=file.digest,
        mode=file.mode,
        owner=effects.accounts.ids(file.owner, file.group),
    )


def require_as_prepared(
    disk: Disk, targets: Sequence[Target], old: Installation | None, op_id: str
) -> None:
    """Refuse to switch over a managed file that somebody changed since it was looked at.

    What he put there first gets the name under which `set_aside` finds it, so that not even the
    restore that follows overwrites it. A file that was written into in place is looked into only
    where that is quick: services are stopped meanwhile.

    Raises:
        Failed: `managed-file-changing`.
    """
    digests = {} if old is None else {file.target: file.digest for file in old.files}
    for target in targets:
        path, kept = target.change.path, old_name(target.change.path, op_id)
        if target.change.group is not Group.FILE:
            continue
        if _is_as_kept(disk, path, kept) and _has_still(disk, path, digests.get(path)):
            continue
        aside = aside_name(path, len(names_aside(disk, path)) + 1)
        disk.rename(path, aside)
        # The restore gives its name to other bytes next.
        disk.fsync_dir(path.rpartition("/")[0] or "/", "late edit's name")
        raise Failed(
            "managed-file-changing", "a managed file was changed while an op began",
            got=f"kept as {aside}", where=path,
        )  # fmt: skip


def _is_as_kept(disk: Disk, path: str, kept: str) -> bool:
    found, before = disk.stat(path), disk.stat(kept)
    if found is None or before is None:
        # Removed since: nothing that could be lost. Or put where nothing was.
        return found is None
    if found.kind is not FileKind.FILE:
        return False
    if found.inode == before.inode:
        return True
    # Kept as a copy, where a file can't have a second name.
    return found.size_bytes == before.size_bytes and disk.read(path, FILE_BYTES_MAX) == disk.read(
        kept, FILE_BYTES_MAX
    )


def _has_still(disk: Disk, path: str, digest: ObjectId | None) -> bool:
    found = disk.stat(path)
    if digest is None or found is None or found.size_bytes > _QUICK_BYTES_MAX:
        return True
    return object_id(disk.read(path, FILE_BYTES_MAX)) == digest


def _units(effects: Effects, old: Installation | None, new: Installation) -> list[Target]:
    old_units = old.units if old else {}
    for name, text in old_units.items():
        _check_ours(effects.disk, f"{effects.layout.units}/{name}", object_id(text.encode()))
    wanted = _unit_files(effects, new.units)
    present = _unit_files(effects, old_units)
    for name in sorted(set(wanted) - set(present)):
        _check_free(effects.disk, f"{effects.layout.units}/{name}", wanted[name])
    return [
        _file(effects.disk, f"{effects.layout.units}/{name}", Group.UNIT, data=wanted.get(name))
        for name in sorted(set(wanted) | set(present))
    ]


def _unit_files(effects: Effects, units: Mapping[str, str]) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for name, text in units.items():
        files[name] = text.encode()
        files |= effects.services.companions(name, text)
    return files


def _files(effects: Effects, old: Installation | None, new: Installation) -> list[Target]:
    known = {file.target: file for file in old.files} if old else {}
    wanted = {file.target: file for file in new.files}
    targets = []
    for path in sorted(set(known) | set(wanted)):
        file = wanted.get(path)
        data = None if file is None else effects.disk.read(file.source, FILE_BYTES_MAX)
        _check_nothing_aside(effects.disk, path)
        if path in known:
            _check_managed(effects, known[path])
        elif data is not None:
            _check_free(effects.disk, path, data)
        targets.append(
            _file(
                effects.disk,
                path,
                Group.FILE,
                data=data,
                mode=0o644 if file is None else file.mode,
                owner=None if file is None else effects.accounts.ids(file.owner, file.group),
            )
        )
    return targets


def _links(effects: Effects, order: Order) -> list[Target]:
    links = {effects.layout.current: f"generations/{order.generation}"}
    # Installing again what is installed leaves the way back as it is.
    if order.prior not in {ABSENT, order.generation}:
        links[effects.layout.previous] = f"generations/{order.prior}"
    return [
        Target(
            change=Change(
                path=path, group=Group.LINK, had=effects.disk.stat(path) is not None, has=True
            ),
            leads_to=leads_to,
        )
        for path, leads_to in links.items()
    ]


def _file(
    disk: Disk,
    path: str,
    group: Group,
    *,
    data: bytes | None,
    mode: int = 0o644,
    owner: tuple[int, int] | None = None,
) -> Target:
    had = disk.stat(path) is not None
    change = Change(path=path, group=group, had=had, has=data is not None)
    return Target(change=change, data=data, mode=mode, owner=owner)


def _check_managed(effects: Effects, file: PlacedFile) -> None:
    wanted = wanted_file(effects, file)
    found = difference(effects.disk, wanted)
    # A file that somebody removed is put back by the switch; it is no edit that could be lost.
    if found not in {"", ABSENT_FILE}:
        raise _edited("a managed file was changed on this host", file.target, wanted.text, found)


def _check_nothing_aside(disk: Disk, path: str) -> None:
    for name in names_aside(disk, path):
        what = "what somebody wrote during an earlier op has not been set aside yet"
        raise _edited(what, name, "nothing there", "a file")


def _check_ours(disk: Disk, path: str, digest: ObjectId) -> None:
    found = disk.stat(path)
    # A unit that somebody removed is put back by the switch; it is no edit that could be lost.
    if found is None:
        return
    if found.kind is not FileKind.FILE or object_id(disk.read(path, FILE_BYTES_MAX)) != digest:
        raise _edited("a unit file was changed on this host", path, digest.hex(), "another")


def _check_free(disk: Disk, path: str, data: bytes) -> None:
    found = disk.stat(path)
    if found is None:
        return
    is_other = found.kind is not FileKind.FILE or found.size_bytes != len(data)
    if is_other or disk.read(path, FILE_BYTES_MAX) != data:
        what = "a file stands where capsule has put none"
        raise _edited(what, path, "no file, or the same", f"a {found.kind}")


def _edited(what: str, path: str, expected: str, got: str) -> Refused:
    return Refused("managed-file-edited", what, expected=expected, got=got, where=path)


def _lay_new(disk: Disk, path: str, target: Target) -> None:
    if disk.stat(path) is not None:
        disk.unlink(path)
    if target.leads_to is not None:
        disk.symlink(target.leads_to, path)
    elif target.data is not None:
        with disk.create(path, target.mode) as writer:
            writer.write(target.data)
            # It becomes the target by its name alone.
            writer.fsync("waiting file's data")
        if target.owner is not None:
            disk.chown(path, *target.owner)
            # chown clears set-id bits and comes after the mode on purpose.
            disk.chmod(path, target.mode)


def _lay_old(disk: Disk, path: str, kept: str) -> None:
    if disk.stat(kept) is not None:
        disk.unlink(kept)
    found = disk.stat(path)
    assert found is not None, path
    if found.kind is FileKind.LINK:
        disk.symlink(disk.read_link(path), kept)
        return
    try:
        disk.link(path, kept)
    except OSError as error:
        if isinstance(error, FileExistsError | FileNotFoundError):
            raise
        # No second name is possible here: a copy under a name of its own, then renamed.
        data = disk.read(path, FILE_BYTES_MAX)
        with disk.create(kept, found.mode) as writer:
            writer.write(data)
            writer.fsync("kept copy's data")
        disk.chown(kept, found.uid, found.gid)
