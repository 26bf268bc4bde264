"""The listener of level L3: takes a trapped call, looks at who made it, and answers.

A thin shell around `trapped`, which decides. Source: seccomp_unotify(2).
"""

import errno
import fcntl
import os
import stat
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from capsule_installer.guard.syscalls import Arch
from capsule_installer.guard.trapped import (
    NOTICE_BYTES,
    Caller,
    Notice,
    Verdict,
    judge,
    parse_notice,
)

__all__ = ["Listener", "caller_of"]

_RECEIVE: Final = 0xC050_2100
_SEND: Final = 0xC018_2101
_IS_VALID: Final = 0x4008_2102
_CONTINUE: Final = 1
_COMMAND_BYTES_MAX: Final = 4096
_READ_BYTES_MAX: Final = 4096


class Listener:
    """The listener's end of a filter. `fileno` makes it one of a selector's."""

    def __init__(self, descriptor: int, *, arch: Arch) -> None:
        self._descriptor = descriptor
        self._arch = arch

    def fileno(self) -> int:
        """Return its descriptor."""
        return self._descriptor

    def answer(self) -> tuple[str, Notice, Caller, Verdict] | None:
        """Answer one trapped call; return its name and what was decided, None if it is gone."""
        buffer = bytearray(NOTICE_BYTES)
        try:
            fcntl.ioctl(self._descriptor, _RECEIVE, buffer, True)
        except OSError as error:
            # The caller was killed before we came to it.
            if error.errno in {errno.ENOENT, errno.EINTR}:
                return None
            raise
        notice = parse_notice(bytes(buffer))
        caller = caller_of(notice.pid)
        verdict = judge(notice, self._arch, caller)
        if not self._respond(notice, verdict):
            return None
        return self._arch.name(notice.number), notice, caller, verdict

    def _respond(self, notice: Notice, verdict: Verdict) -> bool:
        denied = verdict.finding is not None
        response = struct.pack(
            "=QqiI",
            notice.cookie,
            0,
            -errno.EPERM if denied else 0,
            0 if denied else _CONTINUE,
        )
        try:
            # What was read was the caller's only if it still waits, whatever its pid says now.
            fcntl.ioctl(self._descriptor, _IS_VALID, struct.pack("=Q", notice.cookie))
            fcntl.ioctl(self._descriptor, _SEND, bytearray(response), True)
        except OSError as error:
            if error.errno in {errno.ENOENT, errno.EINPROGRESS}:
                return False
            raise
        return True


def caller_of(pid: int) -> Caller:
    """Return what `/proc` says of the process that waits for an answer."""
    executable, command = "", b""
    with suppress(OSError):
        executable = os.readlink(f"/proc/{pid}/exe")
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        command = file.read(_COMMAND_BYTES_MAX)
    words = command.decode("utf-8", "backslashreplace").split("\0")
    return Caller(
        executable=executable,
        command=tuple(word for word in words if word),
        read=_reader(pid),
        is_outside=_looker(pid),
    )


def _reader(pid: int) -> Callable[[int, int], bytes]:
    def read(at: int, count: int) -> bytes:
        try:
            memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
        except OSError:
            return b""
        try:
            return os.pread(memory, min(count, _READ_BYTES_MAX), at)
        except (OSError, OverflowError, ValueError):
            return b""
        finally:
            os.close(memory)

    return read


def _looker(pid: int) -> Callable[[str], bool]:
    def is_outside(path: str) -> bool:
        try:
            full = path if path.startswith("/") else f"{os.readlink(f'/proc/{pid}/cwd')}/{path}"
            if not stat.S_ISSOCK(os.stat(full).st_mode):
                return False
            if full != path:
                # The kernel lists what was given to bind, and a name alone may be any folder's.
                return True
            with open(f"/proc/{pid}/net/unix", encoding="utf-8", errors="replace") as file:
                return not any(line.rstrip("\n").split(maxsplit=7)[7:] == [path] for line in file)
        except (OSError, ValueError):
            return False

    return is_outside
