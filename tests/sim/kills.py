"""Kill the controller after every commit and every send of one small epoch, and adopt it.

The run without a kill counts the calls; each other run dies at one of them. What the fleet has come
to in the end must not depend on where.
"""

from typing import Any

from capsule.lane.budget import Budget
from capsule.lane.driver import Patience
from capsule.lane.epoch import EpochState
from capsule.lane.plan import PlannedNode, RolloutPlan
from sim.audit import Auditor
from sim.controller import AuditedLedger, Controller
from sim.host import Host, Nature
from sim.hub import Hub
from sim.world import Network, World

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

Outcome = tuple[tuple[str, str], ...]


def run_with_kill(
    plan: RolloutPlan, natures: dict[str, Nature], kill_at: int | None
) -> tuple[Outcome, int, tuple[str, ...]]:
    """Return how every node ended, how many calls the first controller made, and violations.

    The adopter comes before the lease has run out, and is not killed.
    """
    world = World(1)
    hub_serving: Any = lambda name: hosts[name].serving  # noqa: E731
    hub = Hub(world, [n.name for n in plan.nodes], busy_ms_max=0, is_serving=hub_serving)
    network = Network(
        world=world, faults_until_ms=0, drop=0, double=0, delay_ms_max=1, dead={}
    )
    ledger = AuditedLedger(world)
    hosts: dict[str, Host] = {}
    audit = Auditor(plan, hosts, hub, 0)
    ledger.audit = audit
    for node in plan.nodes:
        nature = natures.get(node.name, Nature())
        hosts[node.name] = Host(node.name, world, plan.budget, audit, nature, node.serving)
    controllers: list[Controller] = []

    def begin(kill_in: int | None) -> Controller:
        controller = Controller(
            f"c{len(controllers)}",
            plan=plan,
            ledger=ledger,
            hosts=hosts,
            hub=hub,
            network=network,
            audit=audit,
            on_over=over,
            patience=Patience(),
        )
        controller.kill_in = kill_in
        controllers.append(controller)
        return controller

    def over(controller: Controller) -> None:
        if controller.was_killed and controller is controllers[-1]:
            adopter = begin(None)
            world.after(5_000, lambda: adopter.run(adopter.driver.adopt, takeover=True))

    first = begin(10**9 if kill_at is None else kill_at)
    first.run(first.driver.start)
    while world.step():
        pass
    audit.finish()
    state = controllers[-1].driver.state
    if state.epoch is not EpochState.ENDED and not state.failed_lanes:
        audit.fail(f"the epoch is {state.epoch}")
    outcome = tuple((m.name, str(m.state)) for m in state.members.values())
    calls = 10**9 - (first.kill_in or 0)
    return outcome, calls, tuple(audit.violations)
