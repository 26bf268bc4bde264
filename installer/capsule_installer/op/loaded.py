"""Whether everything that runs as a unit has loaded one generation: the unit and each process.

The main process alone proves little: a worker that an older release forked, a program that executed
itself anew from the old folder, or a file that was handed over across the restart keeps old code at
work. So all processes of the unit are looked at, those of its control group and those below its
main process; none may show another generation in what it mapped, runs, has open, stands in, was
called with, or has in its environment.

Of the unit itself the service manager must have read the file that the release put, as it is now.

Source: design, section 9 ("Proof"); proc(5); systemctl(1), `NeedDaemonReload`.
"""

import re
from collections.abc import Callable, Iterator

from capsule_installer.services.base import UnitState
from capsule_installer.system.processes import Processes, ProcessFacts, descendants
from capsule_manifest.errors import Failed

__all__ = ["check_fragment", "check_processes", "is_in_unit"]

_GENERATION = "CAPSULE_GENERATION"


def check_fragment(unit: str, state: UnitState, units_folder: str) -> tuple[str, ...]:
    """Return as evidence which unit file was read; nothing where the manager does not say.

    Raises:
        Failed: `proof-failed` for another file, or one that changed since it was read.
    """
    if state.is_stale:
        raise Failed(
            "proof-failed", "the service manager has not read the unit's files as they are now",
            expected="NeedDaemonReload=no", got="NeedDaemonReload=yes", where=unit,
        )  # fmt: skip
    if not state.fragment or not units_folder:
        return ()
    expected = f"{units_folder}/{unit}"
    if state.fragment != expected:
        raise Failed(
            "proof-failed", "the service manager runs another unit file",
            expected=expected, got=state.fragment, where=unit,
        )  # fmt: skip
    return (f"fragment {expected}",)


def check_processes(
    processes: Processes, groups: Callable[[int], str], *, unit: str, pid: int, folder: str
) -> int:
    """Return how many processes the unit has besides its main one; none uses an older generation.

    `folder` is the generation's own. A process that ends while it is looked at uses nothing.

    Raises:
        Failed: `proof-failed` with the process and what it still uses.
    """
    members = _members(processes, groups, unit, pid)
    for member in members:
        facts = processes.facts(member)
        if facts is None:
            continue
        for what, text in _shown(facts, processes.open_files(member)):
            other = _other_generation(text, folder)
            if other:
                raise Failed(
                    "proof-failed",
                    f"process {member} of the unit still uses another generation",
                    expected=folder.rpartition("/")[2],
                    got=f"{what} {text}",
                    where=unit,
                )
        named = facts.environment.get(_GENERATION)
        if named is not None and named != folder.rpartition("/")[2]:
            raise Failed(
                "proof-failed",
                f"process {member} of the unit was started by another generation",
                expected=folder.rpartition("/")[2],
                got=f"{_GENERATION}={named}",
                where=unit,
            )
    return len(members) - 1


def is_in_unit(group: str, unit: str) -> bool:
    """Say whether a control group is a unit's own or below it.

    systemd names a control group after its unit; an engine may put more below it.
    """
    return unit in group.split("/")


def _members(processes: Processes, groups: Callable[[int], str], unit: str, pid: int) -> list[int]:
    parents = processes.parents()
    members = {pid, *descendants(parents, pid)}
    # What left its parent is still in the group; a folder host has no groups of its own.
    if is_in_unit(groups(pid), unit):
        members |= {other for other in parents if is_in_unit(groups(other), unit)}
    return sorted(members)


def _shown(facts: ProcessFacts, open_files: frozenset[str]) -> Iterator[tuple[str, str]]:
    yield "its folder", f"{facts.cwd}/"
    yield from (("mapped", path) for path in sorted(facts.files))
    yield from (("open", path) for path in sorted(open_files))
    yield from (("argument", text) for text in facts.arguments)
    yield from ((f"{name} =", text) for name, text in facts.environment.items())


def _other_generation(text: str, folder: str) -> str:
    """Return the name of another generation whose folder `text` names, "" if there is none."""
    generations, _, own = folder.rpartition("/")
    for match in re.finditer(re.escape(generations) + r"/([0-9]+-[0-9a-f]{8})(?![^/:\s])", text):
        if match[1] != own:
            return match[1]
    return ""
