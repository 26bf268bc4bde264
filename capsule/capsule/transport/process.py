"""A channel over the pipes of a child process; local hosts and OpenSSH clients are such children.

One thread, three pipes, one `select`: whoever writes also reads, so neither side can block the
other, and every wait ends at a deadline.
"""

import fcntl
import os
import selectors
import signal
import subprocess
import time
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from capsule.transport.base import EXIT_NOT_FOUND, Ended, Limits
from capsule.transport.mark import read_to_mark
from capsule_manifest.errors import Failed, Refused

__all__ = ["ProcessChannel", "ended_channel"]

_READ_BYTES: Final = 256 * 1024
_PIPE_BYTES: Final = 1024 * 1024
"""What an unprivileged program may ask of a pipe. With the usual 64 KiB, writer and reader take
turns many times a frame, and on a busy machine each turn is a wait."""
_BUFFER_BYTES_MAX: Final = 64 * 1024 * 1024
_STDERR_TAIL_BYTES: Final = 8 * 1024
_END_S: Final = 2.0


class ProcessChannel:
    """Move bytes to and from `process`, which has three pipes; implements `Channel`."""

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        *,
        place: str,
        limits: Limits,
        grace_s: float = _END_S,
    ) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._place = place
        self._limits = limits
        self._grace_s = grace_s
        self._before = bytearray()
        self._started = time.monotonic()
        self._moved = self._started
        self._input = process.stdin
        self._outputs = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
        self._stdout = process.stdout.fileno()
        self._stderr = process.stderr.fileno()
        self._selector = selectors.DefaultSelector()
        for stream in (process.stdin, process.stdout, process.stderr):
            os.set_blocking(stream.fileno(), False)
        with suppress(OSError):
            # It works without: a user has so much of it in all.
            fcntl.fcntl(process.stdin, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        for descriptor in self._outputs:
            self._selector.register(descriptor, selectors.EVENT_READ)
        self._open = set(self._outputs)

    def skip_past(self, mark: bytes, *, limits: Limits) -> bytes | None:
        """Discard output up to the end of `mark` and return what was before; None without `mark`.

        From then on the clock starts anew and `limits` hold: they are the program's, not those of
        the way to it. Errors that were printed until then are discarded too.

        Raises:
            Failed: `transport-deadline`.
            Refused: `wire-malformed` for more than 64 KiB before `mark`.
        """
        rest = read_to_mark(self.read, self._before, mark, place=self._place)
        if rest is None:
            return None
        self._outputs[self._stdout][:0] = rest
        self._outputs[self._stderr].clear()
        self.limit(limits)
        return bytes(self._before)

    def limit(self, limits: Limits) -> None:
        """Let these deadlines hold, counted from now on."""
        self._limits = limits
        self._started = self._moved = time.monotonic()

    def noise(self) -> str:
        """Return what the host printed before the mark."""
        return self._before.decode("utf-8", errors="backslashreplace")

    @property
    def process_group(self) -> int:
        """Return the id of the group in which the program and all that it started run here."""
        return self._process.pid

    def stderr_tail(self) -> str:
        """Return the end of what was printed to standard error so far."""
        return bytes(self._outputs[self._stderr]).decode("utf-8", errors="backslashreplace")

    def write(self, data: bytes | memoryview) -> bool:
        """Send all of `data`, reading meanwhile; False once the program no longer reads."""
        if self._input.closed:
            return False
        rest = memoryview(data)
        self._selector.register(self._input.fileno(), selectors.EVENT_WRITE)
        try:
            while rest:
                if self._input.fileno() in self._step():
                    sent = self._send(rest[:_PIPE_BYTES])
                    if sent is None:
                        break
                    rest = rest[sent:]
        finally:
            self._selector.unregister(self._input.fileno())
        if rest:
            self.end_input()
        return not rest

    def end_input(self) -> None:
        """Close the program's standard input."""
        with suppress(BrokenPipeError):
            self._input.close()

    def take(self) -> bytes:
        """Return the output that is there already."""
        if self._stdout in self._open:
            self._step(wait=False)
        buffer = self._outputs[self._stdout]
        data = bytes(buffer)
        buffer.clear()
        return data

    def read(self) -> bytes:
        """Wait for output and return it; empty at its end."""
        while self._stdout in self._open and not self._outputs[self._stdout]:
            self._step()
        return self.take()

    def wait(self) -> Ended:
        """Discard further output, wait for the end and say how it was."""
        self.end_input()
        while self._stdout in self._open:
            self._step()
            self._outputs[self._stdout].clear()
        try:
            code = self._process.wait(timeout=max(0.0, self._remaining()))
        except subprocess.TimeoutExpired:
            raise self._late() from None
        # A process that the program left behind may keep stderr open: what is there now counts.
        while self._stderr in self._open and self._step(wait=False):
            pass
        return Ended(exit_code=code, stderr_tail=self.stderr_tail())

    def __enter__(self) -> Self:
        """Return the channel itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the program if it still runs, and free everything."""
        self.end_input()
        self._selector.close()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        # Closed pipes end a well-made program by themselves, as a lost connection would.
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=self._grace_s if number is None else _END_S)
                return

    def _send(self, data: memoryview) -> int | None:
        try:
            sent = os.write(self._input.fileno(), data)
        except BlockingIOError:
            return 0
        except BrokenPipeError:
            return None
        self._moved = time.monotonic()
        return sent

    def _step(self, *, wait: bool = True) -> set[int]:
        """Wait for one round of the pipes, take what came, and return which were ready."""
        timeout = self._remaining() if wait else 0.0
        if wait and timeout <= 0:
            raise self._late()
        ready = {key.fd for key, _ in self._selector.select(timeout)}
        if wait and not ready and self._remaining() <= 0:
            raise self._late()
        for descriptor in ready & self._open:
            self._receive(descriptor)
        return ready

    def _receive(self, descriptor: int) -> None:
        data = os.read(descriptor, _READ_BYTES)
        self._moved = time.monotonic()
        buffer = self._outputs[descriptor]
        if not data:
            self._selector.unregister(descriptor)
            self._open.discard(descriptor)
            return
        buffer += data
        if descriptor == self._stderr:
            del buffer[:-_STDERR_TAIL_BYTES]
        elif len(buffer) > _BUFFER_BYTES_MAX:
            raise Refused("wire-malformed", "a host sends without end", where=self._place)

    def _remaining(self) -> float:
        return (
            min(self._started + self._limits.total_s, self._moved + self._limits.idle_s)
            - time.monotonic()
        )

    def _late(self) -> Failed:
        took = time.monotonic() - self._started
        idle = time.monotonic() - self._moved
        tail = self.stderr_tail().strip()
        return Failed(
            "transport-deadline",
            "the host did not answer in time",
            expected=f"an end within {self._limits.total_s:g} s and no pause above "
            f"{self._limits.idle_s:g} s",
            got=f"{took:.1f} s, the last byte {idle:.1f} s ago" + (f"; {tail}" if tail else ""),
            where=self._place,
            retryable=True,
        )


def ended_channel(place: str, limits: Limits) -> ProcessChannel:
    """Return the channel of a program that is not there: no output and `EXIT_NOT_FOUND`."""
    process = subprocess.Popen(
        ["/bin/sh", "-c", f"exit {EXIT_NOT_FOUND}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={},
        cwd="/",
        bufsize=0,
        start_new_session=True,
    )
    return ProcessChannel(process, place=place, limits=limits)
