"""Every machine decides every pair of state and event, and refuses without changing anything."""

import pytest

from capsule.lane import epoch, hold, lane, node, node_table
from capsule.lane.machine import IllegalTransition, advance
from capsule.lane.node import NodeState

MACHINES = {
    "node": (NodeState, node.EVENTS, node_table.TABLE, node_table.REJECTED),
    "hold": (hold.HoldState, hold.EVENTS, hold.TABLE, hold.REJECTED),
    "lane": (lane.LaneState, lane.EVENTS, lane.TABLE, lane.REJECTED),
    "epoch": (epoch.EpochState, epoch.EVENTS, epoch.TABLE, epoch.REJECTED),
    "tenure": (epoch.Tenure, epoch.TENURE_EVENTS, epoch.TENURE_TABLE, epoch.TENURE_REJECTED),
}


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_every_pair_is_in_the_table_or_rejected_and_never_both(machine):
    states, events, table, rejected = machine
    every = {(state, event) for state in states for event in events}
    assert set(table) | rejected == every
    assert not set(table) & rejected


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_a_rejected_event_is_an_illegal_transition(machine):
    _, _, table, rejected = machine
    for state, event in rejected:
        with pytest.raises(IllegalTransition):
            advance(table, state, object.__new__(event))


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_every_event_of_the_module_is_listed(machine):
    _, events, table, _ = machine
    assert {event for _, event in table} == set(events)


def reachable(table, start):
    found = {start}
    while True:
        more = {after for (before, _), after in table.items() if before in found} - found
        if not more:
            return found
        found |= more


def test_every_state_of_a_node_can_be_reached():
    assert reachable(node_table.TABLE, NodeState.UNTOUCHED) == set(NodeState)


@pytest.mark.parametrize("state", sorted(set(NodeState) - node.TERMINAL))
def test_every_state_that_is_not_terminal_has_a_way_to_an_end(state):
    assert reachable(node_table.TABLE, state) & node.TERMINAL


@pytest.mark.parametrize("state", sorted(node.TERMINAL))
def test_a_terminal_state_is_never_left(state):
    assert reachable(node_table.TABLE, state) == {state}


def test_only_the_hosts_outcome_commits():
    ways = {event for (_, event), after in node_table.TABLE.items() if after is NodeState.COMMITTED}
    assert ways == {node.CommitSeen}


def test_unknown_is_left_only_by_what_the_host_says_or_an_operator_decides():
    ways = {event for state, event in node_table.TABLE if state is NodeState.UNKNOWN}
    heard = {
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
    }
    assert ways == heard | {node.AssumedDown}


def test_nothing_is_ordered_from_a_state_that_was_not_drained():
    ways = {state for state, event in node_table.TABLE if event is node.StopIntended}
    assert ways == {NodeState.DRAINING}


def test_an_abort_is_never_taken_back():
    assert reachable(epoch.TABLE, epoch.EpochState.ABORTING) == {
        epoch.EpochState.ABORTING,
        epoch.EpochState.ENDED,
    }
