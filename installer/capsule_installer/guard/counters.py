"""What a network namespace counted. Level L2 has no better witness of tries that came to nothing,
and level L1 none of what the whole host sent.

Source: proc(5), /proc/PID/net/snmp and snmp6; Linux, include/uapi/linux/snmp.h.
"""

import os
from dataclasses import dataclass, fields
from typing import Final

__all__ = [
    "Counters",
    "HeldCounters",
    "Traffic",
    "parse_counters",
    "parse_traffic",
    "read_traffic",
]

_CHUNK_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Tries since the namespace was made. Loopback is a network too: nobody is on it."""

    no_route: int = 0
    no_route6: int = 0
    tcp_opens: int = 0
    udp_no_port: int = 0
    udp6_no_port: int = 0

    def since(self, base: "Counters") -> list[str]:
        """Return what was counted since `base`, for people; nothing when nothing was."""
        words = {
            "no_route": "tries without a route",
            "no_route6": "tries without an IPv6 route",
            "tcp_opens": "TCP connects",
            "udp_no_port": "UDP datagrams to nobody",
            "udp6_no_port": "IPv6 UDP datagrams to nobody",
        }
        changes = {item.name: getattr(self, item.name) - getattr(base, item.name)
                   for item in fields(self)}  # fmt: skip
        return [f"{count} {words[name]}" for name, count in changes.items() if count > 0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What a network has sent, whoever sent it, since it was made."""

    tcp_opens: int = 0
    datagrams: int = 0

    def since(self, base: "Traffic") -> str:
        """Return what was sent since `base`, for people; also when it was nothing."""
        opens, datagrams = self.tcp_opens - base.tcp_opens, self.datagrams - base.datagrams
        return f"on the whole host: {opens} TCP connects, {datagrams} UDP datagrams"


def parse_traffic(snmp: str, snmp6: str) -> Traffic:
    """Read the two files of `/proc`; what is not in them counts as nothing."""
    found = _numbers(snmp, snmp6)
    return Traffic(
        tcp_opens=found.get("Tcp:ActiveOpens", 0),
        datagrams=found.get("Udp:OutDatagrams", 0) + found.get("Udp6OutDatagrams", 0),
    )


def parse_counters(snmp: str, snmp6: str) -> Counters:
    """Read the two files of `/proc`; what is not in them counts as nothing."""
    found = _numbers(snmp, snmp6)
    return Counters(
        no_route=found.get("Ip:OutNoRoutes", 0),
        no_route6=found.get("Ip6OutNoRoutes", 0),
        tcp_opens=found.get("Tcp:ActiveOpens", 0),
        udp_no_port=found.get("Udp:NoPorts", 0),
        udp6_no_port=found.get("Udp6NoPorts", 0),
    )


def _numbers(snmp: str, snmp6: str) -> dict[str, int]:
    found: dict[str, int] = {}
    lines = snmp.splitlines()
    for names, values in zip(lines[::2], lines[1::2], strict=False):
        head, *keys = names.split()
        found |= {
            head + key: int(value) for key, value in zip(keys, values.split()[1:], strict=False)
        }
    found |= {
        name: int(value)
        for name, value in (line.split() for line in snmp6.splitlines() if line.strip())
    }
    return found


class HeldCounters:
    """The counters of the network that a process is in, readable also after its end."""

    def __init__(self, pid: int) -> None:
        # An open file of a network keeps the network.
        self._files = _open(str(pid))

    def read(self) -> Counters:
        """Read them as they are now."""
        return parse_counters(*map(_read, self._files))

    def close(self) -> None:
        """Let the network go."""
        for descriptor in self._files:
            os.close(descriptor)


def read_traffic() -> Traffic:
    """Read what the network that this program is in has sent."""
    files = _open("self")
    try:
        return parse_traffic(*map(_read, files))
    finally:
        for descriptor in files:
            os.close(descriptor)


def _open(pid: str) -> tuple[int, int]:
    snmp = os.open(f"/proc/{pid}/net/snmp", os.O_RDONLY)
    try:
        return snmp, os.open(f"/proc/{pid}/net/snmp6", os.O_RDONLY)
    except FileNotFoundError:
        # A kernel without IPv6 has none.
        return snmp, os.open("/dev/null", os.O_RDONLY)


def _read(descriptor: int) -> str:
    chunks: list[bytes] = []
    while chunk := os.pread(descriptor, _CHUNK_BYTES, sum(map(len, chunks))):
        chunks.append(chunk)
    return b"".join(chunks).decode("ascii")
