"""What the controller needs of a way to a host, and nothing about which way it is.

A transport starts one program by an argument list and gives a *channel*: a duplex byte stream with
a deadline. Records, verbs and trust are the caller's. Both directions move at once: a host may
answer in the middle of what it is sent, and a writer that doesn't read would wait for ever.

Losing a channel says nothing about what the program did. `retryable` on the error means that the
same call may be made again *if* nothing was acknowledged yet; afterwards the caller asks by op id.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Protocol, Self

__all__ = [
    "EXIT_NOT_FOUND",
    "QUICK",
    "RECEIVE",
    "Channel",
    "Ended",
    "Limits",
    "Transport",
    "host_program",
]

EXIT_NOT_FOUND: Final = 127
"""What a shell and `env` answer when the program is not there; every transport answers the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Deadlines of one channel, in seconds.

    `total_s` bounds the whole run, `idle_s` the longest time in which no byte moves either way.
    """

    total_s: float
    idle_s: float


QUICK: Final = Limits(total_s=30.0, idle_s=15.0)
"""For verbs that answer at once."""

RECEIVE: Final = Limits(total_s=12 * 3600.0, idle_s=300.0)
"""For a delivery, however large it is and however slow the way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a program ended; `stderr_tail` is for people.

    For a signal, `exit_code` is negative, or over SSH 128 and the signal's number.
    """

    exit_code: int
    stderr_tail: str


class Channel(Protocol):
    """One running program on a host. Used by one thread; leaving the context ends it."""

    def limit(self, limits: Limits) -> None:
        """Let these deadlines hold, counted from now on; those of `open` stay the host's own.

        For an answer that must come at once at the beginning of something long.
        """
        ...

    def write(self, data: bytes | memoryview) -> bool:
        """Send all of `data`, reading meanwhile; False once the program no longer reads.

        Raises:
            Failed: `transport-deadline`.
        """
        ...

    def end_input(self) -> None:
        """Say that nothing more will be sent."""
        ...

    def take(self) -> bytes:
        """Return what the program has written so far and was not returned yet, without waiting."""
        ...

    def read(self) -> bytes:
        """Wait for output and return it; empty at its end.

        Raises:
            Failed: `transport-deadline`.
        """
        ...

    def wait(self) -> Ended:
        """Discard further output, wait for the end and say how it was.

        Raises:
            Failed: `transport-deadline`; over SSH `connection-lost`.
        """
        ...

    def __enter__(self) -> Self:
        """Return the channel itself."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the program's pipes, end it if it is within reach, and free everything.

        Over SSH what heeds no closed pipe is ended by the host itself, soon after `total_s`.
        """
        ...


class Transport(Protocol):
    """A way to one host, fixed by the route's endpoint."""

    @property
    def root(self) -> str:
        """Return the folder below which the host lives; empty on a real host."""
        ...

    @property
    def place(self) -> str:
        """Return how messages to people name the host."""
        ...

    def open(self, argv: Sequence[str], *, limits: Limits) -> Channel:
        """Start `argv` on the host, without a shell, with a fixed environment.

        A program that is not there ends with `EXIT_NOT_FOUND`.

        Raises:
            Failed: `host-unreachable`; over SSH also the ids that `openssh` lists.
            Refused: over SSH `host-key-changed`, `ssh-auth-refused`, `sudo-refused`.
        """
        ...


def host_program(transport: Transport) -> str:
    """Return where a host's program lies."""
    return f"{transport.root}/opt/capsule/bin/capsule"
