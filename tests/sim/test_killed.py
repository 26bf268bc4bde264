"""A controller that is killed anywhere changes nothing about how its epoch ends."""

from dataclasses import replace

import pytest

from capsule.lane.budget import Budget
from capsule.lane.epoch import EpochState
from capsule.lane.plan import PlannedNode, RolloutPlan
from sim.fleet import Simulation

NODES = 6
CALLS_MAX = 400
TROUBLES = {
    "none": {},
    "refuses": {"refuses": "space-short: no free byte"},
    "never_proves": {"never_proves": True},
    "restore_fails": {"never_proves": True, "restore_fails": True},
}


class SixNodes(Simulation):
    """Six nodes; the last may be in trouble, alone in its lane so that it decides for itself only.

    `kills` counts down, for each controller in turn, to the port call after which it is gone.
    """

    def __init__(self, trouble, kills):
        super().__init__(0, NODES, "calm")
        self.kills = list(kills)
        self.calls = 0
        bad = self.hosts["n5"]
        bad.nature = replace(bad.nature, **TROUBLES[trouble])

    def _plan(self, nodes):
        return RolloutPlan(
            epoch="six",
            capsule="c",
            route="r",
            preflight="p",
            nodes=tuple(
                PlannedNode(name=f"n{i}", lane="bad" if i == 5 else "good", domain="d", serving=True)
                for i in range(nodes)
            ),
            bystanders=0,
            max_unavailable=2,
            floor=4,
            domain_cap=None,
            max_failed_lanes=None,
            allow_outage=False,
            budget=Budget(),
        )

    def _new_controller(self):
        controller = super()._new_controller()
        controller.kill_in = self.kills.pop(0) if self.kills else CALLS_MAX
        return controller

    def end(self):
        """Run, and return where every node ended, in the ledger and on its host."""
        first = self._new_controller()
        first.run(first.driver.start)
        while self.world.step():
            pass
        self.audit.finish()
        assert self.audit.violations == []
        self.calls = CALLS_MAX - self.controllers[-1].kill_in
        state = self.controllers[-1].driver.state
        assert state.epoch is EpochState.ENDED
        hosts = {name: host.serving for name, host in self.hosts.items()}
        return {name: member.state for name, member in state.members.items()}, hosts


@pytest.fixture(scope="module", params=TROUBLES)
def unkilled(request):
    """Return the trouble, how the epoch ends without a kill, and how many calls it takes."""
    simulation = SixNodes(request.param, ())
    return request.param, simulation.end(), simulation.calls


def test_an_epoch_of_six_takes_enough_calls_to_be_killed_in(unkilled):
    _, _, calls = unkilled
    assert 6 * 5 < calls < CALLS_MAX


def test_killed_after_any_commit_or_send_the_epoch_ends_as_if_it_was_not(unkilled):
    trouble, expected, calls = unkilled
    for kill in range(calls):
        simulation = SixNodes(trouble, [kill])
        assert simulation.end() == expected, f"killed after call {kill}"
        assert len(simulation.controllers) == 2


def test_killed_again_during_its_adoption_it_still_ends_the_same(unkilled):
    trouble, expected, calls = unkilled
    for first in range(0, calls, 3):
        for second in range(6):
            simulation = SixNodes(trouble, [first, second])
            assert simulation.end() == expected, f"killed after calls {first} and {second}"
