"""`fleet.toml`: the single inventory, read strictly and turned into frozen values.

pydantic reads the document and stays in this module. Every refusal names the path of the wrong
value, what was expected and what was there; all of them are reported at once.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    WithJsonSchema,
)
from pydantic import model_validator as validated

from capsule.durable import read_bounded
from capsule_manifest.canonical import JsonValue
from capsule_manifest.errors import Refused
from capsule_manifest.route import (
    CA_MARK,
    LANE_NODES_MAX,
    WAIVER_VALUES,
    Endpoint,
    Hop,
    Waiver,
)

__all__ = ["Fleet", "FleetNode", "fleet_schema", "load_fleet", "read_fleet"]

_SIZE_BYTES_MAX: Final = 8 * 1024 * 1024
_NAME = r"^[a-z0-9][a-z0-9._-]{0,62}$"
_PERCENT = re.compile(r"(100|[1-9]?[0-9])%")

_Name = Annotated[str, StringConstraints(pattern=_NAME)]
_VariableName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
_Line = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]*$", max_length=1024)]
_Address = Annotated[
    str,
    StringConstraints(
        pattern=r"^([A-Za-z0-9_][A-Za-z0-9._-]{0,252}|[0-9A-Fa-f:.]{2,45}(%[A-Za-z0-9]+)?)$"
    ),
]
_User = Annotated[str, StringConstraints(pattern=r"^[a-z_][a-z0-9._-]{0,62}$")]
_Key = Annotated[
    str,
    StringConstraints(
        pattern=r"^[a-z0-9@.-]{1,64} [A-Za-z0-9+/]{4,16384}={0,2}( [^\x00-\x1f\x7f]*)?$"
    ),
]
_Level = Literal["L0", "L1", "L2", "L3"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetNode:
    """One node as the inventory describes it."""

    role: str
    platform: str
    domain: str
    lane: str
    endpoint: Endpoint
    vars: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """A whole inventory. `floor` and `max_unavailable` count nodes.

    `controllers` are public key files of further controllers that may take an epoch over.
    """

    product: str
    floor: int
    max_unavailable: int
    guard_min: str
    hub: str | None
    nodes: Mapping[str, FleetNode]
    waivers: tuple[Waiver, ...]
    controllers: tuple[Path, ...] = ()

    def selected(self, *, lane: str | None, nodes: tuple[str, ...]) -> tuple[str, ...]:
        """Return node ids in order: one lane, `all`, or those named.

        Raises:
            Refused: `node-unknown` for a lane or node that the inventory doesn't have.
        """
        if nodes:
            unknown = sorted(set(nodes) - set(self.nodes))
            if unknown:
                raise Refused(
                    "node-unknown",
                    "the inventory has no such node",
                    expected=", ".join(sorted(self.nodes)),
                    got=", ".join(unknown),
                )
            return tuple(dict.fromkeys(nodes))
        if lane is None or lane == "all":
            return tuple(sorted(self.nodes))
        members = tuple(sorted(name for name, node in self.nodes.items() if node.lane == lane))
        if not members:
            raise Refused(
                "node-unknown",
                "the inventory has no such lane",
                expected=", ".join(sorted({node.lane for node in self.nodes.values()})),
                got=lane,
            )
        return members


# What a percentage looks like is checked with the other rules, whose message says more.
_Share = Annotated[str, WithJsonSchema({"type": "string", "pattern": f"^(?:{_PERCENT.pattern})$"})]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class _FleetTable(_Strict):
    floor: Annotated[int, Field(ge=0)] | _Share = Field(
        description="Nodes that must always serve: a number, or a percentage that is rounded up."
    )
    max_unavailable: int = Field(ge=1, description="Most nodes out of service at one time.")
    guard_min: _Level = Field(
        default="L2", description="Lowest level of the network guard at which a node may install."
    )
    hub: _Line | None = Field(default=None, description="Address of the service nodes talk to.")
    controllers: tuple[_Line, ...] = Field(
        default=(),
        description="Public key files of further controllers; relative to this file.",
    )


class _JumpTable(_Strict):
    address: _Address = Field(description="Host name or IP address.")
    port: int = Field(default=22, ge=1, le=65535)
    user: _User = Field(default="root", description="Who logs in; needs no rights but forwarding.")
    host_key: _Key | None = Field(
        default=None, description="The pinned host key in OpenSSH's public form."
    )
    host_ca: _Key | None = Field(
        default=None, description="The authority whose host certificates are taken instead."
    )

    @validated(mode="after")
    def _one_pin(self) -> Self:
        _check_one_pin(self.host_key, self.host_ca)
        return self


class _NodeTable(_Strict):
    local: _Line | None = Field(
        default=None, description="A host that is a folder; relative to this file."
    )
    address: _Address | None = Field(default=None, description="Host name or IP address, for SSH.")
    port: int = Field(default=22, ge=1, le=65535)
    user: _User = Field(default="root", description="Who logs in; others than root use sudo -n.")
    host_key: _Key | None = Field(
        default=None, description="The pinned host key in OpenSSH's public form."
    )
    host_ca: _Key | None = Field(
        default=None, description="The authority whose host certificates are taken instead."
    )
    jump: tuple[_Name, ...] = Field(
        default=(), max_length=4, description="Names of [jumps.NAME] to go through, in order."
    )
    role: _Name
    platform: _Name
    domain: _Name = Field(default="default", description="What fails together, such as a rack.")
    lane: _Name | None = Field(
        default=None,
        description=f"Moves together; at most {LANE_NODES_MAX} nodes. Derived when left out.",
    )
    vars: dict[_VariableName, _Line] = Field(
        default_factory=dict, description="Values for @{node.NAME} in units and managed files."
    )

    @validated(mode="after")
    def _one_endpoint(self) -> Self:
        ssh = {"address", "port", "user", "host_key", "host_ca", "jump"} & self.model_fields_set
        if self.local is not None and ssh:
            message = f"local, or {', '.join(sorted(ssh))}, not both"
            raise ValueError(message)
        if self.local is None and self.address is None:
            message = "local, or address"
            raise ValueError(message)
        if self.local is None:
            _check_one_pin(self.host_key, self.host_ca)
        if "id" in self.vars:
            message = "no variable named id: @{node.id} is the node's own"
            raise ValueError(message)
        return self


class _WaiverTable(_Strict):
    node: _Name
    rule: Literal["guard-level", "guard-policy"]
    value: Literal["L0", "L1", "L2", "L3", "report"]
    reason: Annotated[_Line, StringConstraints(min_length=1)]

    @validated(mode="after")
    def _one_of_its_rule(self) -> "_WaiverTable":
        allowed = WAIVER_VALUES[self.rule]
        if self.value not in allowed:
            message = f"for the rule {self.rule} one of {', '.join(allowed)}"
            raise ValueError(message)
        return self


class _Document(_Strict):
    format: Literal[1]
    product: Annotated[
        str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,62}/[a-z0-9][a-z0-9-]{0,62}$")
    ]
    fleet: _FleetTable
    jumps: dict[_Name, _JumpTable] = Field(
        default_factory=dict, description="Hosts that SSH goes through, each pinned like a node."
    )
    nodes: dict[_Name, _NodeTable] = Field(min_length=1)
    waivers: tuple[_WaiverTable, ...] = ()

    @validated(mode="after")
    def _consistent(self) -> Self:
        for problem in _contradictions(self):
            raise ValueError(problem)
        return self


def fleet_schema() -> Mapping[str, JsonValue]:
    """Return the JSON Schema of `fleet.toml`."""
    schema: Mapping[str, JsonValue] = _Document.model_json_schema()
    return schema


def load_fleet(path: Path) -> Fleet:
    """Read the inventory in `path`; folders of local hosts are relative to where it lies.

    Raises:
        Refused: `fleet-invalid`, `document-invalid` when it is too large.
        Failed: `controller-disk`.
    """
    raw = read_bounded(path, _SIZE_BYTES_MAX)
    if raw is None:
        raise Refused("fleet-invalid", "there is no inventory", where=path)
    return read_fleet(raw, folder=path.parent.absolute(), where=str(path))


def read_fleet(raw: bytes, *, folder: Path, where: str) -> Fleet:
    """Read an inventory from its bytes.

    Raises:
        Refused: `fleet-invalid`; further problems are chained as causes.
    """
    try:
        # tomllib gives arrays as lists; a strict model wants the tuples that it declares.
        table = _tuples(tomllib.loads(raw.decode("utf-8")))
        document = _Document.model_validate(table)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Refused(
            "fleet-invalid", "the inventory is not TOML", got=error, where=where
        ) from None
    except ValidationError as error:
        problem = _problems(error, where)
        raise problem from problem.__cause__
    lanes = _lanes(document.nodes)
    return Fleet(
        product=document.product,
        floor=_floor(document.fleet.floor, len(document.nodes)),
        max_unavailable=document.fleet.max_unavailable,
        guard_min=document.fleet.guard_min,
        hub=document.fleet.hub,
        controllers=tuple(folder / name for name in document.fleet.controllers),
        nodes={
            name: _node(node, lanes[name], document.jumps, folder)
            for name, node in document.nodes.items()
        },
        waivers=tuple(
            Waiver(node=item.node, rule=item.rule, value=item.value, reason=item.reason)
            for item in document.waivers
        ),
    )


def _check_one_pin(host_key: str | None, host_ca: str | None) -> None:
    if (host_key is None) == (host_ca is None):
        message = "with an address either host_key or host_ca"
        raise ValueError(message)


def _pin(table: _NodeTable | _JumpTable) -> str:
    """Return the pin as the route has it, without the comment: it is not part of the identity."""
    mark = CA_MARK if table.host_ca is not None else ""
    return mark + " ".join((table.host_ca or table.host_key or "").split(" ")[:2])


def _lanes(nodes: Mapping[str, _NodeTable]) -> Mapping[str, str]:
    """Return each node's lane: the given one, or one derived from its failure domain.

    Nodes without a lane are cut, in the order of their ids, into lanes of eight called `DOMAIN-1`,
    `DOMAIN-2`, …: what fails together moves together, and the same inventory gives the same lanes.
    """
    lanes: dict[str, str] = {}
    derived: dict[str, int] = {}
    for name, node in sorted(nodes.items()):
        if node.lane is not None:
            lanes[name] = node.lane
            continue
        index = derived.setdefault(node.domain, 0)
        derived[node.domain] += 1
        lanes[name] = f"{node.domain}-{index // LANE_NODES_MAX + 1}"
    return lanes


def _node(table: _NodeTable, lane: str, jumps: Mapping[str, _JumpTable], folder: Path) -> FleetNode:
    if table.local is not None:
        endpoint = Endpoint(kind="local", root=str((folder / table.local).resolve()))
    else:
        endpoint = Endpoint(
            kind="ssh",
            address=table.address,
            port=table.port,
            user=table.user,
            host_key=_pin(table),
            jump=tuple(_hop(jumps[name]) for name in table.jump),
        )
    return FleetNode(
        role=table.role,
        platform=table.platform,
        domain=table.domain,
        lane=lane,
        endpoint=endpoint,
        vars=dict(table.vars),
    )


def _hop(table: _JumpTable) -> Hop:
    return Hop(address=table.address, port=table.port, user=table.user, host_key=_pin(table))


def _floor(floor: int | str, nodes: int) -> int:
    if isinstance(floor, int):
        return floor
    # Rounded up: a floor of 50 % of three nodes that let two stop would be none.
    return ceil(int(floor.removesuffix("%")) * nodes / 100)


def _contradictions(document: _Document) -> list[str]:
    """Return what no single value shows, each as `path: what was expected`."""
    found: list[str] = []
    floor = document.fleet.floor
    if isinstance(floor, str) and not _PERCENT.fullmatch(floor):
        return ["fleet.floor: a number of nodes, or a percentage such as 75%"]
    if _floor(floor, len(document.nodes)) >= len(document.nodes):
        found.append(
            f"fleet.floor: less than the {len(document.nodes)} nodes there are, "
            "or none of them could ever be stopped"
        )
    found += _lane_contradictions(document.nodes)
    found += [
        f"nodes.{name}.jump: the name of a table [jumps.NAME], not {jump!r}"
        for name, node in document.nodes.items()
        for jump in node.jump
        if jump not in document.jumps
    ]
    found += _shared_places(document.nodes)
    found += [
        f"waivers[{index}].node: a node of this inventory, not {waiver.node!r}"
        for index, waiver in enumerate(document.waivers)
        if waiver.node not in document.nodes
    ]
    return found


def _shared_places(nodes: Mapping[str, _NodeTable]) -> list[str]:
    """Return nodes that are one host under two names: it would be counted, and stopped, twice."""
    found: list[str] = []
    places: dict[tuple[object, ...], str] = {}
    for name, node in nodes.items():
        field = "address" if node.local is None else "local"
        # The same address behind another jump host may be another host.
        place = (str(node.address).lower(), node.port, *node.jump)
        other = places.setdefault(place if node.local is None else (Path(node.local),), name)
        if other != name:
            found.append(f"nodes.{name}.{field}: of its own, not that of {other}")
    return found


def _lane_contradictions(nodes: Mapping[str, _NodeTable]) -> list[str]:
    lanes = _lanes(nodes)
    counts = Counter(lanes.values())
    found = [
        f"nodes: at most {LANE_NODES_MAX} nodes in lane {lane!r}, there are {count}"
        for lane, count in sorted(counts.items())
        if count > LANE_NODES_MAX
    ]
    given = {node.lane for node in nodes.values()}
    # A node that slips into somebody's own lane would be stopped with it.
    found += [
        f"nodes.{name}.lane: a lane, because the derived {lanes[name]!r} is one of your own"
        for name, node in nodes.items()
        if node.lane is None and lanes[name] in given
    ]
    return found


def _problems(error: ValidationError, where: str) -> Refused:
    """Return the first problem, with each further one as the cause of the one before."""
    chain: Refused | None = None
    for item in reversed(error.errors(include_url=False)):
        path = "".join(
            f"[{part}]" if isinstance(part, int) else f".{part}" for part in item["loc"]
        ).removeprefix(".")
        text = item["msg"].removeprefix("Value error, ")
        shown = "" if item["type"] in {"missing", "value_error"} else repr(item["input"])[:80]
        refusal = Refused(
            "fleet-invalid",
            "the inventory has a wrong value",
            expected=text[:1].lower() + text[1:],
            got=shown,
            where=f"{where}: {path}" if path else where,
        )
        refusal.__cause__ = chain
        chain = refusal
    assert chain is not None
    return chain


def _tuples(value: object) -> object:
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    return value
