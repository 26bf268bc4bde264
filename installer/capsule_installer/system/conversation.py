"""A program that this one speaks with, line by line, while other work goes on."""

import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Protocol

from capsule_installer.system.processes import CLEAN_ENVIRONMENT
from capsule_manifest.errors import Failed

__all__ = ["Conversation", "Conversations", "RealConversations"]

_LINE_BYTES_MAX: Final = 1024 * 1024
_CHUNK_BYTES: Final = 64 * 1024
_POLL_S: Final = 0.001


class Conversation(Protocol):
    """One program, the leader of a process group of its own."""

    @property
    def pid(self) -> int:
        """Its process id, which stays its own until `kill`."""
        ...

    def say(self, line: bytes) -> None:
        """Send a line; a program that is gone is met by the next `hear`."""
        ...

    def hear(self, timeout_ms: int) -> bytes | None:
        """Return the next line, empty at the end of what it says; None when the time is over."""
        ...

    def close(self) -> None:
        """Tell it that nothing more will be said."""
        ...

    def kill(self) -> None:
        """Kill its whole group at once; again is no error."""
        ...

    def await_gone(self, timeout_ms: int) -> bool:
        """Wait until nothing of a killed group is alive; False when the time is over."""
        ...


class Conversations(Protocol):
    """Start programs to speak with."""

    def start(self, argv: Sequence[str]) -> Conversation:
        """Start a program with a scrubbed environment.

        Raises:
            Failed: `process-not-started`.
        """
        ...


class RealConversations:
    """Programs of this machine."""

    def start(self, argv: Sequence[str]) -> Conversation:
        """Start a process in a session of its own. Source: `Conversations.start`."""
        try:
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd="/",
                env=dict(CLEAN_ENVIRONMENT),
                start_new_session=True,
                close_fds=True,
                bufsize=0,
            )
        except OSError as error:
            raise Failed(
                "process-not-started", "a program could not be started", got=error, where=argv[0]
            ) from error
        return _RealConversation(process)


class _RealConversation:
    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._mouth, self._ear = process.stdin, process.stdout
        self._waiting = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def say(self, line: bytes) -> None:
        with suppress(OSError, ValueError):
            view = memoryview(line + b"\n")
            while view:
                view = view[self._mouth.write(view) :]

    def hear(self, timeout_ms: int) -> bytes | None:
        until = time.monotonic() + timeout_ms / 1000
        while b"\n" not in self._waiting:
            left_s = max(0.0, until - time.monotonic())
            if not select.select([self._ear], [], [], left_s)[0]:
                return None
            data = os.read(self._ear.fileno(), _CHUNK_BYTES)
            if not data or len(self._waiting) > _LINE_BYTES_MAX:
                return b""
            self._waiting += data
        line, _, self._waiting = self._waiting.partition(b"\n")
        return line

    def close(self) -> None:
        with suppress(OSError):
            self._mouth.close()

    def kill(self) -> None:
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            # Not waited for: nothing serves meanwhile, and it belongs to init once this ends.
            self._process.poll()
            self._process.returncode = 0
            self.close()
            self._ear.close()

    def await_gone(self, timeout_ms: int) -> bool:
        until = time.monotonic() + timeout_ms / 1000
        while True:
            with suppress(ChildProcessError):
                os.waitpid(self._process.pid, os.WNOHANG)
            try:
                os.killpg(self._process.pid, 0)
            except ProcessLookupError:
                return True
            if time.monotonic() >= until:
                # A first process that adopts orphans and never looks at them leaves zombies.
                return not _is_alive(self._process.pid)
            time.sleep(_POLL_S)


def _is_alive(group: int) -> bool:
    """Say whether a process group has a member that still runs. Source: proc(5)."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            state, _, its_group, *_ = file.read().rpartition(b")")[2].split()
            if int(its_group) == group and state not in {b"X", b"Z"}:
                return True
    return False
