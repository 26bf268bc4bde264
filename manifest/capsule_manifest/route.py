"""The route bundle: the frozen, signed answer to "which nodes, by which way, under which rules".

An operator's route key signs it; it names the controllers whose orders its nodes take. Its digest
is in every order and receipt, so nothing about a rollout is discovered after it was planned.

Source: design, sections 2 (R3), 3 and 10; `docs/reference/route.md`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from capsule_manifest.canonical import JsonValue, Limits, decode, encode
from capsule_manifest.errors import Refused
from capsule_manifest.fields import Object, root_object
from capsule_manifest.keys import PublicKey, b64decode, b64encode, public_key

__all__ = [
    "CA_MARK",
    "GUARD_LEVELS",
    "ROUTE_TYPE",
    "WAIVER_VALUES",
    "Endpoint",
    "Hop",
    "Route",
    "RouteNode",
    "Waiver",
    "decode_route",
    "encode_route",
]

ROUTE_SCHEMA: Final = "capsule-route/1"
ROUTE_TYPE: Final = "application/vnd.capsule.route.v1+json"
ROUTE_LIMITS: Final = Limits(size_bytes_max=8 * 1024 * 1024, depth_max=8)
GUARD_LEVELS: Final = ("L0", "L1", "L2", "L3")
WAIVER_VALUES: Final[Mapping[str, tuple[str, ...]]] = {
    "guard-level": GUARD_LEVELS,
    "guard-policy": ("report",),
}
"""What may be waived for one node, and to which values."""
LANE_NODES_MAX: Final = 8
CA_MARK: Final = "@cert-authority "
NODE_ID: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """A host that SSH goes through. `name` and `host_key` are as in `Endpoint`."""

    address: str
    port: int
    user: str
    host_key: str
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """How a host is reached. `local` uses `root` only; `ssh` everything but `root`.

    `address` is an IP address in a route; `name` is the host name of the inventory that it was
    looked up for, None where the inventory has the address. In an inventory `address` may be a name
    and `name` is None. `host_key` is the pinned key in OpenSSH's public form; with `CA_MARK` before
    it, the authority whose host certificates are taken. `jump` lists the hosts to go through, in
    order, each pinned.
    """

    kind: str
    root: str | None = None
    address: str | None = None
    port: int = 22
    user: str | None = None
    host_key: str | None = None
    jump: tuple[Hop, ...] = ()
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteNode:
    """One node as frozen. `node_key` is None until first contact enrolled it."""

    role: str
    platform: str
    domain: str
    lane: str
    endpoint: Endpoint
    node_key: str | None
    vars: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiver:
    """A signed exception: `rule` may be `value` on `node`, for `reason`."""

    node: str
    rule: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A frozen route. `max_unavailable` and `floor` count nodes."""

    product: str
    nodes: Mapping[str, RouteNode]
    max_unavailable: int
    floor: int
    guard_min: str
    hub: str | None
    policy: str
    controllers: tuple[PublicKey, ...]
    waivers: tuple[Waiver, ...]

    def guard_floor(self, node: str) -> str:
        """Return the lowest guard level that this route lets `node` run at."""
        for waiver in self.waivers:
            if (waiver.node, waiver.rule) == (node, "guard-level"):
                return min(waiver.value, self.guard_min)
        return self.guard_min

    def guard_policy(self, node: str) -> str:
        """Return what a try to use a network does to an op of `node`: `fail`, or only `report`."""
        waived = any((item.node, item.rule) == (node, "guard-policy") for item in self.waivers)
        return "report" if waived else "fail"


def encode_route(route: Route) -> bytes:
    """Return the canonical bytes that a route authority signs; SHA-256 is the route digest."""
    return encode(
        {
            "schema": ROUTE_SCHEMA,
            "product": route.product,
            "nodes": {name: _node(node) for name, node in route.nodes.items()},
            "max_unavailable": route.max_unavailable,
            "floor": route.floor,
            "guard_min": route.guard_min,
            "hub": route.hub,
            "policy": route.policy,
            "controllers": [
                {"keyid": key.keyid, "spki": b64encode(key.spki)} for key in route.controllers
            ],
            "waivers": [
                {
                    "node": waiver.node,
                    "rule": waiver.rule,
                    "value": waiver.value,
                    "reason": waiver.reason,
                }
                for waiver in route.waivers
            ],
        }
    )


def decode_route(raw: bytes, *, where: str = "route") -> Route:
    """Read a route strictly; the caller has verified its signature or is about to.

    Raises:
        Refused: `json-*`, `document-invalid`, `document-version`, `key-malformed`.
    """
    value = decode(raw, limits=ROUTE_LIMITS, where=where)
    document = root_object(value, schema=ROUTE_SCHEMA, name=where)
    route = Route(
        product=document.text("product"),
        nodes=document.named("nodes", _read_node),
        max_unavailable=document.integer("max_unavailable", least=1),
        floor=document.integer("floor"),
        guard_min=document.text("guard_min", one_of=GUARD_LEVELS),
        hub=document.optional_text("hub"),
        policy=document.sha256("policy"),
        controllers=document.items("controllers", _read_controller),
        waivers=document.items("waivers", _read_waiver),
    )
    document.end()
    _check_lanes(route, where)
    return route


def _check_lanes(route: Route, where: str) -> None:
    lanes: dict[str, int] = {}
    for name, node in route.nodes.items():
        if not NODE_ID.fullmatch(name):
            raise Refused(
                "document-invalid",
                "a node id is malformed",
                got=repr(name),
                where=where,
            )
        lanes[node.lane] = lanes.get(node.lane, 0) + 1
    wide = {lane: count for lane, count in lanes.items() if count > LANE_NODES_MAX}
    if wide:
        raise Refused(
            "document-invalid",
            "a lane is too wide",
            expected=f"at most {LANE_NODES_MAX} nodes",
            got=wide,
            where=where,
        )


def _node(node: RouteNode) -> JsonValue:
    endpoint = node.endpoint
    return {
        "role": node.role,
        "platform": node.platform,
        "domain": node.domain,
        "lane": node.lane,
        "node_key": node.node_key,
        "vars": dict(node.vars),
        "endpoint": {
            "kind": endpoint.kind,
            "root": endpoint.root,
            "address": endpoint.address,
            "name": endpoint.name,
            "port": endpoint.port,
            "user": endpoint.user,
            "host_key": endpoint.host_key,
            "jump": [
                {
                    "address": hop.address,
                    "name": hop.name,
                    "port": hop.port,
                    "user": hop.user,
                    "host_key": hop.host_key,
                }
                for hop in endpoint.jump
            ],
        },
    }


def _read_node(item: Object) -> RouteNode:
    node = RouteNode(
        role=item.text("role"),
        platform=item.text("platform"),
        domain=item.text("domain"),
        lane=item.text("lane"),
        endpoint=_read_endpoint(item.nested("endpoint")),
        node_key=item.optional_text("node_key"),
        vars=item.text_map("vars"),
    )
    item.end()
    return node


def _read_endpoint(item: Object) -> Endpoint:
    endpoint = Endpoint(
        kind=item.text("kind", one_of=("local", "ssh")),
        root=item.optional_text("root"),
        address=item.optional_text("address"),
        name=item.optional_text("name"),
        port=item.integer("port", least=1, most=65535),
        user=item.optional_text("user"),
        host_key=item.optional_text("host_key"),
        jump=item.items("jump", _read_hop),
    )
    item.end()
    if endpoint.address is not None:
        _check_address(endpoint.address, item.where)
    return endpoint


def _read_hop(item: Object) -> Hop:
    hop = Hop(
        address=item.text("address"),
        name=item.optional_text("name"),
        port=item.integer("port", least=1, most=65535),
        user=item.text("user"),
        host_key=item.text("host_key"),
    )
    item.end()
    _check_address(hop.address, item.where)
    return hop


def _check_address(address: str, where: str) -> None:
    """Refuse a host name: whoever answers for it could change where a frozen route leads."""
    # Imported here: a host that is reached by no address has no use for it.
    from ipaddress import ip_address

    try:
        ip_address(address)
    except ValueError:
        raise Refused(
            "document-invalid", "a document has a wrong value", expected="an IP address",
            got=repr(address)[:80], where=f"{where}.address",
        ) from None  # fmt: skip


def _read_controller(item: Object) -> PublicKey:
    key = public_key(b64decode(item.text("spki"), item.where), item.where)
    if item.text("keyid") != key.keyid:
        raise Refused("key-malformed", "a key id is not the digest of its key", where=item.where)
    item.end()
    return key


def _read_waiver(item: Object) -> Waiver:
    rule = item.text("rule", one_of=tuple(WAIVER_VALUES))
    waiver = Waiver(
        node=item.text("node"),
        rule=rule,
        value=item.text("value", one_of=WAIVER_VALUES[rule]),
        reason=item.text("reason"),
    )
    item.end()
    return waiver
