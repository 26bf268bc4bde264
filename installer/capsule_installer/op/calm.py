"""Wait a moment, before a service is stopped, for a machine that has time for it.

A stop and a start take as long as a plain restart where they get a processor at once, and several
times as long where they don't. What a stop waits here costs the service nothing: it still runs.
"""

from typing import Final

from capsule_installer.system.clock import Clock
from capsule_installer.system.processes import Processes

__all__ = ["CALM_WAIT_MS", "wait_until_calm"]

CALM_WAIT_MS: Final = 2_000
"""The most that is waited: a machine that is always busy must take releases too."""

_LOOK_MS: Final = 10
_CALM_LOOKS: Final = 3


def wait_until_calm(processes: Processes, clock: Clock) -> None:
    """Return when three looks in a row found half of the processors idle, or after 2 s."""
    until_ms = clock.boot_ms() + CALM_WAIT_MS
    calm = 0
    while clock.boot_ms() < until_ms:
        calm = 0 if processes.is_busy() else calm + 1
        if calm == _CALM_LOOKS:
            return
        clock.sleep_ms(_LOOK_MS)
