"""A fleet that is laid out by hand, without dice: for scripted runs."""

from typing import Any

from capsule.lane.driver import Patience
from capsule.lane.plan import RolloutPlan
from sim.audit import Auditor
from sim.controller import AuditedLedger, Controller
from sim.host import Host, Nature
from sim.hub import Hub
from sim.world import Network, World

__all__ = ["Bench"]


class Bench:
    """World, hosts, hub and ledger of one plan; controllers are made one after the other."""

    def __init__(self, plan: RolloutPlan, natures: dict[str, Nature], *, seed: int = 1) -> None:
        self.plan = plan
        self.world = World(seed)
        self.hosts: dict[str, Host] = {}
        self.hub = Hub(
            self.world,
            [node.name for node in plan.nodes],
            busy_ms_max=0,
            is_serving=lambda name: self.hosts[name].serving,
        )
        self.network = Network(
            world=self.world, faults_until_ms=0, drop=0, double=0, delay_ms_max=1, dead={}
        )
        self.ledger = AuditedLedger(self.world)
        self.audit = Auditor(plan, self.hosts, self.hub, 0)
        self.ledger.audit = self.audit
        for node in plan.nodes:
            self.hosts[node.name] = Host(
                node.name,
                self.world,
                plan.budget,
                self.audit,
                natures.get(node.name, Nature()),
                node.serving,
            )
        self.controllers: list[Controller] = []

    def controller(self, on_over: Any, *, kill_in: int | None = None) -> Controller:
        """Return another controller, not yet started."""
        controller = Controller(
            f"c{len(self.controllers)}",
            plan=self.plan,
            ledger=self.ledger,
            hosts=self.hosts,
            hub=self.hub,
            network=self.network,
            audit=self.audit,
            on_over=on_over,
            patience=Patience(),
        )
        controller.kill_in = kill_in
        self.controllers.append(controller)
        return controller

    def run(self) -> None:
        """Run until nothing is left to happen, and check the end."""
        while self.world.step():
            pass
        self.audit.finish()
