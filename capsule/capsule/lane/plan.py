"""The plan of one epoch: an immutable value that leaves its executor no choice.

Its digest is what an operator accepts and what an unattended run has to name.

Source: design, sections 11 and 13.
"""

from collections import Counter
from dataclasses import dataclass
from math import ceil
from typing import Final

from capsule.lane.budget import Budget
from capsule_manifest.canonical import JsonValue, Limits, decode, encode
from capsule_manifest.digest import sha256_text
from capsule_manifest.errors import Refused
from capsule_manifest.fields import Object, root_object

__all__ = [
    "LANE_NODES_MAX",
    "PlannedNode",
    "RolloutPlan",
    "check_plan",
    "decode_plan",
    "encode_plan",
    "floor_of",
    "plan_digest",
]

LANE_NODES_MAX: Final = 8
_SCHEMA: Final = "capsule-rollout-plan/1"
_LIMITS: Final = Limits(size_bytes_max=8 * 1024 * 1024, depth_max=4)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedNode:
    """One node as the preflight saw it. `serving` says whether its service was proved then."""

    name: str
    lane: str
    domain: str
    serving: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPlan:
    """What is going to happen. Nodes are admitted in the order of `nodes`.

    `bystanders` are proved healthy nodes of the fleet that the epoch doesn't touch: they count for
    the floor. `max_failed_lanes` None means that lanes never stop one another. `domain_cap` bounds
    how many nodes of one failure domain may be unavailable, None is no bound.
    """

    epoch: str
    capsule: str
    route: str
    preflight: str
    nodes: tuple[PlannedNode, ...]
    bystanders: int
    max_unavailable: int
    floor: int
    domain_cap: int | None
    max_failed_lanes: int | None
    allow_outage: bool
    budget: Budget


def floor_of(share_percent: int, nodes: int) -> int:
    """Return the floor of a share in nodes, rounded up: a part of a node can't serve."""
    return ceil(share_percent * nodes / 100)


def plan_digest(plan: RolloutPlan) -> str:
    """Return the SHA-256 of the plan's canonical form, as `sha256:…`."""
    return sha256_text(encode_plan(plan))


def encode_plan(plan: RolloutPlan) -> bytes:
    """Return the canonical bytes of the plan: what its digest is of, and what the ledger keeps."""
    budget: dict[str, JsonValue] = {
        name: getattr(plan.budget, name) for name in Budget.__dataclass_fields__
    }
    return encode(
        {
            "schema": _SCHEMA,
            "epoch": plan.epoch,
            "capsule": plan.capsule,
            "route": plan.route,
            "preflight": plan.preflight,
            "nodes": [
                {
                    "name": node.name,
                    "lane": node.lane,
                    "domain": node.domain,
                    "serving": node.serving,
                }
                for node in plan.nodes
            ],
            "bystanders": plan.bystanders,
            "max_unavailable": plan.max_unavailable,
            "floor": plan.floor,
            "domain_cap": plan.domain_cap,
            "max_failed_lanes": plan.max_failed_lanes,
            "allow_outage": plan.allow_outage,
            "budget": budget,
        }
    )


def decode_plan(raw: bytes, *, where: str) -> RolloutPlan:
    """Read a plan strictly, as `encode_plan` writes it.

    Raises:
        Refused: `json-*`, `document-invalid`, `document-version`.
    """
    document = root_object(decode(raw, limits=_LIMITS, where=where), schema=_SCHEMA, name=where)
    budget = document.nested("budget")
    plan = RolloutPlan(
        epoch=document.text("epoch"),
        capsule=document.text("capsule"),
        route=document.text("route"),
        preflight=document.text("preflight"),
        nodes=document.items("nodes", _read_node),
        bystanders=document.integer("bystanders"),
        max_unavailable=document.integer("max_unavailable"),
        floor=document.integer("floor"),
        domain_cap=document.optional_integer("domain_cap"),
        max_failed_lanes=document.optional_integer("max_failed_lanes"),
        allow_outage=document.boolean("allow_outage"),
        budget=Budget(**{name: budget.integer(name) for name in Budget.__dataclass_fields__}),
    )
    budget.end()
    document.end()
    return plan


def _read_node(item: Object) -> PlannedNode:
    node = PlannedNode(
        name=item.text("name"),
        lane=item.text("lane"),
        domain=item.text("domain"),
        serving=item.boolean("serving"),
    )
    item.end()
    return node


def check_plan(plan: RolloutPlan) -> None:
    """Refuse a plan that could not be carried out as it is written.

    Raises:
        Refused: `plan-empty`, `plan-node-twice`, `lane-too-wide`, `floor-too-high`,
            `outage-not-allowed`.
    """
    if not plan.nodes:
        raise Refused("plan-empty", "the plan selects no node", expected="at least one node")
    twice = [name for name, times in Counter(n.name for n in plan.nodes).items() if times > 1]
    if twice:
        raise Refused("plan-node-twice", "a node is in the plan twice", got=", ".join(twice))
    for lane, width in Counter(node.lane for node in plan.nodes).items():
        if width > LANE_NODES_MAX:
            raise Refused(
                "lane-too-wide",
                "a lane has too many nodes",
                expected=f"at most {LANE_NODES_MAX}",
                got=width,
                where=f"lane {lane}",
            )
    _check_availability(plan)


def _check_availability(plan: RolloutPlan) -> None:
    serving = [node for node in plan.nodes if node.serving]
    healthy = len(serving) + plan.bystanders
    if len(plan.nodes) + plan.bystanders == 1 and serving and not plan.allow_outage:
        raise Refused(
            "outage-not-allowed",
            "the fleet has one node, so its service will be away",
            expected="an explicit decision",
            where=plan.nodes[0].name,
        )
    if serving and healthy - plan.floor < 1:
        raise Refused(
            "floor-too-high",
            "no serving node may be stopped",
            expected=f"proved healthy - floor >= 1, for the first node {serving[0].name}",
            got=f"{healthy} - {plan.floor} = {healthy - plan.floor}",
        )
