"""What a network namespace counted. Level L2 has no better witness of tries that came to nothing,
and level L1 none of what the whole host sent.

Source: proc(5), /proc/PID/net/snmp and snmp6; Linux, include/uapi/linux/snmp.h.
"""

from contextlib import suppress
from dataclasses import dataclass, fields

__all__ = [
    "Counters",
    "Traffic",
    "parse_counters",
    "parse_traffic",
    "read_counters",
    "read_traffic",
]


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


def read_counters(pid: int) -> Counters:
    """Read the counters of the network that a process is in."""
    return parse_counters(*_read(str(pid)))


def read_traffic() -> Traffic:
    """Read what the network that this program is in has sent."""
    return parse_traffic(*_read("self"))


def _read(pid: str) -> tuple[str, str]:
    with open(f"/proc/{pid}/net/snmp", encoding="ascii") as file:
        snmp = file.read()
    snmp6 = ""
    # A kernel without IPv6 has none.
    with suppress(FileNotFoundError), open(f"/proc/{pid}/net/snmp6", encoding="ascii") as file:
        snmp6 = file.read()
    return snmp, snmp6
