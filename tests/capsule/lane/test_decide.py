"""The fold under any history: counts, queue, permits and lanes say what the nodes say."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule.lane import proposals
from capsule.lane.budget import Budget, Liveness
from capsule.lane.decide import ATTEMPTS_MAX, decide, with_consequences
from capsule.lane.epoch import AbortDecided, EpochState, Halted, Paused, Tenure
from capsule.lane.events import HealthSeen, HoldReturned, Started
from capsule.lane.hold import HoldState
from capsule.lane.lane import LaneSkipped, LaneState
from capsule.lane.machine import IllegalTransition
from capsule.lane.node import (
    ORDERED,
    CommitSeen,
    DrainExpired,
    HoldDropped,
    HoldSeen,
    HoldTaken,
    NodeState,
    OrderRefused,
    OrderVoid,
    ReplyLost,
    RestoreFailed,
    RestoreSeen,
    Skipped,
    StageSeen,
    StopIntended,
)
from capsule.lane.plan import PlannedNode, RolloutPlan
from capsule.lane.ports import HoldReport, HostReport, HostStep, Rows
from capsule.lane.rows import rows_of
from capsule.lane.state import initial_state, recount

NAMES = ("a", "b", "c", "d", "e", "f")
PLAN = RolloutPlan(
    epoch="e1",
    capsule="c",
    route="r",
    preflight="p",
    nodes=tuple(
        PlannedNode(name=name, lane=f"l{i // 2}", domain=f"d{i % 2}", serving=i != 5)
        for i, name in enumerate(NAMES)
    ),
    bystanders=0,
    max_unavailable=3,
    floor=2,
    domain_cap=2,
    max_failed_lanes=1,
    allow_outage=False,
    budget=Budget(),
)
STAGED = tuple(StageSeen(name) for name in NAMES)


def after(*events, plan=PLAN):
    """Return the state of a staged epoch after `events` and what they cause."""
    _, state, _ = with_consequences(initial_state(plan), (*STAGED, *events))
    return state


def ordered(name, *, canary=False, serving=True):
    """Return the events that lead a node to its order."""
    return (HoldTaken(name, serving, canary), HoldSeen(name), StopIntended(name, "op"))


# --- any history ----------------------------------------------------------------------------------
# Reports and permits twice, so that a history of any length gets somewhere.
USUAL = (*HostStep, "hold", "admit")
RARE = ("busy", "unheld", "lost", "drained", "drop", "health")
DECIDED = ("lane-resume", "lane-skip", "pause", "resume", "abort", "adopt", "assume-down")
CHOICES = st.tuples(
    st.sampled_from(NAMES), st.sampled_from((*USUAL, *USUAL, *RARE, *DECIDED)), st.booleans()
)
OPERATOR = {
    "lane-resume": lambda state, name: proposals.propose_lane_resume(
        state, state.members[name].lane
    ),
    "lane-skip": lambda state, name: proposals.propose_lane_skip(state, state.members[name].lane),
    "pause": lambda state, _: proposals.propose_pause(state, ""),
    "resume": lambda state, _: proposals.propose_resume(state, ""),
    "abort": lambda state, _: proposals.propose_abort(state, ""),
    "adopt": lambda state, _: proposals.propose_adoption(
        state, fence=state.fence + 1, holder="ben"
    ),
    "assume-down": proposals.propose_assume_down,
}


def proposed(state, name, what, flag):
    """Return the events that a driver would record on hearing of `what`."""
    member = state.members[name]
    if isinstance(what, HostStep):
        report = HostReport(
            node=name,
            op_id=member.op_id,
            step=what,
            closed=flag,
            serving=flag,
            proof="proof",
            reason="reason",
        )
        return proposals.propose_from_host(state, report) if member.op_id else ()
    if what in {"hold", "busy", "unheld"}:
        report = HoldReport(
            node=name,
            turn=member.attempts,
            held=what != "unheld",
            busy=int(what == "busy"),
            serving=flag,
            heartbeat_age_ms=0,
            credential_ms=None,
        )
        liveness = Liveness(node=name, heartbeat_age_ms=0, credential_ms=None)
        return proposals.propose_from_hold(state, report, liveness, f"{name}{member.attempts}")
    if what == "admit":
        return proposals.propose_hold(state, frozenset({name}) if flag else frozenset())
    if what in OPERATOR:
        return OPERATOR[what](state, name)
    timed = {
        "lost": (ReplyLost(name), member.state in ORDERED - {NodeState.UNKNOWN}),
        "drained": (DrainExpired(name), member.state is NodeState.DRAINING),
        "drop": (HoldDropped(name, ""), member.state is NodeState.HOLDING),
        "health": (HealthSeen(name, flag), member.state not in ORDERED),
    }
    event, applies = timed[what]
    return (event,) if applies else ()


@given(st.lists(CHOICES, max_size=120))
def test_any_history_keeps_counts_queue_and_permits_true(history):
    state = after()
    for name, what, flag in history:
        before = state
        events, state, _ = with_consequences(state, proposed(state, name, what, flag))
        rows_of(before, events, state)
        members = state.members
        assert state.tally == recount(members)
        staged = [name for name in NAMES if members[name].state is NodeState.STAGED]
        assert list(state.queue) == staged
        assert state.tally.outstanding <= PLAN.max_unavailable
        assert state.failed_lanes == list(state.lanes.values()).count(LaneState.HELD)
        for member in members.values():
            if member.state in ORDERED:
                assert member.hold is HoldState.TAKEN
            if member.state is NodeState.HELD:
                assert member.hold is HoldState.FREE
            assert member.attempts <= ATTEMPTS_MAX


@given(st.lists(CHOICES, max_size=60))
def test_the_state_is_the_fold_of_its_events(history):
    state, recorded = after(), list(STAGED)
    for name, what, flag in history:
        events, state, _ = with_consequences(state, proposed(state, name, what, flag))
        recorded += events
    again = initial_state(PLAN)
    for event in recorded:
        again, _ = decide(again, event)
    assert again == state


@given(st.lists(CHOICES, max_size=120))
def test_what_was_committed_or_skipped_is_never_touched_again(history):
    state = after()
    for name, what, flag in history:
        before = state
        _, state, _ = with_consequences(state, proposed(state, name, what, flag))
        for member in before.members.values():
            if member.state in {NodeState.COMMITTED, NodeState.SKIPPED, NodeState.HELD}:
                assert state.members[member.name].state is member.state


@given(st.lists(CHOICES, max_size=120))
def test_no_permit_is_taken_in_a_lane_or_an_epoch_that_is_closed(history):
    state = after()
    for name, what, flag in history:
        events, following, _ = with_consequences(state, proposed(state, name, what, flag))
        for event in events:
            if isinstance(event, HoldTaken):
                assert state.epoch is EpochState.RUNNING
                assert state.lanes[state.members[event.node].lane] is LaneState.OPEN
        state = following


# --- what one event causes ------------------------------------------------------------------------
def test_an_illegal_event_changes_nothing():
    state = after()
    with pytest.raises(IllegalTransition):
        decide(state, CommitSeen("a"))
    assert state == after()


def test_the_first_event_sets_the_fence():
    state, effects = decide(initial_state(PLAN), Started("plan", 7))
    assert (state.fence, effects) == (7, ())


def test_a_restored_node_is_held_in_the_same_append():
    events, state, _ = with_consequences(after(*ordered("a")), (RestoreSeen("a", serving=True),))
    assert [type(event).__name__ for event in events] == ["RestoreSeen", "HeldForOperator"]
    assert state.members["a"].state is NodeState.HELD
    assert state.members["a"].hold is HoldState.FREE


def test_a_failed_canary_halts_the_epoch_in_the_same_append():
    events, state, _ = with_consequences(
        after(*ordered("a", canary=True)), (OrderRefused("a", "drifted"),)
    )
    assert events[-1] == Halted("the canary a failed: drifted")
    assert state.epoch is EpochState.HALTED


def test_a_failed_canary_halts_a_paused_epoch_too():
    state = after(*ordered("a", canary=True), Paused(""), RestoreFailed("a"))
    assert state.epoch is EpochState.HALTED
    assert not state.members["a"].serving


def test_a_failed_canary_does_not_undo_an_abort():
    state = after(*ordered("a", canary=True), AbortDecided(""), RestoreFailed("a"))
    assert state.epoch is EpochState.ABORTING


def test_more_failed_lanes_than_allowed_halt_the_epoch():
    one = after(*ordered("a"), *ordered("c"), RestoreFailed("a"))
    assert one.epoch is EpochState.RUNNING
    events, two, _ = with_consequences(one, (RestoreFailed("c"),))
    assert events[-1] == Halted("2 lanes failed, 1 allowed")
    assert two.epoch is EpochState.HALTED


def test_a_second_bad_node_of_a_failed_lane_fails_no_further_lane():
    plan = replace(PLAN, max_failed_lanes=0)
    failed = after(*ordered("a"), *ordered("b"), RestoreFailed("a"), plan=plan)
    assert failed.epoch is EpochState.HALTED
    assert failed.failed_lanes == 1
    again = after(*ordered("a"), *ordered("b"), RestoreFailed("a"), RestoreFailed("b"), plan=plan)
    assert again.failed_lanes == 1


def test_lanes_never_stop_one_another_unless_the_plan_says_so():
    plan = replace(PLAN, max_failed_lanes=None)
    state = after(
        *(event for name in "ace" for event in (*ordered(name), RestoreFailed(name))), plan=plan
    )
    assert state.epoch is EpochState.RUNNING
    assert state.failed_lanes == 3


def test_a_lane_waits_until_all_of_its_unknown_nodes_are_known():
    lost = after(*ordered("a"), *ordered("b"), ReplyLost("a"), ReplyLost("b"))
    assert lost.lanes["l0"] is LaneState.WAITING
    assert lost.lanes["l1"] is LaneState.OPEN
    half, _ = decide(lost, CommitSeen("a"))
    assert half.lanes["l0"] is LaneState.WAITING
    known, _ = decide(half, CommitSeen("b"))
    assert known.lanes["l0"] is LaneState.OPEN


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ((*ordered("a"), AbortDecided(""), OrderVoid("a")), "aborted"),
        ((*ordered("a"), LaneSkipped("l0"), OrderVoid("a")), "its lane was skipped"),
    ],
)
def test_a_node_whose_order_is_void_is_let_go_if_nobody_wants_it_any_more(events, reason):
    member = after(*events).members["a"]
    assert (member.state, member.reason) == (NodeState.SKIPPED, reason)
    assert member.hold is HoldState.RELEASING


def test_a_drain_that_expired_says_so():
    state = after(HoldTaken("a", serving=True, canary=False), HoldSeen("a"), DrainExpired("a"))
    assert "drain" in state.members["a"].reason
    assert state.epoch is EpochState.RUNNING


# --- rows -----------------------------------------------------------------------------------------
def rows_after(state, *events):
    events, following, _ = with_consequences(state, events)
    return rows_of(state, events, following)


def test_the_first_event_opens_every_node_of_the_plan():
    assert rows_after(initial_state(PLAN), Started("p", 1)) == Rows(opened=NAMES)


def test_a_hold_takes_its_permit_and_gives_it_back_when_it_is_acknowledged():
    assert rows_after(after(), HoldTaken("a", serving=True, canary=True)).taken == ("a",)
    committed = after(*ordered("a"), CommitSeen("a"))
    assert rows_after(after(*ordered("a")), CommitSeen("a")) == Rows()
    assert rows_after(committed, HoldReturned("a")) == Rows(returned=("a",))


def test_a_node_that_turns_held_keeps_its_hold_and_returns_its_permit():
    assert rows_after(after(*ordered("a")), RestoreSeen("a", serving=True)) == Rows(kept=("a",))
    assert rows_after(after(*ordered("a")), RestoreFailed("a")) == Rows(kept=("a",))


def test_the_end_closes_every_node():
    state = after(*(Skipped(name, "") for name in NAMES))
    (ended,) = proposals.propose_end(state)
    assert rows_after(state, ended) == Rows(closed=NAMES)
    assert state.tenure is Tenure.ATTENDED
