"""One screen about one epoch, for fifty nodes and more: pure text from a state and times.

What is down now comes first, because an operator who is called in looks for nothing else. Then a
line a lane, what is held with its evidence and the next command, and the arithmetic of permits.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from capsule.lane.epoch import EpochState, Tenure
from capsule.lane.hold import HoldState
from capsule.lane.lane import LaneState
from capsule.lane.node import ORDERED, NodeState
from capsule.lane.permits import explain_permits
from capsule.lane.state import Member, RolloutState, availability

__all__ = ["ROWS_MAX", "render_frame"]

ROWS_MAX: Final = 8
"""Rows of each list; what is left out is counted."""

_WIDTH: Final = 100
_S = NodeState
_SIGNS: Final[Mapping[NodeState, str]] = {
    _S.UNTOUCHED: "·",
    _S.STAGED: "·",
    _S.HOLDING: "h",
    _S.DRAINING: "d",
    _S.STOP_INTENT: "o",
    _S.STOPPED: "v",
    _S.SWITCHED: "v",
    _S.STARTED: "^",
    _S.PROVED: "p",
    _S.COMMITTED: "C",
    _S.RESTORING: "r",
    _S.RESTORED: "R",
    _S.HELD: "H",
    _S.SKIPPED: "-",
    _S.UNKNOWN: "?",
}
_LEGEND: Final = (
    "· staged h held d draining o ordered v down ^ started p proved C committed r restoring",
    "H held for you - skipped ? unknown",
)
_DOWN: Final = frozenset({_S.STOPPED, _S.SWITCHED, _S.STARTED, _S.RESTORING})


def render_frame(state: RolloutState, since_ms: Mapping[str, int], now_ms: int) -> str:
    """Return the screen. `since_ms` is when each node came into its state, where that is known."""
    lines = [
        *_head(state),
        "",
        *_down(state, since_ms, now_ms),
        *_lanes(state),
        *_LEGEND,
        *_held(state),
        "",
        *_arithmetic(state),
    ]
    return "\n".join(line[:_WIDTH].rstrip() for line in lines) + "\n"


def _head(state: RolloutState) -> Iterator[str]:
    tally, plan = state.tally, state.plan
    tenure = "" if state.epoch is EpochState.ENDED else f", {state.tenure}"
    yield f"epoch {plan.epoch}  {state.epoch}{tenure}  fence {state.fence}"
    yield f"capsule {plan.capsule}"
    skipped = sum(member.state is _S.SKIPPED for member in state.members.values())
    yield (
        f"{tally.committed} of {len(state.members)} committed, {tally.held} held, "
        f"{skipped} skipped, {tally.unknown} unknown, {tally.outstanding} out"
    )


def _down(state: RolloutState, since_ms: Mapping[str, int], now_ms: int) -> Iterator[str]:
    down = [member for member in state.members.values() if _is_down(member)]
    if not down:
        yield "nothing is down"
        yield ""
        return
    down.sort(key=lambda member: since_ms.get(member.name, now_ms))
    yield f"DOWN NOW: {len(down)}"
    for member in down[:ROWS_MAX]:
        since = since_ms.get(member.name)
        passed_ms = None if since is None else max(now_ms - since, 0)
        clock = _clock(passed_ms, _limit_ms(state, member), member)
        yield f"  {member.name:<16} {member.state:<11} {clock}"
    yield from _rest(down)
    yield ""


def _is_down(member: Member) -> bool:
    return member.state in _DOWN or (
        not member.serving and member.state in {*ORDERED, _S.HELD} and member.state is not _S.PROVED
    )


def _limit_ms(state: RolloutState, member: Member) -> int:
    budget = state.plan.budget
    return budget.restore_ms if member.state is _S.RESTORING else budget.d1_ms


def _clock(passed_ms: int | None, limit_ms: int, member: Member) -> str:
    if member.state is _S.HELD:
        return "until a person or a later rollout acts"
    if passed_ms is None:
        return f"limit {limit_ms // 1000} s"
    left_ms = limit_ms - passed_ms
    if left_ms < 0:
        return f"for {passed_ms // 1000} s of {limit_ms // 1000} s, its dead-man has restored it"
    return (
        f"for {passed_ms // 1000} s of {limit_ms // 1000} s, its dead-man restores in "
        f"{left_ms // 1000} s"
    )


def _lanes(state: RolloutState) -> Iterator[str]:
    width = max(len(lane) for lane in state.lanes)
    for lane, lane_state in sorted(state.lanes.items()):
        members = [member for member in state.members.values() if member.lane == lane]
        signs = "".join(_SIGNS[member.state] for member in members)
        done = sum(member.state is _S.COMMITTED for member in members)
        yield f"lane {lane:<{width}}  {lane_state:<8} {signs:<8}  {done} of {len(members)}"


def _held(state: RolloutState) -> Iterator[str]:
    held = [
        member
        for member in state.members.values()
        if member.state in {_S.HELD, _S.UNKNOWN}
        or (member.state is _S.SKIPPED and member.reason not in {"aborted", ""})
    ]
    if not held:
        return
    yield ""
    for member in held[:ROWS_MAX]:
        serving = "serves" if member.serving else "does not serve"
        if member.state is _S.UNKNOWN:
            serving = "served when last heard" if member.serving else "did not serve before"
        yield f"{member.name}: {member.state}, {serving}: {member.reason or 'no answer'}"
        yield f"  next: {_next(state, member)}"
    yield from _rest(held)


def _next(state: RolloutState, member: Member) -> str:
    lane_state = state.lanes[member.lane]
    if member.state is _S.UNKNOWN:
        return f"it is asked again; if its host is lost, capsule node assume-down {member.name}"
    if state.epoch is EpochState.HALTED:
        return "look at the canary, then capsule rollout resume or abort"
    if lane_state is LaneState.HELD:
        return f"capsule lane resume {member.lane}, or capsule lane skip {member.lane}"
    if member.state is _S.SKIPPED:
        return "a later rollout takes it again"
    return "capsule status; a later rollout takes it again"


def _arithmetic(state: RolloutState) -> Iterator[str]:
    waiting = next((state.members[name] for name in state.queue), None)
    if waiting is None:
        floor, healthy = state.plan.floor, state.tally.healthy + state.plan.bystanders
        yield f"permits: no node waits; {healthy} proved healthy, floor {floor}"
    else:
        permits = explain_permits(availability(state, waiting.domain), serving=waiting.serving)
        yield f"permits: {permits.count} = {permits.text}"
    budget = state.plan.budget
    yield (
        f"budget: window at most {budget.window_ms // 1000} s against TTL "
        f"{budget.ttl_ms // 1000} s; D1 {budget.d1_ms // 1000} s, D2 {budget.d2_ms // 1000} s"
    )
    if state.tenure is Tenure.PARKED and state.epoch is not EpochState.ENDED:
        yield "parked: it waits for capsule lane resume|skip, or capsule rollout resume|abort|adopt"
    out = [m.name for m in state.members.values() if m.hold is not HoldState.FREE]
    if out:
        yield f"permits out: {', '.join(out[:ROWS_MAX])}"


def _rest(rows: list[Member]) -> Iterator[str]:
    if len(rows) > ROWS_MAX:
        yield f"  and {len(rows) - ROWS_MAX} more: --json names all"
