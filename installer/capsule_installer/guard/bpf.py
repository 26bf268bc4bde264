"""The seccomp program of the guard, as the bytes that the kernel takes.

It stands in front of what the namespace denies already. At L2 it refuses; at L3 it asks the
listener, which refuses and says who it was. It never lets through what the namespace would deny:
what it does not mention is decided by the namespace alone.

Another architecture's calls, 32-bit and x32 ones, end the process: their numbers mean other calls.

Source: seccomp(2), linux/filter.h, linux/seccomp.h; `docs/explanation/guard.md`.
"""

import struct
from typing import Final

from capsule_installer.guard.syscalls import FORBIDDEN, NEW_NAMESPACES, X86_64, Arch

__all__ = ["ALLOW", "ENOSYS", "EPERM", "ERRNO", "KILL", "NOTIFY", "make_program"]

ALLOW: Final = 0x7FFF_0000
KILL: Final = 0x8000_0000
NOTIFY: Final = 0x7FC0_0000
ERRNO: Final = 0x0005_0000
EPERM: Final = 1
ENOSYS: Final = 38

# Source: linux/bpf_common.h, for 32-bit loads from `struct seccomp_data`.
_LOAD: Final = 0x20
_AND: Final = 0x54
_JUMP_EQUAL: Final = 0x15
_JUMP_GREATER_EQUAL: Final = 0x35
_RETURN: Final = 0x06

_NUMBER: Final = 0
_ARCH: Final = 4
_ARGUMENTS: Final = 16
_X32_BIT: Final = 0x4000_0000

# Source: linux/socket.h, linux/net.h.
_AF_UNIX: Final = 1
_AF_INET: Final = 2
_AF_INET6: Final = 10
_AF_NETLINK: Final = 16
_SOCKET_TYPE: Final = 0xF
_SOCK_RAW: Final = 3
_SOCK_PACKET: Final = 10
_SENDTO_ADDRESS: Final = 4


def make_program(arch: Arch, *, attributed: bool) -> bytes:
    """Return the filter for an architecture; `attributed` is level L3."""
    deny = NOTIFY if attributed else ERRNO | EPERM
    ask = NOTIFY if attributed else ALLOW
    code = [_load(_ARCH), *_unless(arch.audit, [_return(KILL)]), _load(_NUMBER)]
    if arch is X86_64:
        code += [_jump(_JUMP_GREATER_EQUAL, _X32_BIT, 0, 1), _return(KILL)]
    for name in FORBIDDEN:
        code += _when(arch.numbers[name], [_return(deny)])
    # Its flags are in memory, where a filter can't look; the C library then takes clone.
    code += _when(arch.numbers["clone3"], [_return(ERRNO | ENOSYS)])
    code += _when(
        arch.numbers["clone"],
        [
            _load(_argument(0)),
            _operation(_AND, NEW_NAMESPACES),
            *_unless(0, [_return(deny)]),
            _return(ALLOW),
        ],
    )
    code += _when(arch.numbers["socket"], _socket(deny))
    for name in ("connect", "sendmsg", "sendmmsg"):
        code += _when(arch.numbers[name], [_return(ask)])
    code += _when(
        arch.numbers["sendto"],
        [
            # Without an address it goes where connect was asked about; both halves are a pointer.
            _load(_argument(_SENDTO_ADDRESS)),
            *_unless(0, [_return(ask)]),
            _load(_argument(_SENDTO_ADDRESS) + 4),
            *_unless(0, [_return(ask)]),
            _return(ALLOW),
        ],
    )
    return b"".join([*code, _return(ALLOW)])


def _socket(deny: int) -> list[bytes]:
    """Deny raw and packet sockets, and families that no network namespace holds, such as vsock."""
    return [
        _load(_argument(0)),
        *_when(_AF_UNIX, [_return(ALLOW)]),
        *_when(_AF_NETLINK, [_return(ALLOW)]),
        *_when(_AF_INET, _stream_or_datagram(deny)),
        *_when(_AF_INET6, _stream_or_datagram(deny)),
        _return(deny),
    ]


def _stream_or_datagram(deny: int) -> list[bytes]:
    return [
        _load(_argument(1)),
        _operation(_AND, _SOCKET_TYPE),
        *_when(_SOCK_RAW, [_return(deny)]),
        *_when(_SOCK_PACKET, [_return(deny)]),
        _return(ALLOW),
    ]


def _argument(index: int) -> int:
    """Return where the low half of a 64-bit argument is; both architectures are little-endian."""
    return _ARGUMENTS + 8 * index


def _when(value: int, body: list[bytes]) -> list[bytes]:
    """Run `body`, which returns, when the accumulator is `value`; go on behind it otherwise."""
    return [_jump(_JUMP_EQUAL, value, 0, len(body)), *body]


def _unless(value: int, body: list[bytes]) -> list[bytes]:
    return [_jump(_JUMP_EQUAL, value, len(body), 0), *body]


def _load(offset: int) -> bytes:
    return _operation(_LOAD, offset)


def _return(value: int) -> bytes:
    return _operation(_RETURN, value)


def _operation(code: int, value: int) -> bytes:
    return struct.pack("=HBBI", code, 0, 0, value)


def _jump(code: int, value: int, when_true: int, when_false: int) -> bytes:
    return struct.pack("=HBBI", code, when_true, when_false, value)
