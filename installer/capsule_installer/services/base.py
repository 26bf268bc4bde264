"""The service manager of a host as a Protocol: stage, install and restore ask no more of it.

The same stops and starts must be possible from `rescue.sh`, so an implementation has a shell
program beside it (`shell/service-NAME.sh`) and leaves the work to it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

__all__ = ["ServiceManager", "UnitState"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitState:
    """A unit as its manager sees it.

    `pid` is 0 and `invocation_id` empty when nothing runs. `restarts` counts restarts that nobody
    asked for since the last start. `result` says how it last ended, for people.

    `fragment` is the unit file that the manager has read, "" where it does not say; `is_stale` that
    a file of the unit changed since.
    """

    active: bool
    pid: int
    invocation_id: str
    restarts: int
    result: str
    fragment: str = ""
    is_stale: bool = False


class ServiceManager(Protocol):
    """Act on units by name. Deadlines are milliseconds from the call."""

    @property
    def name(self) -> str:
        """Return `process` or `systemd`: which shell program rescue uses."""
        ...

    def companions(self, unit: str, text: str) -> dict[str, bytes]:
        """Return the files, by name, that must lie beside the unit file `unit`."""
        ...

    def check(self, units: Mapping[str, str]) -> list[str]:
        """Return what is wrong with rendered units, one line each; empty when they can be run."""
        ...

    def reload(self, deadline_ms: int) -> None:
        """Make changed unit files take effect.

        Raises:
            Failed: `service-failed`.
        """
        ...

    def stop(self, unit: str, deadline_ms: int) -> None:
        """Stop a unit and all its processes, by force when the deadline comes.

        An absent unit is no error.

        Raises:
            Failed: `service-failed` when a process survives even that.
        """
        ...

    def start(self, unit: str, deadline_ms: int) -> None:
        """Start a unit; return once it was started, not once it serves.

        A start that the hold file prevents is no error: ask `state`.

        Raises:
            Failed: `service-failed`.
        """
        ...

    def state(self, unit: str) -> UnitState:
        """Return the unit's state now; an absent unit is inactive."""
        ...
