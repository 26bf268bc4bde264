"""From a route, a capsule and a preflight to the plan of one epoch. Pure.

Nodes that already run the capsule are left alone; nodes that preflight found unfit are left out
only when an operator says so, and then they count as down: they never make the fleet look smaller.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, zip_longest

from capsule.freeze import FrozenRoute
from capsule.lane.budget import Budget, Liveness, check_node
from capsule.lane.plan import PlannedNode, RolloutPlan, check_plan
from capsule.payload import Payload
from capsule.rollout.coherence import Coherence
from capsule.rollout.preflight import Finding, Preflight
from capsule_manifest.errors import Refused

__all__ = ["PlanChoices", "epoch_name", "make_plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChoices:
    """What an operator decides about a plan. `without_unfit` leaves out what can't take part."""

    without_unfit: bool = False
    allow_outage: bool = False
    max_failed_lanes: int | None = None


def epoch_name(generation: str, existing: Iterable[str]) -> str:
    """Return the name of the next epoch of a generation: the same until one was started."""
    taken = sum(1 for name in existing if name.rpartition(".")[0] == generation)
    return f"{generation}.{taken + 1}"


def make_plan(
    route: FrozenRoute,
    payload: Payload,
    preflight: Preflight,
    *,
    epoch: str,
    choices: PlanChoices,
) -> RolloutPlan:
    """Return the plan, checked.

    Raises:
        Refused: `preflight-refused` with every unfit node, those of `check_plan`, and
            `window-above-ttl`.
    """
    findings = preflight.nodes
    unfit = {node: item for node, item in findings.items() if not item.is_fit}
    if unfit and not choices.without_unfit:
        raise Refused(
            "preflight-refused",
            "some nodes can't take part",
            expected="every node fit, or --without-unfit",
            got="; ".join(f"{node}: {item.problems[0]}" for node, item in sorted(unfit.items())),
        )
    chosen = [
        node
        for node, item in sorted(findings.items())
        if item.is_fit and not _is_done(item, payload.generation)
    ]
    bystanders = sum(
        item.serving and item.coherence is Coherence.COHERENT
        for node, item in findings.items()
        if node not in chosen
    )
    budgets = payload.release.budgets
    plan = RolloutPlan(
        epoch=epoch,
        capsule=payload.capsule,
        route=route.digest,
        preflight=preflight.digest,
        nodes=tuple(_planned(route, findings, node) for node in _by_turns(route, chosen)),
        bystanders=bystanders,
        max_unavailable=route.route.max_unavailable,
        floor=route.route.floor,
        domain_cap=None,
        max_failed_lanes=choices.max_failed_lanes,
        allow_outage=choices.allow_outage,
        budget=Budget(
            ttl_ms=budgets.ttl_ms,
            d1_ms=budgets.d1_ms,
            d2_ms=budgets.d2_ms,
            restore_ms=budgets.d1_ms,
        ),
    )
    check_plan(plan)
    for node in plan.nodes:
        check_node(plan.budget, Liveness(node=node.name, heartbeat_age_ms=0, credential_ms=None))
    return plan


def _is_done(finding: Finding, generation: str) -> bool:
    return (
        finding.coherence is Coherence.COHERENT
        and finding.serving
        and finding.current == generation
    )


def _planned(route: FrozenRoute, findings: Mapping[str, Finding], node: str) -> PlannedNode:
    entry = route.route.nodes[node]
    return PlannedNode(
        name=node, lane=entry.lane, domain=entry.domain, serving=findings[node].serving
    )


def _by_turns(route: FrozenRoute, nodes: list[str]) -> list[str]:
    """Return nodes of all lanes in turn: canaries are then of different lanes."""
    lanes: dict[str, list[str]] = {}
    for node in nodes:
        lanes.setdefault(route.route.nodes[node].lane, []).append(node)
    rows = zip_longest(*(lanes[lane] for lane in sorted(lanes)))
    return [node for node in chain.from_iterable(rows) if node is not None]
