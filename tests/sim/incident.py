"""The incident, replayed: fifty nodes, one drifted, one frozen, one SSH time-out, a TTL of an hour.

Both algorithms get the same fleet and the same trouble. The frozen node is lost to both; what
differs is what becomes of the other forty-nine. `outage_s_max` of the old one counts the nodes that
nobody brought back until `WATCHED_MS`. The lab replays the same on real hosts, and walks the old
algorithm through the durations that it measured there (`run_old`).
"""

from collections.abc import Sequence
from dataclasses import replace

from capsule.lane.budget import Budget
from capsule.lane.node import NodeState
from capsule.lane.plan import PlannedNode, RolloutPlan
from capsule.lane.proposals import result_of
from sim.controller import Controller
from sim.fleet import Simulation
from sim.old_algorithm import Costs, OldFleet, Trouble, deploy

__all__ = ["NODES", "TROUBLE", "TTL_MS", "replay", "run_new", "run_old"]

NODES = 50
LANE = 8
TTL_MS = 3_600_000
NAMES = tuple(f"n{number:02d}" for number in range(NODES))
TROUBLE = Trouble(drifted="n21", frozen="n30", times_out="n37")
WATCHED_MS = 24 * 3_600_000
"""How long after the start nobody helps: a night and a day."""

Numbers = dict[str, int]


class _Incident(Simulation):
    """The simulator's fleet with the incident's trouble instead of random faults."""

    def __init__(self) -> None:
        super().__init__(0, NODES, "calm")
        nature = replace(
            self.hosts[TROUBLE.drifted].nature, refuses="order-prior-mismatch: the node has drifted"
        )
        self.hosts[TROUBLE.drifted].nature = nature
        # Frozen for good; the other one answers again after a while, as after an SSH time-out.
        self.network.dead[TROUBLE.frozen] = 10**15
        self.network.dead[TROUBLE.times_out] = 1_200_000

    def begin(self) -> Controller:
        """Start the only controller there will be."""
        controller = self._new_controller()
        controller.run(controller.driver.start)
        return controller

    def _plan(self, nodes: int) -> RolloutPlan:
        return RolloutPlan(
            epoch="incident",
            capsule="c",
            route="r",
            preflight="p",
            nodes=tuple(
                PlannedNode(name=name, lane=f"l{place // LANE}", domain="d", serving=True)
                for place, name in enumerate(NAMES[:nodes])
            ),
            bystanders=0,
            max_unavailable=5,
            floor=45,
            domain_cap=None,
            max_failed_lanes=None,
            allow_outage=False,
            budget=Budget(ttl_ms=TTL_MS),
        )


def run_old(
    names: Sequence[str] = NAMES,
    trouble: Trouble = TROUBLE,
    costs: Costs = Costs(),  # noqa: B008 - frozen
) -> Numbers:
    """Return what the old transaction makes of the incident, on `names`, at `costs` a node."""
    fleet = OldFleet(names=names, ttl_ms=TTL_MS)
    installed = deploy(fleet, trouble, costs)
    ended_ms = fleet.now_ms
    out_at_end = len(fleet.down_since_ms)
    fleet.wait(WATCHED_MS - fleet.now_ms)
    longest = max((fleet.now_ms - since for since in fleet.down_since_ms.values()), default=0)
    return {
        "installed": len(names) if installed else len(fleet.released),
        "not_serving_at_end": out_at_end,
        "out_at_once_max": fleet.out_at_once_max,
        "outage_s_max": max(fleet.outage_ms_max, longest) // 1000,
        "identities_lost": len(names) - len(fleet.rows),
        "length_s": ended_ms // 1000,
    }


def run_new() -> Numbers:
    """Return what a rollout makes of the incident, with nobody helping."""
    simulation = _Incident()
    controller = simulation.begin()
    serving_min, length_ms = NODES, 0
    while simulation.world.step():
        serving_min = min(serving_min, simulation.audit.serving)
        length_ms = length_ms or (simulation.is_finished and simulation.world.now)
    simulation.audit.finish()
    state = controller.driver.state
    bad_lanes = {state.members[name].lane for name in TROUBLE.names}
    others = [member for member in state.members.values() if member.lane not in bad_lanes]
    return {
        "installed": state.tally.committed,
        # The frozen node runs, as far as the simulator knows, but answers nobody.
        "not_serving_at_end": NODES - simulation.audit.serving + 1,
        "out_at_once_max": NODES - serving_min + 1,
        "outage_s_max": simulation.audit.window_ms_max // 1000,
        "identities_lost": NODES - len(simulation.hub.identities),
        "length_s": length_ms // 1000,
        "held": state.tally.held,
        "unknown": state.tally.unknown,
        "other_lanes_left": sum(m.state is not NodeState.COMMITTED for m in others),
        "exit_code": int(result_of(state)),
        "violations": len(simulation.audit.violations),
    }


def replay() -> dict[str, object]:
    """Return the two side by side."""
    old, new = run_old(), run_new()
    return {"old": old, "new": new, "violations": new["violations"]}
