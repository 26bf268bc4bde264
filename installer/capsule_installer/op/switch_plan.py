"""The plan of an op: which names are laid beside which, exchanged, put back and removed.

Pure: from what is there and what shall be there to lists of *name operations*. Everything that a
switch or a restore needs is laid beside its target before the stop, so that both only rename and
unlink: neither needs a free byte or inode, and neither needs Python.

A list is a text of lines that this module and `rescue.sh` read alike:

    rename<TAB>SOURCE<TAB>TARGET      done when SOURCE is gone
    unlink<TAB>PATH                   done when PATH is gone

so a list may be run again from its beginning after a stop anywhere in it.

Source: design, section 9; ADR 0081; `docs/reference/rescue.md`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from capsule_manifest.errors import Refused

__all__ = [
    "Change",
    "Group",
    "NameOperation",
    "Plans",
    "Rename",
    "Unlink",
    "aside_name",
    "encode_plan",
    "folders_of",
    "make_plans",
    "new_name",
    "old_name",
    "parse_plan",
]

_NAME_BYTES_MAX: Final = 220
_PLAN_LINES_MAX: Final = 100_000


class Group(StrEnum):
    """When a target changes: units before the stop, everything else while stopped."""

    UNIT = "unit"
    FILE = "file"
    LINK = "link"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One target. `had`: something of ours is there now; `has`: something shall be there after."""

    path: str
    group: Group
    had: bool
    has: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rename:
    """Give `source` the name `target`, replacing what has it."""

    source: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unlink:
    """Remove the name `path`."""

    path: str


NameOperation = Rename | Unlink


@dataclass(frozen=True, slots=True, kw_only=True)
class Plans:
    """The lists of one op, in the order of their use; `restore` undoes `units` and `switch`.

    `gone` are units that the new generation does not have: removed after the start, because a unit
    whose file is gone loses its own way of stopping. `clean` removes what was laid beside targets.
    """

    units: tuple[NameOperation, ...]
    switch: tuple[NameOperation, ...]
    restore: tuple[NameOperation, ...]
    gone: tuple[NameOperation, ...]
    clean: tuple[NameOperation, ...]


def new_name(path: str, op_id: str) -> str:
    """Return the name under which the new content of `path` waits in the same folder."""
    return _beside(path, op_id, "new")


def old_name(path: str, op_id: str) -> str:
    """Return the name under which the present content of `path` is kept in the same folder."""
    return _beside(path, op_id, "old")


def aside_name(path: str, number: int = 1) -> str:
    """Return the name beside `path` of what somebody put there and nobody may overwrite.

    `number` is from 1; a higher one is for where the names before it are taken.
    """
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.capsule-aside{f'~{number}' if number > 1 else ''}"


def make_plans(changes: Iterable[Change], op_id: str) -> Plans:
    """Return the lists of an op that makes `changes`.

    Raises:
        Refused: `switch-path-invalid` for a path that a line can't hold, or one given twice.
    """
    units: list[NameOperation] = []
    switch: list[NameOperation] = []
    restore: list[NameOperation] = []
    gone: list[NameOperation] = []
    clean: list[NameOperation] = []
    seen: set[str] = set()
    for change in changes:
        _check_path(change.path)
        if change.path in seen:
            raise _invalid("two changes have one target", change.path)
        seen.add(change.path)
        new, old = new_name(change.path, op_id), old_name(change.path, op_id)
        forward = units if change.group is Group.UNIT else switch
        if change.has:
            forward.append(Rename(source=new, target=change.path))
        elif change.had and change.group is Group.UNIT:
            gone.append(Unlink(path=change.path))
        elif change.had:
            forward.append(Unlink(path=change.path))
        if change.had:
            # Also for a unit that stays: putting back what never left does nothing.
            restore.append(Rename(source=old, target=change.path))
        elif change.has:
            restore.append(Unlink(path=change.path))
        clean += [Unlink(path=new), Unlink(path=old)]
    return Plans(
        units=tuple(units),
        switch=tuple(switch),
        restore=tuple(restore),
        gone=tuple(gone),
        clean=tuple(clean),
    )


def encode_plan(operations: Iterable[NameOperation]) -> bytes:
    """Return the lines of a list."""
    lines = []
    for operation in operations:
        match operation:
            case Rename(source=source, target=target):
                lines.append(f"rename\t{source}\t{target}\n")
            case Unlink(path=path):
                lines.append(f"unlink\t{path}\n")
    return "".join(lines).encode()


def parse_plan(raw: bytes, *, where: str) -> tuple[NameOperation, ...]:
    """Read a list strictly.

    Raises:
        Refused: `switch-plan-malformed`.
    """
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise _malformed("a plan is not UTF-8", error, where) from None
    if text and not text.endswith("\n"):
        raise _malformed("a plan is cut off", text[-80:], where)
    lines = text.split("\n")[:-1]
    if len(lines) > _PLAN_LINES_MAX:
        raise _malformed("a plan is too long", len(lines), where)
    return tuple(_parse_line(line, where) for line in lines)


def folders_of(operations: Iterable[NameOperation]) -> list[str]:
    """Return the folders whose names the operations change, each once, sorted."""
    folders = set()
    for operation in operations:
        path = operation.target if isinstance(operation, Rename) else operation.path
        folders.add(path.rpartition("/")[0] or "/")
    return sorted(folders)


def _parse_line(line: str, where: str) -> NameOperation:
    match line.split("\t"):
        case ["rename", source, target] if _is_path(source) and _is_path(target):
            return Rename(source=source, target=target)
        case ["unlink", path] if _is_path(path):
            return Unlink(path=path)
    raise _malformed("a line of a plan can't be read", line, where)


def _beside(path: str, op_id: str, suffix: str) -> str:
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.capsule-{op_id[:8]}.{suffix}"


def _is_path(path: str) -> bool:
    parts = path.split("/")
    return (
        path.startswith("/")
        and len(parts) > 1
        and not any(part in {"", ".", ".."} for part in parts[1:])
        and not any(character in path for character in "\t\n\r\0\\")
    )


def _check_path(path: str) -> None:
    if not _is_path(path):
        raise _invalid("a path can't be written in a plan", path)
    if len(path.rpartition("/")[2].encode()) > _NAME_BYTES_MAX:
        raise _invalid(f"a name is longer than {_NAME_BYTES_MAX} bytes", path)


def _invalid(what: str, path: str) -> Refused:
    return Refused("switch-path-invalid", what, got=repr(path))


def _malformed(what: str, got: object, where: str) -> Refused:
    return Refused("switch-plan-malformed", what, got=got, where=where)
