"""Time as a host counts it: milliseconds since boot, suspended time included.

No deadline uses wall time, which an administrator or a time server may move.
"""

import time
from typing import Protocol

__all__ = ["BootClock", "Clock", "wall_ms"]


class Clock(Protocol):
    """Read and await the boot clock."""

    def boot_ms(self) -> int:
        """Return milliseconds since boot."""
        ...

    def boot_id(self) -> str:
        """Return the name of this boot."""
        ...

    def sleep_ms(self, duration_ms: int) -> None:
        """Wait."""
        ...


class BootClock:
    """This machine's clock. Source: clock_gettime(2), CLOCK_BOOTTIME; random(4), boot_id."""

    def boot_ms(self) -> int:
        """Return milliseconds since boot."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    def boot_id(self) -> str:
        """Return the kernel's name of this boot."""
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()

    def sleep_ms(self, duration_ms: int) -> None:
        """Wait."""
        time.sleep(duration_ms / 1000)


def wall_ms() -> int:
    """Return what the wall clock says, for a person to see: nothing is decided by it."""
    return time.time_ns() // 1_000_000
