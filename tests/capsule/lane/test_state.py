"""The counts that are kept beside the nodes are those that a recount gives."""

import pytest

from capsule.lane.decide import decide
from capsule.lane.epoch import EpochState
from capsule.lane.state import initial_state, recount
from sim.fleet import Simulation


def history(seed):
    """Return a random epoch's plan and its events."""
    simulation = Simulation(seed, 14)
    simulation.run()
    return simulation.plan, [r.event for r in simulation.ledger.read(simulation.plan.epoch)]


@pytest.mark.parametrize("seed", range(12))
def test_after_every_event_the_counts_are_those_of_a_recount(seed):
    plan, events = history(seed)
    state = initial_state(plan)
    assert len(events) > len(plan.nodes)
    for event in events:
        state, _ = decide(state, event)
        assert state.tally == recount(state.members)
        staged = [m.name for m in state.members.values() if m.state == "staged"]
        assert list(state.queue) == staged


@pytest.mark.parametrize("seed", range(12))
def test_a_prefix_of_the_stream_gives_the_same_state_again(seed):
    plan, events = history(seed)
    once, twice = initial_state(plan), initial_state(plan)
    for event in events:
        once, _ = decide(once, event)
    for event in events:
        twice, effects = decide(twice, event)
        assert twice.epoch is not EpochState.ENDED or effects == ()
    assert once == twice
