"""The decision core: fold one event into the state and say what follows from it.

Invariants:
* Every effect follows from an event, and the driver appends before it acts: intent is durable
  before effect because there is no other way to get an effect.
* What must not be lost between two events is one append: `with_consequences` closes a list of
  events under what they cause, such as the halt after a failed canary.

Source: design, section 11; `docs/explanation/rollout.md`.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from capsule.lane.effects import AskHost, Effect, PlaceHold, ReleaseHold, SendConfirm, SendOrder
from capsule.lane.epoch import (
    Adopted,
    EpochEvent,
    EpochState,
    Halted,
    TenureEvent,
    advance_epoch,
    advance_tenure,
)
from capsule.lane.events import Event, FleetEvent, HealthSeen, HoldReturned
from capsule.lane.hold import HoldState, Kept, ReleaseBegun, Returned, Taken, advance_hold
from capsule.lane.lane import (
    LaneEvent,
    LaneState,
    MemberHeld,
    MemberLost,
    MembersKnown,
    advance_lane,
)
from capsule.lane.node import (
    AssumedDown,
    CommitSeen,
    DrainExpired,
    HeldForOperator,
    HoldDropped,
    HoldTaken,
    NodeEvent,
    NodeState,
    OrderRefused,
    ProofSeen,
    ReplyLost,
    RestoreBegun,
    RestoreFailed,
    RestoreSeen,
    Skipped,
    StartSeen,
    StopIntended,
    StopSeen,
    SwitchSeen,
)
from capsule.lane.node_table import advance_node
from capsule.lane.state import Member, RolloutState, with_member

__all__ = ["ATTEMPTS_MAX", "consequences", "decide", "with_consequences"]

ATTEMPTS_MAX: Final = 3
"""How often one epoch takes the same node's hold before it leaves the node alone."""

_LET_GO = frozenset({NodeState.STAGED, NodeState.SKIPPED, NodeState.COMMITTED})
_TOUCHING = (
    StopSeen,
    SwitchSeen,
    StartSeen,
    ProofSeen,
    CommitSeen,
    RestoreBegun,
    RestoreSeen,
    RestoreFailed,
)


def decide(state: RolloutState, event: Event) -> tuple[RolloutState, tuple[Effect, ...]]:
    """Return the state after `event`, and the effects that follow from it.

    Raises:
        IllegalTransition: if a machine decided against the event; `state` is unchanged.
    """
    if isinstance(event, NodeEvent):
        return _node_event(state, event)
    if isinstance(event, FleetEvent):
        return _fleet_event(state, event), ()
    if isinstance(event, LaneEvent):
        return _lane_event(state, event), ()
    if isinstance(event, EpochEvent):
        return replace(state, epoch=advance_epoch(state.epoch, event)), ()
    if isinstance(event, TenureEvent):
        return _tenure_event(state, event)
    return replace(state, fence=event.fence), ()


def _node_event(state: RolloutState, event: NodeEvent) -> tuple[RolloutState, tuple[Effect, ...]]:
    before = state.members[event.node]
    following = advance_node(before.state, event)
    after = _with_facts(before, event)._replace(state=following)
    effects = _effects(after, event)
    if after.hold is HoldState.TAKEN:
        if following in _LET_GO:
            after = after._replace(hold=advance_hold(after.hold, ReleaseBegun()))
            effects = (ReleaseHold(after.name, after.attempts),)
        elif following is NodeState.HELD:
            after = after._replace(hold=advance_hold(after.hold, Kept()))
    state = with_member(state, before, after)
    for lane_event in _lane_consequences(state, before, after):
        state = _lane_event(state, lane_event)
    return state, effects


def _with_facts(member: Member, event: NodeEvent) -> Member:
    """Return the member with what the event carries besides its step."""
    if isinstance(event, _TOUCHING):
        member = member._replace(touched=True)
    if isinstance(event, HoldTaken):
        return member._replace(
            hold=advance_hold(member.hold, Taken()),
            taken_serving=event.serving,
            canary=event.canary,
            attempts=member.attempts + 1,
            op_id="",
            touched=False,
        )
    if isinstance(event, StopIntended):
        return member._replace(op_id=event.op_id)
    if isinstance(event, ProofSeen):
        return member._replace(proof=event.proof)
    if isinstance(event, CommitSeen):
        return member._replace(serving=True)
    if isinstance(event, RestoreSeen):
        return member._replace(serving=event.serving)
    if isinstance(event, RestoreFailed):
        return member._replace(serving=False, reason="the host could not restore")
    if isinstance(event, AssumedDown):
        return member._replace(serving=False, reason="an operator took it for down")
    if isinstance(event, OrderRefused | HeldForOperator | Skipped | HoldDropped):
        return member._replace(reason=event.reason)
    if isinstance(event, DrainExpired):
        return member._replace(reason="work stayed on the node past the drain's limit")
    return member


def _effects(after: Member, event: NodeEvent) -> tuple[Effect, ...]:
    if isinstance(event, HoldTaken):
        return (PlaceHold(after.name, after.attempts),)
    if isinstance(event, StopIntended):
        return (SendOrder(after.name, after.op_id),)
    if isinstance(event, ProofSeen):
        return (SendConfirm(after.name, after.op_id, after.proof),)
    if isinstance(event, ReplyLost):
        return (AskHost(after.name, after.op_id),)
    return ()


def _lane_consequences(state: RolloutState, before: Member, after: Member) -> tuple[LaneEvent, ...]:
    if after.state is NodeState.HELD:
        return (MemberHeld(after.lane),)
    if after.state is NodeState.UNKNOWN:
        return (MemberLost(after.lane),)
    if before.state is NodeState.UNKNOWN and not _has_unknown(state, after.lane):
        return (MembersKnown(after.lane),)
    return ()


def _has_unknown(state: RolloutState, lane: str) -> bool:
    return state.tally.unknown > 0 and any(
        member.lane == lane and member.state is NodeState.UNKNOWN
        for member in state.members.values()
    )


def _lane_event(state: RolloutState, event: LaneEvent) -> RolloutState:
    before = state.lanes[event.lane]
    after = advance_lane(before, event)
    if after is before:
        return state
    failed = state.failed_lanes + (after is LaneState.HELD) - (before is LaneState.HELD)
    return replace(state, lanes={**state.lanes, event.lane: after}, failed_lanes=failed)


def _fleet_event(state: RolloutState, event: FleetEvent) -> RolloutState:
    before = state.members[event.node]
    if isinstance(event, HealthSeen):
        return with_member(state, before, before._replace(serving=event.serving))
    assert isinstance(event, HoldReturned)
    after = before._replace(hold=advance_hold(before.hold, Returned()))
    return with_member(state, before, after)


def _tenure_event(
    state: RolloutState, event: TenureEvent
) -> tuple[RolloutState, tuple[Effect, ...]]:
    state = replace(state, tenure=advance_tenure(state.tenure, event))
    if not isinstance(event, Adopted):
        return state, ()
    effects: list[Effect] = []
    for member in state.members.values():
        # Nobody may trust what an earlier controller's messages will still do: every unresolved
        # node records the new fence before anything is concluded about it.
        if member.state is NodeState.UNKNOWN:
            effects.append(AskHost(member.name, member.op_id))
        if member.hold is HoldState.RELEASING:
            effects.append(ReleaseHold(member.name, member.attempts))
    return replace(state, fence=event.fence), tuple(effects)


# --- consequences -------------------------------------------------------------------------------
def consequences(before: RolloutState, state: RolloutState, event: Event) -> tuple[Event, ...]:
    """Return what `event` causes, to be appended together with it."""
    if not isinstance(event, NodeEvent):
        return ()
    member = state.members[event.node]
    if member.state is NodeState.RESTORED:
        return (HeldForOperator(event.node, "the host restored what ran before"),)
    if member.state is NodeState.STAGED and not isinstance(event, HoldTaken):
        return _unwanted(state, member)
    if member.state is not NodeState.HELD or state.epoch not in {
        EpochState.RUNNING,
        EpochState.PAUSED,
    }:
        return ()
    if member.canary:
        return (Halted(f"the canary {member.name} failed: {member.reason}"),)
    allowed = state.plan.max_failed_lanes
    if allowed is not None and state.failed_lanes > max(allowed, before.failed_lanes):
        return (Halted(f"{state.failed_lanes} lanes failed, {allowed} allowed"),)
    return ()


def _unwanted(state: RolloutState, member: Member) -> tuple[Event, ...]:
    if state.epoch is EpochState.ABORTING:
        return (Skipped(member.name, "aborted"),)
    if state.lanes[member.lane] is LaneState.SKIPPED:
        return (Skipped(member.name, "its lane was skipped"),)
    if member.attempts >= ATTEMPTS_MAX:
        return (Skipped(member.name, f"tried {member.attempts} times: {member.reason}"),)
    return ()


def with_consequences(
    state: RolloutState, events: Iterable[Event]
) -> tuple[tuple[Event, ...], RolloutState, tuple[Effect, ...]]:
    """Return `events` and what they cause, the state after all of them, and their effects."""
    done: list[Event] = []
    effects: list[Effect] = []
    waiting = list(events)
    while waiting:
        event = waiting.pop(0)
        before = state
        state, following = decide(state, event)
        done.append(event)
        effects.extend(following)
        waiting[:0] = consequences(before, state, event)
    return tuple(done), state, tuple(effects)
