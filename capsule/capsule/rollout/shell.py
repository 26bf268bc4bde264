"""The production loop around one driver: reports, decisions, ticks and interrupts, one at a time.

Only this thread touches the driver and the ledger. Threads that speak to hosts put what they hear
into a queue. The first interrupt pauses: no new permits, and what is under way ends by itself; the
second detaches at once, and then the hosts' own dead-men and the next controller see to the rest.

Source: design, section 11 ("First Ctrl-C", "Second").
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Final

from capsule.lane.driver import Driver
from capsule.lane.ports import Report
from capsule.rollout.decisions import Inbox, Wish, check_wish, decision_of
from capsule_manifest.errors import CapsuleError, Refused

__all__ = ["BootClock", "Interrupts", "Mailbox", "run_driver"]

_LOOK_MS: Final = 200
_DETACH: Final = 2


class BootClock:
    """Implement `Clock`: it also counts while the machine is suspended, as leases do."""

    def now_ms(self) -> int:
        """Return milliseconds since the machine was booted."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class Mailbox:
    """Reports on their way to the driver; `hear` may be called from any thread."""

    def __init__(self) -> None:
        self._reports: SimpleQueue[Report] = SimpleQueue()

    def hear(self, report: Report) -> None:
        """Take a report in."""
        self._reports.put(report)

    def take(self, wait_ms: int) -> Report | None:
        """Return the next report, None when none comes in time."""
        try:
            return self._reports.get(timeout=max(wait_ms, 1) / 1000)
        except Empty:
            return None


class Interrupts:
    """Count Ctrl-C instead of dying of it."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Catch interrupts within the block; only the main thread can."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, self._count)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _count(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.count += 1


def run_driver(
    driver: Driver,
    *,
    mailbox: Mailbox,
    inbox: Inbox,
    interrupts: Interrupts,
    clock: BootClock,
    refused: Callable[[Wish, CapsuleError], None],
    turned: Callable[[], None],
) -> bool:
    """Let the driver work until it is over; False when it was detached from before.

    `turned` is called after each turn, for what is shown. The driver has started or adopted.
    """
    paused = False
    while not driver.is_over:
        if interrupts.count >= _DETACH:
            return False
        if interrupts.count and not paused:
            paused = True
            driver.command(decision_of(Wish(verb="pause", subject="", reason="interrupted")))
        _carry_out(driver, inbox, refused)
        if driver.is_over:
            break
        wait_ms = min(driver.next_at_ms - clock.now_ms(), _LOOK_MS)
        report = mailbox.take(wait_ms)
        if report is not None:
            driver.receive(report)
        if not driver.is_over and driver.next_at_ms <= clock.now_ms():
            driver.tick()
        turned()
    return True


def _carry_out(driver: Driver, inbox: Inbox, refused: Callable[[Wish, CapsuleError], None]) -> None:
    for path, wish in inbox.waiting():
        if driver.is_over:
            return
        try:
            check_wish(driver.state, wish)
            driver.command(decision_of(wish))
        except Refused as refusal:
            refused(wish, refusal)
        path.unlink(missing_ok=True)
