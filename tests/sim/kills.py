"""Kill the controller after every commit and every send of one small epoch, and adopt it.

The run without a kill counts the calls; each other run dies at one of them. What the fleet has come
to in the end must not depend on where.
"""

from capsule.lane.budget import Budget
from capsule.lane.epoch import EpochState
from capsule.lane.plan import PlannedNode, RolloutPlan
from sim.bench import Bench
from sim.controller import Controller
from sim.host import Nature

__all__ = ["SIX_NODES", "Outcome", "run_with_kill"]

SIX_NODES = RolloutPlan(
    epoch="six",
    capsule="c",
    route="r",
    preflight="p",
    nodes=tuple(
        PlannedNode(name=f"n{n}", lane=f"l{n // 2}", domain=f"d{n % 3}", serving=True)
        for n in range(6)
    ),
    bystanders=0,
    max_unavailable=2,
    floor=3,
    domain_cap=None,
    max_failed_lanes=None,
    allow_outage=False,
    budget=Budget(),
)
_NEVER = 10**9

Outcome = tuple[tuple[str, str], ...]


def run_with_kill(
    plan: RolloutPlan, natures: dict[str, Nature], kill_at: int | None
) -> tuple[Outcome, int, tuple[str, ...]]:
    """Return how every node ended, how many calls the first controller made, and violations.

    The adopter comes before the lease has run out, and is not killed.
    """
    bench = Bench(plan, natures)

    def over(controller: Controller) -> None:
        if controller.was_killed:
            adopter = bench.controller(over)
            bench.world.after(5_000, lambda: adopter.run(adopter.driver.adopt, takeover=True))

    first = bench.controller(over, kill_in=_NEVER if kill_at is None else kill_at)
    first.run(first.driver.start)
    bench.run()
    state = bench.controllers[-1].driver.state
    if state.epoch is not EpochState.ENDED and not state.failed_lanes:
        bench.audit.fail(f"the epoch is {state.epoch}")
    outcome = tuple((member.name, str(member.state)) for member in state.members.values())
    return outcome, _NEVER - (first.kill_in or 0), tuple(bench.audit.violations)
