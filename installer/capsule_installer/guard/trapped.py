"""What a trapped system call means: a denied try that is reported, or nothing of interest.

Pure: the call's arguments and the caller's memory come in, a verdict comes out. A verdict to go on
allows nothing: the kernel then decides, in a namespace that leads nowhere. The memory may change
after it was read, which is why nothing rests on it but the report.

Source: seccomp_unotify(2), linux/seccomp.h; socket(7), ip(7), unix(7).
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from socket import AF_INET, AF_INET6, inet_ntop
from typing import Final

from capsule_installer.guard.finding import Finding
from capsule_installer.guard.syscalls import Arch

__all__ = ["NOTICE_BYTES", "SINK_PORT", "Caller", "Notice", "Verdict", "judge", "parse_notice"]

NOTICE_BYTES: Final = 80
SINK_PORT: Final = 53

_SINKS: Final = frozenset({"127.0.0.1", "::1", "::ffff:127.0.0.1"})
_ADDRESS_BYTES_MAX: Final = 128
_MESSAGES_MAX: Final = 1024
_MESSAGE_BYTES: Final = 64
_HEADER_BYTES: Final = 12
_UNSPECIFIED: Final = 0
_UNIX: Final = 1
_NETLINK: Final = 16
_FAMILIES: Final = {
    1: "unix",
    2: "inet",
    10: "inet6",
    15: "key",
    16: "netlink",
    17: "packet",
    31: "bluetooth",
    38: "alg",
    40: "vsock",
    44: "xdp",
}
_KINDS: Final = {1: "stream", 2: "datagram", 3: "raw", 5: "seqpacket", 10: "packet"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One trapped call: `cookie` names it to the kernel, `pid` is the caller's in our own view."""

    cookie: int
    pid: int
    number: int
    arguments: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who called, and what can be seen of it.

    `read` returns bytes of its memory, fewer or none when they can't be read; `is_outside` says
    whether a path, absolute or from its own folder, is a socket of the host that it did not make.
    """

    executable: str
    command: tuple[str, ...]
    read: Callable[[int, int], bytes]
    is_outside: Callable[[str], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What to answer: go on to where nothing can be reached, or EPERM with a finding.

    `asks` says that the caller is about to ask the resolver sink.
    """

    finding: Finding | None = None
    asks: bool = False


def parse_notice(raw: bytes) -> Notice:
    """Read a `struct seccomp_notif`."""
    cookie, pid, _flags, number, _arch, _at = struct.unpack_from("=QIIiIQ", raw)
    return Notice(
        cookie=cookie, pid=pid, number=number, arguments=struct.unpack_from("=6Q", raw, 32)
    )


def judge(notice: Notice, arch: Arch, caller: Caller) -> Verdict:
    """Decide one trapped call."""
    call, arguments = arch.name(notice.number), notice.arguments
    match call:
        case "connect":
            return _judge_address(
                notice, call, _address(caller, arguments[1], arguments[2]), caller
            )
        case "sendto":
            return _judge_address(
                notice, call, _address(caller, arguments[4], arguments[5]), caller
            )
        case "sendmsg":
            return _judge_message(notice, call, arguments[1], caller)
        case "sendmmsg":
            return _judge_messages(notice, call, arguments[1], arguments[2], caller)
        case "socket":
            family, kind = arguments[0] & 0xFFFF_FFFF, arguments[1] & 0xF
            what = f"{_FAMILIES.get(family, f'family {family}')} {_KINDS.get(kind, f'type {kind}')}"
            return Verdict(finding=_found(notice, call, what, caller))
        case _:
            return Verdict(finding=_found(notice, call, "", caller))


def _judge_messages(notice: Notice, call: str, at: int, count: int, caller: Caller) -> Verdict:
    asks = False
    for index in range(min(count, _MESSAGES_MAX)):
        verdict = _judge_message(notice, call, at + index * _MESSAGE_BYTES, caller)
        if verdict.finding is not None:
            return verdict
        asks = asks or verdict.asks
    return Verdict(asks=asks)


def _judge_message(notice: Notice, call: str, at: int, caller: Caller) -> Verdict:
    header = caller.read(at, _HEADER_BYTES)
    if len(header) < _HEADER_BYTES:
        return Verdict(finding=_found(notice, call, "a message that can't be read", caller))
    pointer, length = struct.unpack("=QI", header)
    if pointer == 0:
        # Without an address it goes where connect was asked about.
        return Verdict()
    return _judge_address(notice, call, _address(caller, pointer, length), caller)


def _address(caller: Caller, pointer: int, length: int) -> bytes | None:
    """Return an address; None where it can't be read, which the kernel might a moment later."""
    wanted = min(length & 0xFFFF_FFFF, _ADDRESS_BYTES_MAX)
    raw = caller.read(pointer, wanted)
    return raw if len(raw) == wanted else None


def _judge_address(notice: Notice, call: str, raw: bytes | None, caller: Caller) -> Verdict:
    if raw is None:
        return Verdict(finding=_found(notice, call, "an address that can't be read", caller))
    if len(raw) < 2:
        # The kernel says what is wrong with it.
        return Verdict()
    (family,) = struct.unpack_from("=H", raw)
    if family in {_UNSPECIFIED, _NETLINK}:
        # Netlink asks the kernel about the network inside, as the C library does of its addresses.
        return Verdict()
    if family == _UNIX:
        path = raw[2:].split(b"\0", 1)[0].decode("utf-8", "backslashreplace")
        # An abstract name belongs to the namespace; a path that nobody outside serves to nobody.
        if not path or not caller.is_outside(path):
            return Verdict()
        return Verdict(finding=_found(notice, call, path, caller))
    host, port = _host_and_port(family, raw)
    if host in _SINKS and port == SINK_PORT:
        return Verdict(asks=True)
    if port == 0:
        # The C library asks which own address it would use; nothing can be sent to port 0.
        return Verdict()
    if host is None:
        return Verdict(finding=_found(notice, call, _FAMILIES.get(family, str(family)), caller))
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return Verdict(finding=_found(notice, call, shown, caller))


def _host_and_port(family: int, raw: bytes) -> tuple[str | None, int | None]:
    if family == AF_INET and len(raw) >= 8:
        (port,) = struct.unpack_from("!H", raw, 2)
        return inet_ntop(AF_INET, raw[4:8]), port
    if family == AF_INET6 and len(raw) >= 24:
        (port,) = struct.unpack_from("!H", raw, 2)
        return inet_ntop(AF_INET6, raw[8:24]), port
    return None, None


def _found(notice: Notice, call: str, target: str, caller: Caller) -> Finding:
    return Finding(
        call=call,
        target=target,
        pid=notice.pid,
        executable=caller.executable,
        command=caller.command,
    )
