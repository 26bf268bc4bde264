"""The incident, with the old transaction and with lanes: the same fleet, the same three faults."""

from typing import Any

from capsule.lane.budget import Budget
from capsule.lane.node import NodeState
from capsule.lane.plan import PlannedNode, RolloutPlan
from sim.bench import Bench
from sim.controller import Controller
from sim.host import Nature
from sim.old import OldFleet, run_old

__all__ = ["FLEET", "replay"]

FLEET = OldFleet(
    nodes=50,
    drifted=45,
    frozen=20,
    timing_out=30,
    ttl_s=3_600,
    stop_s=60,
    recover_s=120,
    ssh_timeout_s=600,
)
WATCHED_S = 4 * 3_600
_TIMING_OUT_MS = 600_000
_LANE = 5


def replay() -> dict[str, Any]:
    """Return the numbers of both, side by side."""
    ours = _run_lanes(FLEET)
    old = run_old(FLEET, watched_s=WATCHED_S)
    return {
        "nodes": FLEET.nodes,
        "faults": "one drifted, one frozen, one SSH time-out; TTL one hour",
        "old": {
            "updated": old.updated,
            "most_down_at_once": old.most_down_at_once,
            "longest_outage_s": old.longest_outage_s,
            "down_at_end": len(old.down_at_end),
            "identities_lost": len(old.identities_lost),
            "ended_at_s": old.ended_at_s,
            "ended_by": old.ended_by,
        },
        "lanes": ours.pop("summary"),
        **ours,
    }


def _run_lanes(fleet: OldFleet) -> dict[str, Any]:
    names = [f"n{number:02d}" for number in range(fleet.nodes)]
    plan = RolloutPlan(
        epoch="incident",
        capsule="c",
        route="r",
        preflight="p",
        nodes=tuple(
            PlannedNode(name=name, lane=f"l{n // _LANE}", domain=f"d{n % 5}", serving=True)
            for n, name in enumerate(names)
        ),
        bystanders=0,
        max_unavailable=8,
        floor=40,
        domain_cap=None,
        max_failed_lanes=None,
        allow_outage=False,
        budget=Budget(ttl_ms=1_000 * fleet.ttl_s),
    )
    bench = Bench(
        plan, {names[fleet.drifted]: Nature(refuses="order-prior-mismatch: the node has drifted")}
    )
    bench.network.dead[names[fleet.frozen]] = 10**15
    bench.network.dead[names[fleet.timing_out]] = _TIMING_OUT_MS
    most_down = 0

    def over(_: Controller) -> None:
        """Nobody does anything: what the operator could do comes after the numbers."""

    controller = bench.controller(over)
    controller.run(controller.driver.start)
    ended_at = 0
    while bench.world.step():
        down = sum(not host.serving for host in bench.hosts.values())
        most_down = max(most_down, down)
        ended_at = bench.world.now if controller.is_alive else ended_at
    bench.audit.finish()
    state = controller.driver.state
    states = [member.state for member in state.members.values()]
    return {
        "summary": {
            "updated": state.tally.committed,
            "most_down_at_once": most_down,
            "longest_outage_s": round(bench.audit.window_ms_max / 1000),
            "down_at_end": sum(not host.serving for host in bench.hosts.values()),
            "identities_lost": fleet.nodes - len(bench.hub.identities),
            "ended_at_s": round(ended_at / 1000),
            "ended_by": str(bench.audit.ends[-1].reason),
            "held": states.count(NodeState.HELD),
            "unknown": states.count(NodeState.UNKNOWN),
            "waiting_for_operator": states.count(NodeState.STAGED),
        },
        "violations": len(bench.audit.violations),
        "first_violations": bench.audit.violations[:5],
    }
