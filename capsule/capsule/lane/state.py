"""The state of one epoch: the fold of its events, with the counts that decisions need.

Counts are kept beside the nodes so that an event costs the same in a fleet of fifty and of five
thousand; `recount` computes them anew, and a test holds the two together.

Source: design, section 11.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from capsule.lane.epoch import EpochState, Tenure
from capsule.lane.hold import HoldState
from capsule.lane.lane import LaneState
from capsule.lane.node import ACTIVE, ORDERED, TERMINAL, NodeState
from capsule.lane.permits import Availability
from capsule.lane.plan import RolloutPlan
from capsule.lane.roster import Roster

__all__ = [
    "CANARIES",
    "Member",
    "RolloutState",
    "Tally",
    "availability",
    "initial_state",
    "is_moving",
    "is_proved_healthy",
    "recount",
    "width_of",
    "with_member",
]

CANARIES = 3
"""Nodes that have to commit before full width: one, then two."""

_MOVING = ACTIVE - {NodeState.UNKNOWN}


class Member(NamedTuple):
    """One node in the epoch, at `place` in the plan. `attempts` counts its holds.

    `taken_serving` says whether its permit was weighed against the floor, `touched` that the host
    was heard to have acted on the current op.
    """

    name: str
    place: int
    lane: str
    domain: str
    state: NodeState
    hold: HoldState
    serving: bool
    taken_serving: bool
    canary: bool
    attempts: int
    op_id: str
    touched: bool
    proof: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Counts over all members. `domain_down` counts members that are not proved healthy."""

    outstanding: int
    healthy: int
    moving: int
    unknown: int
    terminal: int
    committed: int
    held: int
    domain_down: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutState:
    """One epoch as its events say. `queue` holds the staged nodes in the order of admission."""

    plan: RolloutPlan
    epoch: EpochState
    tenure: Tenure
    fence: int
    members: Roster[Member]
    lanes: Mapping[str, LaneState]
    failed_lanes: int
    queue: tuple[str, ...]
    tally: Tally


def initial_state(plan: RolloutPlan) -> RolloutState:
    """Return the state before the first event."""
    members = {
        node.name: Member(
            name=node.name,
            place=place,
            lane=node.lane,
            domain=node.domain,
            state=NodeState.UNTOUCHED,
            hold=HoldState.FREE,
            serving=node.serving,
            taken_serving=False,
            canary=False,
            attempts=0,
            op_id="",
            touched=False,
            proof="",
            reason="",
        )
        for place, node in enumerate(plan.nodes)
    }
    return RolloutState(
        plan=plan,
        epoch=EpochState.RUNNING,
        tenure=Tenure.ATTENDED,
        fence=0,
        members=Roster(members),
        lanes={node.lane: LaneState.OPEN for node in plan.nodes},
        failed_lanes=0,
        queue=(),
        tally=recount(members),
    )


def is_proved_healthy(member: Member) -> bool:
    """Say whether the node counts for the floor: proved, not held, not unknown."""
    return (
        member.serving
        and member.hold is HoldState.FREE
        and member.state is not NodeState.HELD
        and member.state not in ORDERED
    )


def is_moving(member: Member) -> bool:
    """Say whether the node will change its state by itself, within its limits."""
    return member.state in _MOVING


def recount(members: Mapping[str, Member]) -> Tally:
    """Return the counts over `members`."""
    down: dict[str, int] = {}
    for member in members.values():
        down[member.domain] = down.get(member.domain, 0) + (not is_proved_healthy(member))
    states = [member.state for member in members.values()]
    return Tally(
        outstanding=sum(m.hold is not HoldState.FREE for m in members.values()),
        healthy=sum(is_proved_healthy(m) for m in members.values()),
        moving=sum(is_moving(m) for m in members.values()),
        unknown=states.count(NodeState.UNKNOWN),
        terminal=sum(state in TERMINAL for state in states),
        committed=states.count(NodeState.COMMITTED),
        held=states.count(NodeState.HELD),
        domain_down=down,
    )


def with_member(state: RolloutState, before: Member, after: Member) -> RolloutState:
    """Return `state` with one member replaced and the counts adjusted."""
    tally = state.tally
    was_healthy, healthy = is_proved_healthy(before), is_proved_healthy(after)
    down = tally.domain_down
    if was_healthy != healthy:
        down = {**down, after.domain: down[after.domain] + was_healthy - healthy}
    old, new = before.state, after.state
    tally = Tally(
        outstanding=tally.outstanding
        + (after.hold is not HoldState.FREE)
        - (before.hold is not HoldState.FREE),
        healthy=tally.healthy + healthy - was_healthy,
        moving=tally.moving + (new in _MOVING) - (old in _MOVING),
        unknown=tally.unknown + (new is NodeState.UNKNOWN) - (old is NodeState.UNKNOWN),
        terminal=tally.terminal + (new in TERMINAL) - (old in TERMINAL),
        committed=tally.committed + (new is NodeState.COMMITTED) - (old is NodeState.COMMITTED),
        held=tally.held + (new is NodeState.HELD) - (old is NodeState.HELD),
        domain_down=down,
    )
    queue = state.queue
    if (new is NodeState.STAGED) != (old is NodeState.STAGED):
        if new is NodeState.STAGED:
            # Back in its place, not behind the others: which node is a canary must not depend on
            # where a controller died.
            place = bisect_left(queue, after.place, key=lambda name: state.members[name].place)
            queue = (*queue[:place], after.name, *queue[place:])
        else:
            place = queue.index(after.name)
            queue = queue[:place] + queue[place + 1 :]
    # Spelled out: `replace` takes as long as all the rest of this function.
    return RolloutState(
        plan=state.plan,
        epoch=state.epoch,
        tenure=state.tenure,
        fence=state.fence,
        members=state.members.with_value(after.name, after),
        lanes=state.lanes,
        failed_lanes=state.failed_lanes,
        queue=queue,
        tally=tally,
    )


def width_of(state: RolloutState) -> int:
    """Return how many nodes may be out at once: one, then two, then as many as the plan says."""
    committed = state.tally.committed
    if committed == 0:
        return 1
    return 2 if committed < CANARIES else state.plan.max_unavailable


def availability(state: RolloutState, domain: str) -> Availability:
    """Return what the permit arithmetic needs for one more node of `domain`."""
    return Availability(
        max_unavailable=state.plan.max_unavailable,
        outstanding=state.tally.outstanding,
        width=width_of(state),
        healthy=state.tally.healthy + state.plan.bystanders,
        floor=state.plan.floor,
        domain_cap=state.plan.domain_cap,
        domain_down=state.tally.domain_down[domain],
    )
