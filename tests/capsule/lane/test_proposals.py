"""What is recorded about something heard, and what an epoch comes to."""

from dataclasses import replace

import pytest

from capsule.lane import proposals
from capsule.lane.budget import Budget, Liveness
from capsule.lane.decide import with_consequences
from capsule.lane.epoch import AbortDecided, Ended, Parked
from capsule.lane.events import HealthSeen
from capsule.lane.lane import LaneSkipped
from capsule.lane.node import (
    AssumedDown,
    CommitSeen,
    HoldDropped,
    HoldSeen,
    HoldTaken,
    OrderRefused,
    OrderVoid,
    ReplyLost,
    RestoreFailed,
    Skipped,
    StageSeen,
    StopIntended,
    StopSeen,
)
from capsule.lane.plan import PlannedNode, RolloutPlan
from capsule.lane.ports import HoldReport, HostReport, HostStep
from capsule.lane.state import initial_state
from capsule_manifest.errors import ExitCode

NAMES = ("a", "b", "c", "d")
PLAN = RolloutPlan(
    epoch="e1",
    capsule="c",
    route="r",
    preflight="p",
    nodes=tuple(
        PlannedNode(name=name, lane=f"l{i // 2}", domain=f"d{i % 2}", serving=True)
        for i, name in enumerate(NAMES)
    ),
    bystanders=0,
    max_unavailable=2,
    floor=2,
    domain_cap=1,
    max_failed_lanes=None,
    allow_outage=False,
    budget=Budget(),
)


def after(*events, plan=PLAN):
    staged = tuple(StageSeen(name) for name in NAMES)
    _, state, _ = with_consequences(initial_state(plan), (*staged, *events))
    return state


def taken(name, *, serving=True):
    return HoldTaken(name, serving, False)


def ordered(name):
    return (taken(name), HoldSeen(name), StopIntended(name, "op"))


def committed(*names):
    return tuple(event for name in names for event in (*ordered(name), CommitSeen(name)))


def host(step, **changes):
    values = {
        "node": "a",
        "op_id": "op",
        "step": step,
        "closed": False,
        "serving": True,
        "proof": "",
        "reason": "",
    }
    return HostReport(**(values | changes))


def hold(state, **changes):
    values = {
        "node": "a",
        "turn": 1,
        "held": True,
        "busy": 0,
        "serving": True,
        "heartbeat_age_ms": 0,
        "credential_ms": None,
    }
    report = HoldReport(**(values | changes))
    liveness = Liveness(
        node="a", heartbeat_age_ms=report.heartbeat_age_ms, credential_ms=report.credential_ms
    )
    return proposals.propose_from_hold(state, report, liveness, "op")


# --- hosts ----------------------------------------------------------------------------------------
def test_no_record_voids_an_order_only_if_it_can_not_be_accepted_any_more():
    state = after(*ordered("a"))
    assert proposals.propose_from_host(state, host(HostStep.NO_RECORD)) == ()
    voided = proposals.propose_from_host(state, host(HostStep.NO_RECORD, closed=True))
    assert voided == (OrderVoid("a"),)


@pytest.mark.parametrize("step", [HostStep.NO_RECORD, HostStep.REFUSED])
def test_a_host_that_acted_and_now_denies_it_is_believed_by_nobody(step):
    state = after(*ordered("a"), StopSeen("a"), ReplyLost("a"))
    assert proposals.propose_from_host(state, host(step, closed=True)) == ()


def test_a_refusal_carries_the_hosts_reason():
    state = after(*ordered("a"))
    report = host(HostStep.REFUSED, reason="space-short")
    assert proposals.propose_from_host(state, report) == (OrderRefused("a", "space-short"),)


def test_a_failed_restore_is_recorded_as_such():
    state = after(*ordered("a"), StopSeen("a"))
    report = host(HostStep.RESTORE_FAILED, serving=False)
    assert proposals.propose_from_host(state, report) == (RestoreFailed("a"),)


def test_a_report_that_is_behind_what_is_known_adds_nothing():
    state = after(*ordered("a"), StopSeen("a"))
    assert proposals.propose_from_host(state, host(HostStep.STOPPED)) == ()
    done = after(*committed("a"))
    assert proposals.propose_from_host(done, host(HostStep.PROVED)) == ()


# --- dispatcher -----------------------------------------------------------------------------------
def test_the_intent_needs_a_hold_in_force_and_an_idle_node():
    state = after(taken("a"))
    assert hold(state, held=False) == ()
    assert hold(state, busy=2) == (HoldSeen("a"),)
    assert hold(state) == (HoldSeen("a"), StopIntended("a", "op"))


def test_a_drained_node_passes_the_budget_gate_or_is_let_go_with_the_arithmetic():
    state = after(taken("a"), HoldSeen("a"))
    (skipped,) = hold(state, heartbeat_age_ms=1_700_000)
    assert isinstance(skipped, Skipped)
    assert skipped.reason.startswith("window-above-ttl: 1.15 x")
    (skipped,) = hold(state, credential_ms=60_000)
    assert skipped.reason.startswith("credential-ends-inside: 1.15 x")


@pytest.mark.parametrize("known", [True, False])
def test_a_node_that_was_taken_as_down_and_serves_again_is_weighed_anew(known):
    state = after(HealthSeen("a", serving=False), taken("a", serving=False))
    if known:
        _, state, _ = with_consequences(state, (HealthSeen("a", serving=True),))
    events = hold(state)
    news = () if known else (HealthSeen("a", serving=True),)
    again = HoldDropped("a", "serves again, is taken anew")
    assert events == (HoldSeen("a"), *news, again)


def test_a_late_hold_of_a_node_that_went_on_adds_nothing():
    assert hold(after(*ordered("a"))) == ()
    assert hold(after(taken("a")), turn=7) == ()


# --- admission ------------------------------------------------------------------------------------
def test_nodes_are_taken_in_the_order_of_the_plan_where_a_domain_has_room():
    state = after(*committed("a"))
    _, state, _ = with_consequences(state, proposals.propose_hold(state, frozenset()))
    # a is still out (d0), so c (d0) has to wait for it; b is in the other domain.
    assert state.members["b"].attempts == 1
    assert proposals.propose_hold(state, frozenset()) == ()


def test_a_serving_node_waits_at_the_floor_and_one_that_is_down_does_not():
    plan = replace(PLAN, floor=4, domain_cap=None)
    assert proposals.propose_hold(after(plan=plan), frozenset()) == ()
    down = after(HealthSeen("c", serving=False), plan=plan)
    (event,) = proposals.propose_hold(down, frozenset())
    assert (event.node, event.serving) == ("c", False)


def test_the_arithmetic_of_a_node_can_be_shown():
    state = after(plan=replace(PLAN, floor=4))
    permits = proposals.permits_for(state, state.members["a"])
    assert permits.count == 0
    assert "4 proved healthy - floor 4 = 0" in permits.text


# --- operators ------------------------------------------------------------------------------------
def test_a_second_abort_or_skip_says_nothing_new():
    aborted = after(AbortDecided(""))
    assert proposals.propose_abort(aborted, "again") == ()
    skipped = after(LaneSkipped("l0"))
    assert proposals.propose_lane_skip(skipped, "l0") == ()


def test_an_abort_lets_go_of_all_that_was_not_ordered():
    state = after(*ordered("a"), taken("b"))
    events = proposals.propose_abort(state, "operator")
    assert events == (AbortDecided("operator"), *(Skipped(name, "aborted") for name in "bcd"))


# --- the end --------------------------------------------------------------------------------------
def test_an_epoch_with_a_permit_out_does_not_end():
    state = after(*committed(*NAMES))
    assert state.tally.terminal == 4
    assert proposals.propose_end(state) == ()


@pytest.mark.parametrize(
    ("events", "code"),
    [
        ((), ExitCode.NODES_HELD),
        ((Skipped("a", ""),), ExitCode.NODES_HELD),
        ((*ordered("a"), ReplyLost("a")), ExitCode.NOT_SERVING),
        ((*ordered("a"), RestoreFailed("a")), ExitCode.NOT_SERVING),
        ((*ordered("a"), ReplyLost("a"), AssumedDown("a")), ExitCode.NOT_SERVING),
        (committed(*NAMES), ExitCode.DONE),
    ],
)
def test_a_node_that_does_not_serve_counts_before_one_that_is_held(events, code):
    assert proposals.result_of(after(*events)) is code


def test_an_epoch_that_has_ended_neither_ends_again_nor_parks():
    everyone = tuple(Skipped(name, "") for name in NAMES)
    ended = after(*everyone, Ended("", 5))
    assert proposals.propose_end(ended) == ()
    assert proposals.propose_park(ended, "") == ()
    assert proposals.propose_end(after(*everyone)) == (Ended("every node is terminal", 5),)


def test_an_epoch_in_which_something_moves_does_not_park():
    assert proposals.propose_park(after(taken("a")), "") == ()
    assert proposals.propose_park(after(), "why") == (Parked("why", 5),)
