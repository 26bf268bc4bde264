"""What to record about something that was heard, timed out, or was ordered by an operator.

Each function is pure: state in, events out. A report that is late, doubled or about another op
gives no event: only what the node's table accepts in its present state is ever proposed.

Source: design, section 11.
"""

from capsule.lane.budget import Liveness, judge_node
from capsule.lane.epoch import (
    AbortDecided,
    Adopted,
    Ended,
    EpochState,
    Parked,
    Paused,
    Resumed,
)
from capsule.lane.events import Event, HealthSeen, HoldReturned
from capsule.lane.hold import HoldState
from capsule.lane.lane import LaneResumed, LaneSkipped, LaneState
from capsule.lane.node import (
    ORDERED,
    AssumedDown,
    CommitSeen,
    HoldDropped,
    HoldSeen,
    HoldTaken,
    NodeEvent,
    NodeState,
    OrderRefused,
    OrderVoid,
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
from capsule.lane.node_table import TABLE
from capsule.lane.permits import Permits, count_permits, explain_permits
from capsule.lane.ports import HoldReport, HostReport, HostStep
from capsule.lane.state import CANARIES, Member, RolloutState, availability, width_of
from capsule_manifest.errors import ExitCode

__all__ = [
    "can_admit",
    "is_canary",
    "permits_for",
    "propose_abort",
    "propose_adoption",
    "propose_assume_down",
    "propose_end",
    "propose_from_hold",
    "propose_from_host",
    "propose_hold",
    "propose_lane_resume",
    "propose_lane_skip",
    "propose_park",
    "propose_pause",
    "propose_resume",
    "result_of",
]

_UNTAKEN = frozenset({NodeState.UNTOUCHED, NodeState.STAGED})
_UNORDERED = _UNTAKEN | {NodeState.HOLDING, NodeState.DRAINING}


def propose_from_host(state: RolloutState, report: HostReport) -> tuple[Event, ...]:
    """Return what a host's report adds to what is known."""
    member = state.members[report.node]
    if report.op_id != member.op_id or member.state not in ORDERED:
        return ()
    event = _host_event(member, report)
    if event is None or (member.state, type(event)) not in TABLE:
        return ()
    return (event,)


def _host_event(member: Member, report: HostReport) -> NodeEvent | None:
    node = member.name
    match report.step:
        case HostStep.NO_RECORD:
            # A host that was heard to act and has no record now lost its disk: a person decides.
            return OrderVoid(node) if report.closed and not member.touched else None
        case HostStep.ACCEPTED:
            return None
        case HostStep.REFUSED:
            return None if member.touched else OrderRefused(node, report.reason)
        case HostStep.STOPPED:
            return StopSeen(node)
        case HostStep.SWITCHED:
            return SwitchSeen(node)
        case HostStep.STARTED:
            return StartSeen(node)
        case HostStep.PROVED:
            return ProofSeen(node, report.proof)
        case HostStep.COMMITTED:
            return CommitSeen(node)
        case HostStep.RESTORING:
            return RestoreBegun(node)
        case HostStep.RESTORED:
            return RestoreSeen(node, report.serving)
        case HostStep.RESTORE_FAILED:
            return RestoreFailed(node)


def propose_from_hold(
    state: RolloutState, report: HoldReport, liveness: Liveness, op_id: str
) -> tuple[Event, ...]:
    """Return what the dispatcher's report allows: the second budget gate stands here.

    The intent is proposed only for a node that is held and idle, and that outlives its window from
    this moment on.
    """
    member = state.members[report.node]
    if report.turn != member.attempts:
        return ()
    if not report.held:
        if member.hold is HoldState.RELEASING:
            return (HoldReturned(member.name),)
        return ()
    if member.hold is not HoldState.TAKEN or member.state not in {
        NodeState.HOLDING,
        NodeState.DRAINING,
    }:
        return ()
    events: list[Event] = []
    if member.state is NodeState.HOLDING:
        events.append(HoldSeen(member.name))
    if report.busy:
        return tuple(events)
    if report.serving and not member.taken_serving:
        # It came back after it was taken as down: to stop it now would cost what was never
        # weighed against the floor.
        again = () if member.serving else (HealthSeen(member.name, serving=True),)
        return (*events, *again, HoldDropped(member.name, "serves again, is taken anew"))
    verdict = judge_node(state.plan.budget, liveness)
    if verdict.error_id:
        return (*events, Skipped(member.name, f"{verdict.error_id}: {verdict.text}"))
    return (*events, StopIntended(member.name, op_id))


def permits_for(state: RolloutState, member: Member) -> Permits:
    """Return the permits that there are for this node now, with the arithmetic."""
    return explain_permits(availability(state, member.domain), serving=member.serving)


def propose_hold(state: RolloutState, foreign: frozenset[str]) -> tuple[Event, ...]:
    """Return the next node's permit and hold, or nothing if none may be taken now.

    Nodes are looked at in the order of the plan; one that somebody else holds is skipped, because
    its hold is not ours to end and its owner may be at work on it.
    """
    if not can_admit(state):
        return ()
    tally = state.tally
    if tally.outstanding >= min(width_of(state), state.plan.max_unavailable):
        return ()
    above_floor = tally.healthy + state.plan.bystanders - state.plan.floor
    # Of one domain all nodes that serve, or don't, have the same arithmetic: thousands may wait.
    counts: dict[tuple[str, bool], int] = {}
    for name in state.queue:
        member = state.members[name]
        if state.lanes[member.lane] is not LaneState.OPEN or member.hold is not HoldState.FREE:
            continue
        if name in foreign:
            return (Skipped(name, "somebody else holds the node"),)
        if member.serving and above_floor < 1:
            continue
        kind = (member.domain, member.serving)
        if kind not in counts:
            counts[kind] = count_permits(availability(state, member.domain), serving=member.serving)
        if counts[kind]:
            return (HoldTaken(name, member.serving, is_canary(state)),)
    return ()


def can_admit(state: RolloutState) -> bool:
    """Say whether some node may be taken once there is a permit for it."""
    return state.epoch is EpochState.RUNNING and any(
        state.lanes[state.members[name].lane] is LaneState.OPEN for name in state.queue
    )


def is_canary(state: RolloutState) -> bool:
    """Say whether a node that is taken now is a canary."""
    return state.tally.committed < min(CANARIES, len(state.members))


def propose_adoption(state: RolloutState, *, fence: int, holder: str) -> tuple[Event, ...]:
    """Return what a new controller records first, in one append.

    Untouched holds are given up, and whatever may have been ordered counts as unknown until its
    host has recorded the new fence and answered.
    """
    events: list[Event] = [Adopted(fence, holder)]
    for member in state.members.values():
        if member.state in {NodeState.HOLDING, NodeState.DRAINING}:
            events.append(HoldDropped(member.name, "adopted before anything was ordered"))
        elif member.state in ORDERED and member.state is not NodeState.UNKNOWN:
            events.append(ReplyLost(member.name))
    return tuple(events)


# --- operator -----------------------------------------------------------------------------------
def propose_abort(state: RolloutState, reason: str) -> tuple[Event, ...]:
    """Return the abort: no node that was not ordered will ever be."""
    if state.epoch in {EpochState.ABORTING, EpochState.ENDED}:
        return ()
    return (AbortDecided(reason), *_skips(state, None, "aborted"))


def propose_lane_skip(state: RolloutState, lane: str) -> tuple[Event, ...]:
    """Return the skip of a lane's nodes that were not ordered."""
    if state.lanes[lane] is LaneState.SKIPPED:
        return ()
    return (LaneSkipped(lane), *_skips(state, lane, "its lane was skipped"))


def _skips(state: RolloutState, lane: str | None, reason: str) -> tuple[Skipped, ...]:
    return tuple(
        Skipped(member.name, reason)
        for member in state.members.values()
        if member.state in _UNORDERED and lane in {None, member.lane}
    )


def propose_lane_resume(state: RolloutState, lane: str) -> tuple[Event, ...]:
    """Return the resumption of a held or waiting lane."""
    waiting = state.lanes[lane] in {LaneState.HELD, LaneState.WAITING}
    return (LaneResumed(lane),) if waiting else ()


def propose_pause(state: RolloutState, reason: str) -> tuple[Event, ...]:
    """Return a pause of a running epoch."""
    return (Paused(reason),) if state.epoch is EpochState.RUNNING else ()


def propose_resume(state: RolloutState, reason: str) -> tuple[Event, ...]:
    """Return the resumption of a paused or halted epoch."""
    stopped = state.epoch in {EpochState.PAUSED, EpochState.HALTED}
    return (Resumed(reason),) if stopped else ()


def propose_assume_down(state: RolloutState, node: str) -> tuple[Event, ...]:
    """Return an operator's decision that an unknown node counts as down."""
    unknown = state.members[node].state is NodeState.UNKNOWN
    return (AssumedDown(node),) if unknown else ()


# --- end ----------------------------------------------------------------------------------------
def result_of(state: RolloutState) -> ExitCode:
    """Return the exit code of the epoch as it stands: 6 before 5 before 0."""
    members = state.members.values()
    if any(m.state is NodeState.UNKNOWN or not m.serving for m in members):
        return ExitCode.NOT_SERVING
    if state.tally.committed < len(state.members):
        return ExitCode.NODES_HELD
    return ExitCode.DONE


def propose_end(state: RolloutState) -> tuple[Event, ...]:
    """Return the end, once every node is terminal and every permit is back."""
    if (
        state.epoch is EpochState.ENDED
        or state.tally.terminal < len(state.members)
        or state.tally.outstanding
    ):
        return ()
    return (Ended("every node is terminal", int(result_of(state))),)


def propose_park(
    state: RolloutState, reason: str, *, code: ExitCode = ExitCode.NODES_HELD
) -> tuple[Event, ...]:
    """Return the parking of an epoch in which nothing moves by itself.

    `code` is what it ends with, unless some node doesn't serve: that is worth more.
    """
    if state.tally.moving or state.epoch is EpochState.ENDED:
        return ()
    result = result_of(state)
    return (Parked(reason, int(result if result is ExitCode.NOT_SERVING else code)),)
