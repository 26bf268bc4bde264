"""The canary: what tries to get out of the guard before anything is stopped, and must fail.

It runs inside, as a step would. What it tries is checked from outside too: a listener that nobody
reached, a sink that was asked, a notice for each trapped call. A setting that is accepted and not
enforced is found out here, and only here.
"""

import os
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from capsule_installer.guard.kernel import system_call
from capsule_installer.guard.syscalls import ARCHES

__all__ = ["CANARY_NAME", "TRAPPED", "problems", "try_everything"]

CANARY_NAME: Final = "canary.capsule.invalid"
DENIED: Final = "denied"
TRAPPED: Final = ("connect", "io_uring_setup", "ptrace", "setns", "socket", "unshare")
"""Calls that the listener of level L3 must have seen."""

_NOWHERE: Final = ("192.0.2.1", 9)  # RFC 5737: an address that is nobody's
_CLONE_NEWNET: Final = 0x4000_0000
_AF_VSOCK: Final = 40
_TIMEOUT_S: Final = 0.2
_OUTPUT: Final = 3


def try_everything(port: int, path: str, folders: Sequence[str]) -> dict[str, str]:
    """Try to get out; return for each way `denied`, or what was reached. Runs inside.

    `port` and `path` are where somebody outside really listens; in no folder of `folders` may a
    file be made, by whatever name it is reached.
    """
    numbers = ARCHES[os.uname().machine].numbers
    ways: dict[str, Callable[[], object]] = {
        "tcp": lambda: _connect(socket.AF_INET, ("127.0.0.1", port)),
        "address": lambda: _connect(socket.AF_INET, _NOWHERE),
        "ipv6": lambda: _connect(socket.AF_INET6, ("2001:db8::1", 9)),
        "udp": _send,
        "unix socket": lambda: _connect(socket.AF_UNIX, path),
        "raw socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1),
        "packet socket": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW),
        "vsock": lambda: socket.socket(_AF_VSOCK, socket.SOCK_STREAM),
        "new network": lambda: system_call("unshare", numbers["unshare"], _CLONE_NEWNET),
        "other network": lambda: _join(numbers["setns"]),
        "io_uring": lambda: system_call("io_uring_setup", numbers["io_uring_setup"], 1, bytes(256)),
        "ptrace": lambda: system_call("ptrace", numbers["ptrace"], 16, 1, 0, 0),
        "device": lambda: os.mknod("/tmp/canary", 0o060600, os.makedev(8, 0)),  # noqa: S108
    }
    ways |= {f"file in {folder}": partial(_write, folder) for folder in folders}
    found = {name: _outcome(way) for name, way in ways.items()}
    found["descriptors"] = _descriptors()
    found["first process"] = _first_process()
    found["processes"] = DENIED if os.getppid() == 1 else "a parent outside"
    with suppress(OSError):
        _ask()
    return found


def problems(
    found: Mapping[str, str],
    *,
    names: Sequence[str],
    seen: Sequence[str],
    attributed: bool,
    is_reached: bool,
) -> list[str]:
    """Return why a guard is not one, for people; nothing if it is. Judged outside.

    `names` are what the sink was asked, `seen` the calls that the listener saw.
    """
    wrong = [f"{way}: {what}" for way, what in found.items() if what != DENIED]
    if not found:
        wrong.append("the canary did not answer")
    if is_reached:
        wrong.append("the canary reached a listener outside")
    if CANARY_NAME not in names:
        wrong.append("the resolver sink was not asked")
    if attributed:
        wrong += [f"{call} was not noticed" for call in TRAPPED if call not in seen]
    return wrong


def _outcome(way: Callable[[], object]) -> str:
    try:
        way()
    except OSError:
        return DENIED
    return "reached"


def _connect(family: int, address: tuple[str, int] | str) -> None:
    with socket.socket(family, socket.SOCK_STREAM) as link:
        # Refused at once where the guard works; where it does not, this must end too.
        link.settimeout(_TIMEOUT_S)
        with suppress(TimeoutError):
            link.connect(address)


def _send() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        link.sendto(b"canary", _NOWHERE)


def _write(folder: str) -> None:
    path = f"{folder}/.capsule-canary"
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    os.unlink(path)


def _join(number: int) -> None:
    namespace = os.open("/proc/self/ns/net", os.O_RDONLY)
    try:
        system_call("setns", number, namespace, _CLONE_NEWNET)
    finally:
        os.close(namespace)


def _ask() -> None:
    labels = CANARY_NAME.split(".")
    name = b"".join(bytes([len(label)]) + label.encode() for label in labels) + b"\0"
    query = struct.pack("!6H", 1, 0x0100, 1, 0, 0, 0) + name + struct.pack("!2H", 1, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        link.settimeout(_TIMEOUT_S)
        link.connect(("127.0.0.1", 53))
        link.send(query)
        link.recv(512)


def _first_process() -> str:
    """Try what would lead from the first process to whoever started it, or to its own orders."""
    names = ("fd/0", "fd/1", "fd/2", "fd/3", "fd/4", "fd/5", "fd/6", "mem", "environ")
    for name in names:
        with suppress(OSError):
            os.close(os.open(f"/proc/1/{name}", os.O_RDONLY | os.O_NONBLOCK))
            return f"/proc/1/{name} is open"
    return DENIED


def _descriptors() -> str:
    listing = os.open("/proc/self/fd", os.O_RDONLY)
    try:
        names = {int(name) for name in os.listdir(listing)}
    finally:
        os.close(listing)
    left = sorted(names - {0, 1, 2, _OUTPUT, listing})
    # Reading the folder took one more.
    kept = [number for number in left if os.path.exists(f"/proc/self/fd/{number}")]
    return DENIED if not kept else f"descriptors {kept} are open"
