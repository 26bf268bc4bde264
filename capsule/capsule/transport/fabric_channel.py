"""A channel over a session of a Paramiko connection, without a wait of Paramiko's own.

The session is only ever asked for what is there; every wait is a `select` on its signal pipe with
a deadline. Both outputs are drained in every round: each takes its share of one window, and a
reader of one alone would wait for ever while the other is full.
"""

import selectors
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

from capsule.transport.base import Ended, Limits
from capsule.transport.mark import read_to_mark
from capsule.transport.ssh_failures import lost
from capsule_manifest.errors import Failed, Refused

__all__ = ["FabricChannel"]

_READ_BYTES: Final = 256 * 1024
_WRITE_BYTES: Final = 32 * 1024
_BUFFER_BYTES_MAX: Final = 64 * 1024 * 1024
_STDERR_TAIL_BYTES: Final = 8 * 1024
_PAUSE_S: Final = 0.01
_WATCHDOG_S: Final = 5.0


class FabricChannel:
    """Move bytes to and from `session`; implements `Channel`.

    `give_up` closes the whole connection: called where a write is stuck below Paramiko.
    """

    def __init__(
        self, session: Any, *, place: str, limits: Limits, give_up: Callable[[], None]
    ) -> None:
        self._session = session
        self._place = place
        self._limits = limits
        self._give_up = give_up
        self._started = self._moved = time.monotonic()
        self._before = bytearray()
        self._output = bytearray()
        self._errors = bytearray()
        self._selector = selectors.DefaultSelector()
        self._selector.register(session.fileno(), selectors.EVENT_READ)
        self._writing = True
        self._watchdog = self._watch()

    def skip_past(self, mark: bytes, *, limits: Limits) -> bytes | None:
        """Discard output up to the end of `mark` and return what was before; None without `mark`.

        From then on the clock starts anew and `limits` hold.

        Raises:
            Failed: `transport-deadline`.
            Refused: `wire-malformed` for more than 64 KiB before `mark`.
        """
        rest = read_to_mark(self.read, self._before, mark, place=self._place)
        if rest is None:
            return None
        self._output[:0] = rest
        self._errors.clear()
        self.limit(limits)
        return bytes(self._before)

    def limit(self, limits: Limits) -> None:
        """Let these deadlines hold, counted from now on."""
        self._limits = limits
        self._started = self._moved = time.monotonic()
        self._watchdog.cancel()
        self._watchdog = self._watch()

    def noise(self) -> str:
        """Return what the host printed before the mark."""
        return self._before.decode("utf-8", errors="backslashreplace")

    def write(self, data: bytes | memoryview) -> bool:
        """Send all of `data`, reading meanwhile; False once the program no longer reads."""
        rest = memoryview(data)
        while rest and self._writing:
            self._drain()
            if self._ended():
                self._writing = False
            elif self._session.send_ready():
                rest = rest[self._send(rest[:_WRITE_BYTES]) :]
            else:
                self._pause(_PAUSE_S)
        return not rest

    def end_input(self) -> None:
        """Say that nothing more will be sent."""
        self._writing = False
        with suppress(OSError, EOFError):
            self._session.shutdown_write()

    def take(self) -> bytes:
        """Return the output that is there already."""
        self._drain()
        data = bytes(self._output)
        self._output.clear()
        return data

    def read(self) -> bytes:
        """Wait for output and return it; empty at its end."""
        while not self._output:
            ended = self._ended()
            self._drain()
            if ended and not self._output:
                break
            if not self._output:
                self._pause(self._remaining())
        return self.take()

    def wait(self) -> Ended:
        """Discard further output, wait for the end and say how it was."""
        self.end_input()
        while self.read():
            pass
        # The pipe stays readable after the end, so only the status itself can be waited for.
        if not self._session.status_event.wait(max(0.0, self._remaining())):
            raise self._late()
        self._drain()
        tail = bytes(self._errors).decode("utf-8", errors="backslashreplace")
        if self._session.exit_status < 0:
            raise lost(tail, place=self._place)
        return Ended(exit_code=self._session.exit_status, stderr_tail=tail)

    def __enter__(self) -> Self:
        """Return the channel itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the session; the program loses its pipes."""
        self._watchdog.cancel()
        self._selector.close()
        # Closing sends a message, and sending to a frozen peer may block.
        guard = threading.Timer(_WATCHDOG_S, self._give_up)
        guard.daemon = True
        guard.start()
        with suppress(OSError, EOFError):
            self._session.close()
        guard.cancel()

    def _watch(self) -> threading.Timer:
        timer = threading.Timer(self._limits.total_s + _WATCHDOG_S, self._give_up)
        timer.daemon = True
        timer.start()
        return timer

    def _send(self, data: memoryview) -> int:
        try:
            sent: int = self._session.send(bytes(data))
        except (OSError, EOFError):
            self._writing = False
            return 0
        self._moved = time.monotonic()
        return sent

    def _drain(self) -> None:
        while self._session.recv_stderr_ready():
            self._errors += self._session.recv_stderr(_READ_BYTES)
            del self._errors[:-_STDERR_TAIL_BYTES]
            self._moved = time.monotonic()
        while self._session.recv_ready():
            self._output += self._session.recv(_READ_BYTES)
            self._moved = time.monotonic()
            if len(self._output) > _BUFFER_BYTES_MAX:
                raise Refused("wire-malformed", "a host sends without end", where=self._place)

    def _ended(self) -> bool:
        return bool(self._session.eof_received or self._session.closed)

    def _pause(self, seconds: float) -> None:
        """Wait until something comes, at most `seconds`. Raises: `transport-deadline`."""
        remaining = self._remaining()
        if remaining <= 0:
            raise self._late()
        if not self._selector.select(min(seconds, remaining)) and self._remaining() <= 0:
            raise self._late()

    def _remaining(self) -> float:
        return (
            min(self._started + self._limits.total_s, self._moved + self._limits.idle_s)
            - time.monotonic()
        )

    def _late(self) -> Failed:
        tail = bytes(self._errors).decode("utf-8", errors="backslashreplace").strip()
        return Failed(
            "transport-deadline",
            "the host did not answer in time",
            expected=f"an end within {self._limits.total_s:g} s and no pause above "
            f"{self._limits.idle_s:g} s",
            got=f"{time.monotonic() - self._started:.1f} s, the last byte "
            f"{time.monotonic() - self._moved:.1f} s ago" + (f"; {tail}" if tail else ""),
            where=self._place,
            retryable=True,
        )
