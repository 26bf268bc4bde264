"""Every machine decides every pair of state and event, and keeps what its head promises."""

import pytest

from capsule.lane import epoch, hold, lane, node, node_table
from capsule.lane.epoch import EpochState, Tenure
from capsule.lane.hold import HoldState
from capsule.lane.lane import LaneState
from capsule.lane.machine import IllegalTransition, advance
from capsule.lane.node import NodeState

MACHINES = {
    "node": (NodeState, node.EVENTS, node_table.TABLE, node_table.REJECTED),
    "hold": (HoldState, hold.EVENTS, hold.TABLE, hold.REJECTED),
    "lane": (LaneState, lane.EVENTS, lane.TABLE, lane.REJECTED),
    "epoch": (EpochState, epoch.EVENTS, epoch.TABLE, epoch.REJECTED),
    "tenure": (Tenure, epoch.TENURE_EVENTS, epoch.TENURE_TABLE, epoch.TENURE_REJECTED),
}
FIRST = {
    "node": NodeState.UNTOUCHED,
    "hold": HoldState.FREE,
    "lane": LaneState.OPEN,
    "epoch": EpochState.RUNNING,
    "tenure": Tenure.ATTENDED,
}
VALUES = {"node": "n1", "lane": "l1", "reason": "", "op_id": "o", "proof": "p", "holder": "c"}


def made(event_type):
    """Return an event of this type; what it carries decides no transition."""
    fields = event_type.__dataclass_fields__
    return event_type(*(VALUES.get(name, 0) for name in fields))


def reachable(table, start):
    """Return the states that are reached from `start` by any events."""
    seen, waiting = {start}, [start]
    while waiting:
        state = waiting.pop()
        for (before, _), after in table.items():
            if before is state and after not in seen:
                seen.add(after)
                waiting.append(after)
    return seen


@pytest.mark.parametrize("name", MACHINES)
def test_every_pair_is_in_the_table_or_decided_against(name):
    states, events, table, rejected = MACHINES[name]
    pairs = {(state, event) for state in states for event in events}
    assert set(table) | set(rejected) == pairs
    assert set(table) & set(rejected) == set()


@pytest.mark.parametrize("name", MACHINES)
def test_a_rejected_pair_is_refused(name):
    _, _, table, rejected = MACHINES[name]
    for state, event_type in rejected:
        with pytest.raises(IllegalTransition, match=event_type.__name__):
            advance(table, state, made(event_type))


@pytest.mark.parametrize("name", MACHINES)
def test_a_pair_of_the_table_leads_where_it_says(name):
    _, _, table, _ = MACHINES[name]
    assert table
    for (state, event_type), following in table.items():
        assert advance(table, state, made(event_type)) is following


@pytest.mark.parametrize("name", MACHINES)
def test_every_state_can_be_reached(name):
    states, _, table, _ = MACHINES[name]
    assert reachable(table, FIRST[name]) == set(states)


def test_every_node_can_end_from_wherever_it_is():
    for state in NodeState:
        assert reachable(node_table.TABLE, state) & node.TERMINAL


def test_nothing_leaves_a_terminal_state():
    assert [pair for pair in node_table.TABLE if pair[0] in node.TERMINAL] == []
    assert [pair for pair in epoch.TABLE if pair[0] is EpochState.ENDED] == []


def test_unknown_is_left_by_what_the_host_says_or_by_an_operator_only():
    exits = {event for state, event in node_table.TABLE if state is NodeState.UNKNOWN}
    assert exits == {
        node.OrderVoid,
        node.OrderRefused,
        node.StopSeen,
        node.SwitchSeen,
        node.StartSeen,
        node.ProofSeen,
        node.CommitSeen,
        node.RestoreBegun,
        node.RestoreSeen,
        node.RestoreFailed,
        node.AssumedDown,
    }


def test_only_the_hosts_outcome_commits_a_node():
    ways = {event for (_, event), to in node_table.TABLE.items() if to is NodeState.COMMITTED}
    assert ways == {node.CommitSeen}


def test_an_ordered_node_is_never_skipped():
    ways = {state for (state, _), to in node_table.TABLE.items() if to is NodeState.SKIPPED}
    assert ways & node.ORDERED == set()


def test_no_node_is_ordered_without_a_recorded_intent():
    ways = {
        (state, event)
        for (state, event), to in node_table.TABLE.items()
        if to in node.ORDERED and state not in node.ORDERED
    }
    assert ways == {(NodeState.DRAINING, node.StopIntended)}


def test_abort_is_never_taken_back():
    assert reachable(epoch.TABLE, EpochState.ABORTING) == {EpochState.ABORTING, EpochState.ENDED}


def test_a_skipped_lane_never_opens_again():
    assert reachable(lane.TABLE, LaneState.SKIPPED) == {LaneState.SKIPPED}


def test_a_held_lane_opens_by_an_operator_only():
    ways = {
        event
        for (state, event), to in lane.TABLE.items()
        if state is LaneState.HELD and to is LaneState.OPEN
    }
    assert ways == {lane.LaneResumed}


def test_each_machine_has_its_own_function_for_its_own_events():
    assert node_table.advance_node(NodeState.UNTOUCHED, node.StageSeen("n1")) is NodeState.STAGED
    assert hold.advance_hold(HoldState.FREE, hold.Taken()) is HoldState.TAKEN
    assert lane.advance_lane(LaneState.OPEN, lane.MemberHeld("l1")) is LaneState.HELD
    assert epoch.advance_epoch(EpochState.RUNNING, epoch.Paused("")) is EpochState.PAUSED
    assert epoch.advance_tenure(Tenure.PARKED, epoch.Adopted(2, "c")) is Tenure.ATTENDED


def test_nothing_is_ordered_from_a_state_that_was_not_drained():
    ways = {state for state, event in node_table.TABLE if event is node.StopIntended}
    assert ways == {NodeState.DRAINING}
