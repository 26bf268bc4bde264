"""How many handshakes may go on at once, and how a busy host is tried again.

An unconfigured sshd drops connections at random from the tenth that has not logged in yet. A jump
host meets the whole fleet, so it counts as an endpoint like any other.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final, TypeVar

from capsule_manifest.errors import CapsuleError
from capsule_manifest.route import Hop

__all__ = ["ATTEMPTS_MAX", "AT_ONCE_MAX", "Handshakes", "with_retries"]

AT_ONCE_MAX: Final = 8
ATTEMPTS_MAX: Final = 3
_FIRST_PAUSE_S: Final = 0.5
_PAUSE_S_MAX: Final = 4.0

Result = TypeVar("Result")


class Handshakes:
    """Slots for handshakes, at most eight an endpoint; shared by all connections of a process."""

    def __init__(self, at_once: int = AT_ONCE_MAX) -> None:
        self._at_once = at_once
        self._lock = threading.Lock()
        self._slots: dict[tuple[str, int], threading.BoundedSemaphore] = {}

    @contextmanager
    def slot(self, hops: Sequence[Hop]) -> Iterator[None]:
        """Wait for a slot at every host of the way, and hold them until the handshake is over.

        The wait is bounded because every handshake is. Slots are taken in one order by everybody,
        so that two ways through the same hosts can't wait for each other.
        """
        with ExitStack() as stack:
            for key in sorted({(hop.address, hop.port) for hop in hops}):
                stack.enter_context(self._semaphore(key))
            yield

    def _semaphore(self, key: tuple[str, int]) -> threading.BoundedSemaphore:
        with self._lock:
            return self._slots.setdefault(key, threading.BoundedSemaphore(self._at_once))


def with_retries(
    connect: Callable[[], Result],
    *,
    retryable: frozenset[str],
    pause: Callable[[float], None] = time.sleep,
    draw: Callable[[], float] = random.random,
) -> Result:
    """Return what `connect` returns; call it again, at most three times, when a host is busy.

    Pauses are drawn evenly from nothing to 0.5, then 1 s: hosts that were refused together must
    not come back together. Only what precedes the start of a program may be passed here.
    """
    bound = _FIRST_PAUSE_S
    for _ in range(ATTEMPTS_MAX - 1):
        try:
            return connect()
        except CapsuleError as error:
            if error.error_id not in retryable:
                raise
        pause(draw() * bound)
        bound = min(2 * bound, _PAUSE_S_MAX)
    return connect()
