"""Let a process run from one system call to the next, by ptrace, and leave it standing.

A signal reaches a process when the machine gets round to it, which on a busy one is milliseconds
later. Here every system call ends with a look, so that what is written by one can't be missed.

Source: ptrace(2).
"""

import ctypes
import errno
import os
import signal
import time
from collections.abc import Callable

__all__ = ["Traced"]

_SYSCALL, _DETACH, _SEIZE, _INTERRUPT = 24, 17, 0x4206, 0x4207
_TRACESYSGOOD = 1
_WALL = 0x40000000
_AT_SYSCALL = signal.SIGTRAP | 0x80
_LOOK_S = 50e-6

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


class Traced:
    """One process that this thread traces, from the constructor to `leave_standing` or its end."""

    def __init__(self, pid: int) -> None:
        """Raises: ProcessLookupError when there is none."""
        self._pid = pid
        self._in_call = False
        _ptrace(_SEIZE, pid, _TRACESYSGOOD)
        _ptrace(_INTERRUPT, pid)
        self._stopped = self._next_stop(time.monotonic() + 1)

    def run_until(self, condition: Callable[[], bool], *, within_s: float) -> bool:
        """Let it run until `condition` holds after a system call, or the time is over.

        Return False when it ended instead.
        """
        until = time.monotonic() + within_s
        while self._stopped is not None:
            at_call = self._stopped == _AT_SYSCALL
            is_event = self._stopped >> 8 != 0
            between_calls = not self._in_call and (at_call or is_event)
            if between_calls and (condition() or time.monotonic() > until):
                return True
            # What is no stop of ours is a signal of its own, such as the end of a child.
            _ptrace(_SYSCALL, self._pid, 0 if at_call or is_event else self._stopped)
            self._stopped = self._next_stop(until)
            if self._stopped == _AT_SYSCALL:
                self._in_call = not self._in_call
        return False

    def leave_standing(self) -> None:
        """Trace it no longer; it stands as by SIGSTOP."""
        if self._stopped is None:
            return
        # Pending when it goes on, so it does not reach its own code any more.
        os.kill(self._pid, signal.SIGSTOP)
        _ptrace(_DETACH, self._pid)

    def _next_stop(self, until: float) -> int | None:
        """Wait for a stop; return its signal and, from bit 8 on, its event. None: it ended."""
        interrupted = False
        while True:
            ended, status = os.waitpid(self._pid, _WALL | os.WNOHANG)
            if ended:
                return status >> 8 if os.WIFSTOPPED(status) else None
            if time.monotonic() > until and not interrupted:
                _ptrace(_INTERRUPT, self._pid)
                interrupted = True
            time.sleep(_LOOK_S)


def _ptrace(request: int, pid: int, data: int = 0) -> None:
    if _libc.ptrace(request, pid, None, data) == -1:
        number = ctypes.get_errno()
        if request != _SEIZE and number == errno.ESRCH:
            return  # it was killed; the next wait says so
        raise OSError(number, f"ptrace {request} of {pid}: {os.strerror(number)}")
