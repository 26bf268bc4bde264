"""What this machine says of itself, as far as the guard depends on it."""

import os
import re
from contextlib import suppress
from typing import Final

from capsule_installer.guard.levels import GuardFacts, offered_levels, parse_refusal
from capsule_installer.host.layout import Layout
from capsule_installer.system.clock import Clock
from capsule_installer.system.disk import Disk
from capsule_installer.system.fsops import replace_file

__all__ = ["host_levels", "note_refusal", "read_guard_facts"]

_NAMESPACES: Final = "/proc/self/ns"
_STATUS: Final = "/proc/self/status"
_ACTIONS: Final = "/proc/sys/kernel/seccomp/actions_avail"
_COUNTERS: Final = "/proc/net/snmp"
_CAPABILITIES: Final = re.compile(r"^CapEff:\s*([0-9a-f]+)$", re.MULTILINE)
_RELEASE: Final = re.compile(r"(\d+)\.(\d+)")


def host_levels(layout: Layout, clock: Clock) -> tuple[str, ...]:
    """Return the guard levels that this host can arm, lowest first.

    What could not be armed a moment ago is left out, so that a controller whose route allows a
    lower one orders that.
    """
    raw = b""
    with suppress(OSError), open(_refusal(layout), "rb") as file:
        raw = file.read()
    refused = parse_refusal(raw, clock.boot_ms())
    return offered_levels(read_guard_facts(layout), refused=refused)


def note_refusal(disk: Disk, layout: Layout, level: str, at_ms: int) -> None:
    """Remember for a while of this boot that a level could not be armed. Raises: `disk-*`."""
    replace_file(disk, _refusal(layout), f"{level} {at_ms}\n".encode(), 0o600)


def _refusal(layout: Layout) -> str:
    return f"{layout.run}/guard-refused"


def read_guard_facts(layout: Layout) -> GuardFacts:
    """Ask the kernel. What can't be read is not there."""
    names, status, actions = [], "", ""
    with suppress(OSError):
        names = os.listdir(_NAMESPACES)
    with suppress(OSError), open(_STATUS, encoding="utf-8", errors="replace") as file:
        status = file.read()
    with suppress(OSError), open(_ACTIONS, encoding="ascii") as file:
        actions = file.read()
    machine = os.uname()
    capabilities = _CAPABILITIES.search(status)
    release = _RELEASE.match(machine.release)
    return GuardFacts(
        is_folder=bool(layout.root),
        has_counters=os.path.exists(_COUNTERS),
        user=os.geteuid(),
        capabilities=int(capabilities[1], 16) if capabilities else 0,
        namespaces=frozenset(names),
        kernel=(int(release[1]), int(release[2])) if release else (0, 0),
        machine=machine.machine,
        seccomp_actions=frozenset(actions.split()),
    )
