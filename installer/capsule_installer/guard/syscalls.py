"""System calls that the guard speaks of, by name, on the two architectures that it knows.

Source: Linux, arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h;
audit.h for the architectures' own numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["AARCH64", "ARCHES", "FORBIDDEN", "NEW_NAMESPACES", "X86_64", "Arch"]

NEW_NAMESPACES: Final = 0x7E02_0000
"""The flags of clone(2) that make a namespace. CLONE_NEWTIME is none of them: in clone(2) its bit
belongs to the signal that tells the parent."""

FORBIDDEN: Final = (
    # Another network, or a way out of this one.
    "unshare",
    "setns",
    "mount",
    "umount2",
    "pivot_root",
    "open_tree",
    "move_mount",
    "fsopen",
    "fsconfig",
    "fsmount",
    "fspick",
    "mount_setattr",
    "open_by_handle_at",
    # Into another process, or its descriptors.
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "pidfd_getfd",
    "kcmp",
    # Sockets past the socket calls.
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    # The kernel on one's behalf: a key of type dns_resolver is asked for outside.
    "add_key",
    "request_key",
    "keyctl",
    "bpf",
    "perf_event_open",
    "userfaultfd",
    "init_module",
    "finit_module",
    "delete_module",
    "kexec_load",
    "kexec_file_load",
    "reboot",
    "swapon",
)
"""Calls that no guarded step may make, whatever their arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arch:
    """An architecture: its name in uname(2), its number in audit.h, and its calls."""

    machine: str
    audit: int
    numbers: Mapping[str, int]

    def name(self, number: int) -> str:
        """Return a call's name, its number in words when it is none of ours."""
        names = {value: name for name, value in self.numbers.items()}
        return names.get(number, f"system call {number}")


# Since 5.0 new calls have one number everywhere.
_COMMON: Final = {
    "clone3": 435,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_getfd": 438,
    "mount_setattr": 442,
}

X86_64: Final = Arch(
    machine="x86_64",
    audit=0xC000_003E,
    numbers={
        **_COMMON,
        "socket": 41,
        "connect": 42,
        "sendto": 44,
        "sendmsg": 46,
        "clone": 56,
        "ptrace": 101,
        "pivot_root": 155,
        "mount": 165,
        "umount2": 166,
        "swapon": 167,
        "reboot": 169,
        "init_module": 175,
        "delete_module": 176,
        "kexec_load": 246,
        "add_key": 248,
        "request_key": 249,
        "keyctl": 250,
        "unshare": 272,
        "perf_event_open": 298,
        "open_by_handle_at": 304,
        "sendmmsg": 307,
        "setns": 308,
        "process_vm_readv": 310,
        "process_vm_writev": 311,
        "kcmp": 312,
        "finit_module": 313,
        "kexec_file_load": 320,
        "bpf": 321,
        "userfaultfd": 323,
    },
)

AARCH64: Final = Arch(
    machine="aarch64",
    audit=0xC000_00B7,
    numbers={
        **_COMMON,
        "umount2": 39,
        "mount": 40,
        "pivot_root": 41,
        "unshare": 97,
        "kexec_load": 104,
        "init_module": 105,
        "delete_module": 106,
        "ptrace": 117,
        "reboot": 142,
        "socket": 198,
        "connect": 203,
        "sendto": 206,
        "sendmsg": 211,
        "add_key": 217,
        "request_key": 218,
        "keyctl": 219,
        "clone": 220,
        "swapon": 224,
        "perf_event_open": 241,
        "open_by_handle_at": 265,
        "setns": 268,
        "sendmmsg": 269,
        "process_vm_readv": 270,
        "process_vm_writev": 271,
        "kcmp": 272,
        "finit_module": 273,
        "bpf": 280,
        "userfaultfd": 282,
        "kexec_file_load": 294,
    },
)

ARCHES: Final[Mapping[str, Arch]] = {arch.machine: arch for arch in (X86_64, AARCH64)}
