"""The kernel's calls that make the guard, one function each; Python has no names for them.

A thin shell: it decides nothing. Every failure is an `OSError` whose text says which call it was.

Source: unshare(2), mount(2), mount_setattr(2), capabilities(7), prctl(2), seccomp(2), netdevice(7).
"""

import ctypes
import fcntl
import os
import socket
import struct
from typing import Final, Protocol

from capsule_installer.guard.syscalls import ARCHES

__all__ = ["KEPT_CAPABILITIES", "Kernel", "RealKernel", "system_call"]

# What root needs to change files and accounts' files, and nothing that reaches a network, a device,
# another process's memory, or files past the mounts (DAC_READ_SEARCH opens them by handle).
KEPT_CAPABILITIES: Final = frozenset(
    {0, 1, 3, 4, 5, 6, 7, 8, 31}
)  # CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID SETPCAP SETFCAP

_CLONE_NEWPID: Final = 0x2000_0000
# Mounts, control groups, host name, System V and POSIX messages, network.
_CLONE_OTHERS: Final = 0x0002_0000 | 0x0200_0000 | 0x0400_0000 | 0x0800_0000 | 0x4000_0000
_MS_NOSUID_NODEV: Final = 0x2 | 0x4
_MS_NOEXEC: Final = 0x8
_MS_BIND: Final = 0x1000
_MS_MOVE: Final = 0x2000
_MS_REC: Final = 0x4000
_MS_PRIVATE: Final = 0x4_0000
_AT_FDCWD: Final = -100
_AT_RECURSIVE: Final = 0x8000
_ATTR_READ_ONLY: Final = 0x1
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_CAPBSET_DROP: Final = 24
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_CLEAR_ALL: Final = 4
_CAPABILITY_VERSION_3: Final = 0x2008_0522
_SECCOMP_SET_MODE_FILTER: Final = 1
_SECCOMP_FILTER_FLAG_NEW_LISTENER: Final = 8
_SIOCGIFFLAGS: Final = 0x8913
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 1
_SIGKILL: Final = 9
_INVALID: Final = 22

# Source: as in `syscalls`. capset has no wrapper that musl and glibc agree about.
_NUMBERS: Final = {
    "x86_64": {"mount_setattr": 442, "seccomp": 317, "capset": 126},
    "aarch64": {"mount_setattr": 442, "seccomp": 277, "capset": 91},
}
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class Kernel(Protocol):
    """What is asked of the kernel, in the order in which a guard is made."""

    def hide(self) -> None:
        """Let no process without CAP_SYS_PTRACE see this one's descriptors or its memory."""
        ...

    def leave_processes(self) -> None:
        """Let the next child be the first process of a PID namespace of its own."""
        ...

    def leave_the_rest(self) -> None:
        """Take namespaces of one's own for mounts, network, host name, messages and groups."""
        ...

    def die_with_parent(self) -> None:
        """End with the process that started this one, however that ends."""
        ...

    def set_loopback_up(self) -> None:
        """Let `lo` of this network work, on which the resolver sink is."""
        ...

    def bind(self, source: str, path: str) -> None:
        """Show `source` with everything below it at `path` too."""
        ...

    def move(self, source: str, path: str) -> None:
        """Move a mount to cover `path`."""
        ...

    def mount_tmpfs(self, path: str, options: str) -> None:
        """Cover a folder with an empty one in memory."""
        ...

    def mount_proc(self, path: str) -> None:
        """Show the processes of this PID namespace, and no others."""
        ...

    def make_read_only(self, path: str) -> None:
        """Make a mount and everything below it read-only, as seen from here."""
        ...

    def drop_capabilities(self) -> None:
        """Keep `KEPT_CAPABILITIES` only, for this process and whatever it starts, for good."""
        ...

    def install_filter(self, program: bytes, *, attributed: bool) -> int:
        """Put this thread and its children under a seccomp program; return its listener, or -1."""
        ...


class RealKernel:
    """The kernel of this machine."""

    def hide(self) -> None:
        """Source: prctl(2), PR_SET_DUMPABLE; proc(5). Whatever is executed is seen again."""
        _checked("prctl", _LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0))

    def leave_processes(self) -> None:
        """Source: pid_namespaces(7)."""
        _checked("unshare", _LIBC.unshare(_CLONE_NEWPID))

    def leave_the_rest(self) -> None:
        """Source: namespaces(7). Mounts made here reach nobody outside, and theirs not us."""
        _checked("unshare", _LIBC.unshare(_CLONE_OTHERS))
        self._mount("none", "/", "", _MS_REC | _MS_PRIVATE)

    def die_with_parent(self) -> None:
        """Source: prctl(2), PR_SET_PDEATHSIG."""
        _checked("prctl", _LIBC.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0))

    def set_loopback_up(self) -> None:
        """Source: netdevice(7)."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
            request = struct.pack("16sH14x", b"lo", 0)
            (flags,) = struct.unpack_from("H", fcntl.ioctl(link, _SIOCGIFFLAGS, request), 16)
            fcntl.ioctl(link, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))

    def bind(self, source: str, path: str) -> None:
        """Source: mount(2), MS_BIND."""
        self._mount(source, path, "", _MS_BIND | _MS_REC)

    def move(self, source: str, path: str) -> None:
        """Source: mount(2), MS_MOVE."""
        self._mount(source, path, "", _MS_MOVE)

    def mount_tmpfs(self, path: str, options: str) -> None:
        """Source: tmpfs(5)."""
        self._mount("tmpfs", path, "tmpfs", _MS_NOSUID_NODEV, options)

    def mount_proc(self, path: str) -> None:
        """Source: proc(5)."""
        self._mount("proc", path, "proc", _MS_NOSUID_NODEV | _MS_NOEXEC)

    def make_read_only(self, path: str) -> None:
        """Source: mount_setattr(2)."""
        attributes = struct.pack("=4Q", _ATTR_READ_ONLY, 0, 0, 0)
        system_call(
            "mount_setattr",
            _numbers()["mount_setattr"],
            _AT_FDCWD,
            os.fsencode(path),
            _AT_RECURSIVE,
            attributes,
            len(attributes),
        )

    def drop_capabilities(self) -> None:
        """Source: capabilities(7); prctl(2)."""
        _checked("prctl", _LIBC.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0))
        for number in range(64):
            if number in KEPT_CAPABILITIES:
                continue
            if _LIBC.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) != 0:
                if ctypes.get_errno() == _INVALID:
                    break  # the kernel knows no more
                _checked("prctl", -1)
        bits = sum(1 << number for number in KEPT_CAPABILITIES)
        low, high = bits & 0xFFFF_FFFF, bits >> 32
        header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
        data = struct.pack("=6I", low, low, 0, high, high, 0)
        system_call("capset", _numbers()["capset"], header, data)
        _checked("prctl", _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))

    def install_filter(self, program: bytes, *, attributed: bool) -> int:
        """Source: seccomp(2)."""
        code = ctypes.create_string_buffer(program, len(program))
        header = struct.pack("=H6xQ", len(program) // 8, ctypes.addressof(code))
        flags = _SECCOMP_FILTER_FLAG_NEW_LISTENER if attributed else 0
        number = _numbers()["seccomp"]
        listener = system_call("seccomp", number, _SECCOMP_SET_MODE_FILTER, flags, header)
        return listener if attributed else -1

    def _mount(self, source: str, path: str, kind: str, flags: int, options: str = "") -> None:
        names = [os.fsencode(text) for text in (source, path, kind, options)]
        done = _LIBC.mount(names[0], names[1], names[2], ctypes.c_ulong(flags), names[3])
        _checked(f"mount {kind or source} at {path}", done)


def system_call(name: str, number: int, *arguments: int | bytes) -> int:
    """Make a system call by its number.

    Raises:
        OSError: it failed.
    """
    words = [
        ctypes.c_long(item) if isinstance(item, int) else ctypes.c_char_p(item)
        for item in arguments
    ]
    return _checked(name, _LIBC.syscall(ctypes.c_long(number), *words))


def _numbers() -> dict[str, int]:
    return _NUMBERS[ARCHES[os.uname().machine].machine]


def _checked(what: str, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
