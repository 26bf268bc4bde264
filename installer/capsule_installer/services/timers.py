"""The dead-man and the two deadlines of an op: timers that restore by themselves.

A timer is `rescue.sh` started with a moment of the boot clock. It outlives the supervisor, and it
ends by itself once the op is decided or the next timer has taken over. `arm` covers what is before
the stop, `d1` stop to proof, `d2` proof to outcome.
"""

from enum import StrEnum
from typing import Protocol

from capsule_installer.host.layout import Layout
from capsule_installer.system.processes import Processes

__all__ = ["ProcessTimers", "TimerKind", "Timers"]


class TimerKind(StrEnum):
    """Which deadline a timer stands for; the values are `rescue.sh`'s."""

    ARM = "arm"
    D1 = "d1"
    D2 = "d2"


class Timers(Protocol):
    """Start timers that restore an op."""

    def start(self, op_id: str, kind: TimerKind, at_ms: int) -> None:
        """Have the op restored at `at_ms` of the boot clock if it is still open then.

        Raises:
            Failed: `process-not-started`.
        """
        ...


class ProcessTimers:
    """Timers of a folder host: sleeping processes. A reboot ends them, and boot restores."""

    def __init__(self, *, layout: Layout, processes: Processes) -> None:
        self._layout = layout
        self._processes = processes

    def start(self, op_id: str, kind: TimerKind, at_ms: int) -> None:
        """Start a sleeping `rescue.sh`. Source: `Timers.start`."""
        self._processes.start_detached(
            [
                "sh",
                f"{self._layout.recovery}/rescue.sh",
                self._layout.root,
                op_id,
                kind,
                str(at_ms),
            ],
            log=f"{self._layout.run}/rescue.log",
        )
