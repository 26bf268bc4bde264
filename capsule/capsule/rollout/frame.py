"""One screen about one epoch, for fifty nodes and more: pure text from a state and times.

What is down now comes first, because an operator who is called in looks for nothing else. Then a
line a lane with whom it waits for, how long already and how long at most; what is held with its
evidence and the next command; the arithmetic of permits and budgets, the tightest first.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from capsule.lane.budget import Liveness, judge_node
from capsule.lane.epoch import EpochState, Tenure
from capsule.lane.hold import HoldState
from capsule.lane.lane import LaneState
from capsule.lane.node import ACTIVE, ORDERED, NodeState, StartSeen, SwitchSeen
from capsule.lane.permits import explain_permits
from capsule.lane.state import Member, RolloutState, availability

__all__ = ["ROWS_MAX", "begins_a_clock", "evidence_of", "render_frame"]

ROWS_MAX: Final = 8
"""Rows of each list; what is left out is counted."""

_WIDTH: Final = 100
_LINES: Final = 40
_HELD_MIN: Final = 3
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
# The host's own timer that restores when it runs out.
_DEAD_MAN: Final[Mapping[NodeState, str]] = {
    _S.STOPPED: "D1",
    _S.SWITCHED: "D1",
    _S.STARTED: "D1",
    _S.PROVED: "D2",
}
_TIGHTEST_MAX: Final = 3
_DECIDED: Final = frozenset({"aborted", "its lane was skipped", ""})
"""Why an operator's decision skipped a node: nobody has to look at it."""


def begins_a_clock(event: str) -> bool:
    """Say whether an event, by its name, begins a node's clock anew.

    The first deadline runs on from the stop to proved.
    """
    return event not in {SwitchSeen.__name__, StartSeen.__name__}


def evidence_of(member: Member, reasons: Mapping[str, str]) -> str:
    """Return why a member is as it is: what its host signed, else what the ledger has."""
    return reasons.get(member.op_id, "") or member.reason


def render_frame(
    state: RolloutState,
    since_ms: Mapping[str, int],
    now_ms: int,
    reasons: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Return the screen.

    `since_ms` is when each node's clock began, and `reasons` what hosts say of their ops, by op id,
    as far as either is known.
    """
    above = [
        *_head(state),
        "",
        *_down(state, since_ms, now_ms),
        *_lanes(state, since_ms, now_ms),
        *_LEGEND,
    ]
    below = ["", *_arithmetic(state), *_budgets(state, since_ms, now_ms)]
    # Two lines a row, a blank one before and a count after: as many as one screen has room for.
    room = (_LINES - len(above) - len(below) - 2) // 2
    lines = [*above, *_held(state, reasons, min(max(room, _HELD_MIN), ROWS_MAX)), *below]
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
    yield from _rest(down, ROWS_MAX)
    yield ""


def _is_down(member: Member) -> bool:
    return member.state in _DOWN or (
        not member.serving and member.state in {*ORDERED, _S.HELD} and member.state is not _S.PROVED
    )


def _limit_ms(state: RolloutState, member: Member) -> int:
    """Return how long the member may be in its state before somebody acts."""
    budget = state.plan.budget
    match member.state:
        case _S.RESTORING | _S.RESTORED:
            return budget.restore_ms
        case _S.PROVED:
            return budget.d2_ms
        case _S.HOLDING | _S.DRAINING:
            return budget.drain_ms
        case _S.UNKNOWN:
            return budget.op_ms
        case _:
            return budget.d1_ms


def _clock(passed_ms: int | None, limit_ms: int, member: Member) -> str:
    if member.state is _S.HELD:
        return "until a person or a later rollout acts"
    if passed_ms is None:
        return f"limit {limit_ms // 1000} s"
    passed, left_ms = f"for {passed_ms // 1000} s of {limit_ms // 1000} s", limit_ms - passed_ms
    if member.state is _S.RESTORING:
        return passed if left_ms >= 0 else f"{passed}, longer than it may take"
    if left_ms < 0:
        return f"{passed}, its dead-man has restored it"
    return f"{passed}, its dead-man restores in {left_ms // 1000} s"


def _lanes(state: RolloutState, since_ms: Mapping[str, int], now_ms: int) -> Iterator[str]:
    members: dict[str, list[Member]] = {lane: [] for lane in sorted(state.lanes)}
    for member in state.members.values():
        members[member.lane].append(member)
    ranked = sorted(members, key=lambda lane: _calm(state.lanes[lane], members[lane]))
    shown = sorted(ranked[:ROWS_MAX])
    width = max(len(lane) for lane in shown)
    for lane in shown:
        signs = "".join(_SIGNS[member.state] for member in members[lane])
        done = sum(member.state is _S.COMMITTED for member in members[lane])
        at_work = [member for member in members[lane] if member.state in ACTIVE]
        waits = _waits(state, at_work, since_ms, now_ms)
        yield (
            f"lane {lane:<{width}}  {state.lanes[lane]:<8} {signs:<8}  "
            f"{done} of {len(members[lane])}  {waits}"
        )
    left_out = [lane for lane in members if lane not in shown]
    if left_out:
        done = sum(all(m.state is _S.COMMITTED for m in members[lane]) for lane in left_out)
        yield f"and {len(left_out)} more lanes, {done} of them committed: --json names all"


def _calm(lane_state: LaneState, members: list[Member]) -> int:
    """Return how little a lane is to be looked at: 0 is at work, 1 waits for a person."""
    if any(member.state in ACTIVE for member in members):
        return 0
    held = any(member.state is _S.HELD for member in members)
    return 1 if held or lane_state not in {LaneState.OPEN, LaneState.SKIPPED} else 2


def _waits(
    state: RolloutState, members: list[Member], since_ms: Mapping[str, int], now_ms: int
) -> str:
    """Return whom a lane waits for: the member with the least time left, and how many more."""
    if not members:
        return ""
    member = min(members, key=lambda member: _left_ms(state, member, since_ms, now_ms))
    limit_s = _limit_ms(state, member) // 1000
    since = since_ms.get(member.name)
    passed = "?" if since is None else max(now_ms - since, 0) // 1000
    text = f"{member.name} {member.state} {passed}/{limit_s} s"
    timer = _DEAD_MAN.get(member.state)
    if timer is not None and since is not None:
        left_s = _left_ms(state, member, since_ms, now_ms) // 1000
        text += f", {timer} in {left_s} s" if left_s >= 0 else f", {timer} over"
    return text if len(members) == 1 else f"{text}, and {len(members) - 1} more"


def _left_ms(state: RolloutState, member: Member, since_ms: Mapping[str, int], now_ms: int) -> int:
    return _limit_ms(state, member) - max(now_ms - since_ms.get(member.name, now_ms), 0)


def _held(state: RolloutState, reasons: Mapping[str, str], rows_max: int) -> Iterator[str]:
    held = [
        member
        for member in state.members.values()
        if member.state in {_S.HELD, _S.UNKNOWN}
        or (member.state is _S.SKIPPED and member.reason not in _DECIDED)
    ]
    if not held:
        return
    held.sort(key=lambda member: (member.state is _S.SKIPPED, member.serving))
    yield ""
    for member in held[:rows_max]:
        serving = "serves" if member.serving else "does not serve"
        if member.state is _S.UNKNOWN:
            serving = "served when last heard" if member.serving else "did not serve before"
        why = evidence_of(member, reasons) or "no answer"
        yield f"{member.name}: {member.state}, {serving}: {why}"
        yield f"  next: {_next(state, member)}"
    yield from _rest(held, rows_max)


def _next(state: RolloutState, member: Member) -> str:
    lane_state = state.lanes[member.lane]
    if member.state is _S.UNKNOWN:
        return f"it is asked again; if its host is lost, capsule node assume-down {member.name}"
    if state.epoch is EpochState.HALTED:
        return "look at the canary, then capsule rollout resume or abort"
    if lane_state is LaneState.HELD and state.epoch is not EpochState.ENDED:
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
    if state.tenure is Tenure.PARKED and state.epoch is not EpochState.ENDED:
        yield "parked: it waits for capsule lane resume|skip, or capsule rollout resume|abort|adopt"
    out = [m.name for m in state.members.values() if m.hold is not HoldState.FREE]
    if out:
        yield f"permits out: {', '.join(out[:ROWS_MAX])}"


def _budgets(state: RolloutState, since_ms: Mapping[str, int], now_ms: int) -> Iterator[str]:
    """Yield what a fresh heartbeat has to outlive, and who has the least time left."""
    budget = state.plan.budget
    fresh = Liveness(node="", heartbeat_age_ms=0, credential_ms=None)
    yield f"budget: {judge_node(budget, fresh).text}"
    left = sorted(
        (_left_ms(state, member, since_ms, now_ms), member.name)
        for member in state.members.values()
        if member.state in _DEAD_MAN and member.name in since_ms
    )
    if left:
        tightest = ", ".join(f"{name} {ms // 1000} s" for ms, name in left[:_TIGHTEST_MAX])
        yield f"tightest: {tightest} until its dead-man acts"


def _rest(rows: list[Member], shown: int) -> Iterator[str]:
    if len(rows) > shown:
        yield f"  and {len(rows) - shown} more: --json names all"
