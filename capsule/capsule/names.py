"""Host names become addresses once, when a route is frozen; afterwards nobody looks one up.

A name that says something else after the plan was made would lead an order elsewhere, and a
resolver that is slow or drops bursts would hold up a stopped node.
"""

import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from capsule_manifest.errors import Failed, Refused
from capsule_manifest.route import Endpoint, Hop

__all__ = ["LookUp", "as_inventoried", "freeze_endpoints", "look_up"]

LookUp = Callable[[str], tuple[str, ...]]
"""From a host name to all its addresses."""

_ANSWERS_MAX: Final = 64


def look_up(name: str) -> tuple[str, ...]:
    """Return every address of a host name, as this machine's resolver says now.

    Raises:
        Failed: `name-unknown`.
    """
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Failed(
            "name-unknown", "a host name has no address", got=str(error), where=name
        ) from None
    return tuple(str(entry[4][0]) for entry in found[:_ANSWERS_MAX])


def freeze_endpoints(endpoints: Mapping[str, Endpoint], look_up: LookUp) -> dict[str, Endpoint]:
    """Return the endpoints with addresses for names, by node; each name is looked up once.

    Of several addresses the lowest IPv4 one is taken, then the lowest IPv6 one: resolvers turn
    their answers round, and freezing again must give the same route.

    Raises:
        Failed: as `look_up`.
        Refused: `endpoint-shared` when two nodes turn out to be one host.
    """
    known: dict[str, str] = {}

    def address_of(name: str) -> str:
        if name not in known:
            known[name] = _first(look_up(name), name)
        return known[name]

    frozen = {node: _frozen(endpoint, address_of) for node, endpoint in endpoints.items()}
    places: dict[Endpoint, str] = {}
    for node, endpoint in frozen.items():
        if endpoint.kind != "ssh":
            continue
        # The same address behind another jump host may be another host.
        place = replace(endpoint, name=None, user=None, host_key=None)
        other = places.setdefault(place, node)
        if other != node:
            raise Refused(
                "endpoint-shared",
                "two nodes are one host: it would be counted, and stopped, twice",
                expected="an address of its own for each node",
                got=f"{endpoint.address}:{endpoint.port}",
                where=f"{other}, {node}",
            )
    return frozen


def as_inventoried(endpoint: Endpoint) -> Endpoint:
    """Return a frozen endpoint as its inventory said it, with names."""
    return replace(
        endpoint,
        address=endpoint.name or endpoint.address,
        name=None,
        jump=tuple(replace(hop, address=hop.name or hop.address, name=None)
                   for hop in endpoint.jump),
    )  # fmt: skip


def _frozen(endpoint: Endpoint, address_of: Callable[[str], str]) -> Endpoint:
    def hop(found: Hop) -> Hop:
        if _address(found.address) is not None:
            return found
        return replace(found, address=address_of(found.address), name=found.address)

    if endpoint.address is None:
        return endpoint
    jump = tuple(hop(found) for found in endpoint.jump)
    if _address(endpoint.address) is not None:
        return replace(endpoint, jump=jump)
    address = address_of(endpoint.address)
    return replace(endpoint, address=address, name=endpoint.address, jump=jump)


def _first(addresses: tuple[str, ...], name: str) -> str:
    found = [address for text in addresses if (address := _address(text)) is not None]
    if not found:
        raise Failed("name-unknown", "a host name has no address", got="none", where=name)
    return str(min(found, key=lambda address: (address.version, int(address))))


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None
