"""One epoch of one random fleet under random faults, made from a seed."""

from dataclasses import dataclass, replace

from capsule.lane import proposals
from capsule.lane.budget import Budget, estimate_length_ms
from capsule.lane.driver import Decision, Patience
from capsule.lane.epoch import EpochState, Tenure
from capsule.lane.events import Event
from capsule.lane.lane import LaneState
from capsule.lane.node import NodeState
from capsule.lane.plan import PlannedNode, RolloutPlan, floor_of
from capsule.lane.state import RolloutState
from capsule_manifest.errors import Refused
from sim.audit import Auditor
from sim.controller import AuditedLedger, Controller
from sim.host import Host, Nature
from sim.hub import Hub
from sim.world import Network, World

__all__ = ["Result", "Simulation", "run_epoch"]

_FOREVER = 10**15
KINDS = (
    ("usual",) * 11
    + ("late", "late")
    + ("one_bad",) * 3
    + ("fresh", "down", "calm_fresh", "calm_down")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of one epoch."""

    seed: int
    kind: str
    events: int
    end: str
    committed: int
    window_ms_max: int
    window_bound_ms: int
    violations: tuple[str, ...]


class Simulation:
    """The world of one seed."""

    def __init__(self, seed: int, nodes: int, kind: str | None = None) -> None:
        self.seed = seed
        self.world = World(seed)
        self.dice = self.world.random
        self.kind = kind or self.dice.choice(KINDS)
        self.calm = self.kind in {"one_bad", "calm", "calm_fresh", "calm_down"}
        self.floor_percent = 0
        self.plan = self._plan(nodes)
        self.faults_until = 0 if self.calm else int(self.dice.uniform(300_000, 1_800_000))
        self.hub = Hub(
            self.world,
            [node.name for node in self.plan.nodes],
            busy_ms_max=60_000,
            is_serving=lambda name: self.hosts[name].serving,
        )
        self.network = Network(
            world=self.world,
            faults_until_ms=self.faults_until,
            drop=self.dice.choice((0.0, 0.02, 0.2)),
            double=self.dice.choice((0.0, 0.05, 0.3)),
            delay_ms_max=self.dice.choice((500, 10_000, 120_000))
            if self.kind != "late"
            else 300_000,
            dead={},
        )
        self.ledger = AuditedLedger(self.world)
        self.hosts: dict[str, Host] = {}
        self.audit = Auditor(self.plan, self.hosts, self.hub, self.floor_percent)
        self.ledger.audit = self.audit
        self._make_hosts()
        self.controllers: list[Controller] = []
        self.patience = Patience()
        self.operator_acts = 0 if self.calm else self.dice.randrange(4)
        self.is_finished = False

    # --- the fleet ------------------------------------------------------------------------------
    def _plan(self, nodes: int) -> RolloutPlan:
        dice = self.dice
        width = dice.randint(1, 8)
        domains = dice.choice((1, 3, 5))
        names = [f"n{number:04d}" for number in range(nodes)]
        serving = {
            name: not self.kind.endswith(("fresh", "down")) and (self.calm or dice.random() > 0.02)
            for name in names
        }
        healthy = sum(serving.values())
        max_unavailable = dice.randint(2 if self.calm else 1, max(2, nodes // 6))
        slack = dice.randint(0, 4) + (2 if self.calm else 0)
        floor = max(0, min(healthy - 1, healthy - max_unavailable - slack))
        if healthy == nodes and not self.calm and dice.random() < 0.4:
            # The share that allows one node less than all, or a little more.
            self.floor_percent = 100 * (nodes - 1 - dice.randint(0, 2)) // nodes
            floor = floor_of(self.floor_percent, nodes)
        if not healthy:
            floor = dice.randint(0, nodes)
        return RolloutPlan(
            epoch=f"e{self.seed}",
            capsule="c",
            route="r",
            preflight="p",
            nodes=tuple(
                PlannedNode(
                    name=name,
                    lane=f"l{place // width}",
                    domain=f"d{place % domains}",
                    serving=serving[name],
                )
                for place, name in enumerate(names)
            ),
            bystanders=0,
            max_unavailable=max_unavailable,
            floor=floor,
            domain_cap=None if self.calm else dice.choice((None, None, 2, max_unavailable)),
            max_failed_lanes=None if self.calm else dice.choice((None, None, None, 2)),
            allow_outage=True,
            budget=Budget(),
        )

    def _make_hosts(self) -> None:
        bad = self.dice.choice(self.plan.nodes).name if self.kind == "one_bad" else ""
        for node in self.plan.nodes:
            nature = Nature(
                pace=0.5 + 1.5 * self.dice.random(), skew=1 + 0.02 * (self.dice.random() - 0.5)
            )
            if node.name == bad or (not self.calm and self.dice.random() < 0.05):
                nature = self._spoil(node.name, nature)
            self.hosts[node.name] = Host(
                node.name, self.world, self.plan.budget, self.audit, nature, node.serving
            )
        self.bad = bad

    def _spoil(self, name: str, nature: Nature) -> Nature:
        match self.dice.randrange(7):
            case 0:
                return replace(nature, refuses="order-prior-mismatch: the node has drifted")
            case 1:
                return replace(nature, refuses="space-short: no free byte")
            case 2:
                return replace(nature, never_proves=True)
            case 3:
                return replace(nature, never_proves=True, restore_fails=True)
            case 4:
                return replace(nature, endless=True)
            case 5:
                self.network_dead_from(name, int(self.dice.uniform(0, 600_000)))
            case _:
                self.hub.stuck.add(name)
        return nature

    def network_dead_from(self, name: str, at_ms: int) -> None:
        self.world.at(at_ms, self.network.dead.__setitem__, name, _FOREVER)

    # --- faults ---------------------------------------------------------------------------------
    def _plan_faults(self) -> None:
        if self.calm:
            return
        dice, until = self.dice, self.faults_until

        def moment() -> int:
            return int(dice.uniform(0, until))

        for _ in range(dice.randrange(5)):
            self.world.at(moment(), self._reboot, dice.choice(self.plan.nodes).name)
        for _ in range(dice.randrange(4)):
            name = dice.choice(self.plan.nodes).name
            begin = moment()
            if self.network.dead.get(name, 0) < _FOREVER:
                self.world.at(begin, self._cut, name, min(until, begin + moment()))
        for _ in range(dice.randrange(3)):
            begin = moment()
            self.world.at(begin, self._hub_down, min(until, begin + int(dice.uniform(0, 300_000))))
        for _ in range(dice.randrange(12 if self.kind == "late" else 4)):
            self.world.at(moment(), self._kill, dice.randrange(4))
        for _ in range(dice.randrange(3)):
            self.world.at(moment(), self._pause, int(dice.uniform(1_000, 120_000)))
        for _ in range(dice.randrange(3)):
            self.world.at(moment(), self._operate)
        if self.kind == "abort":
            self.world.at(moment() // 2, self._abort)

    def _cut(self, name: str, until: int) -> None:
        if self.network.dead.get(name, 0) < until:
            self.network.dead[name] = until

    def _hub_down(self, until: int) -> None:
        self.hub.down_until = max(self.hub.down_until, until)

    def _reboot(self, name: str) -> None:
        self.hosts[name].reboot()
        for delay in (35_000, 90_000):
            self.world.after(delay, self._tell_health, name)

    def _tell_health(self, name: str) -> None:
        if self.hub.is_down:
            self.world.at(self.hub.down_until + 1, self._tell_health, name)
        elif self.current is not None:
            serving = self.hosts[name].serving
            self.current.run(self.current.driver.see_health, name, serving=serving)

    @property
    def current(self) -> Controller | None:
        return self.controllers[-1] if self.controllers else None

    def _kill(self, in_calls: int) -> None:
        if self.current is not None and self.current.is_alive:
            self.current.kill_in = in_calls

    def _pause(self, length_ms: int) -> None:
        """Have the controller stand still, and another one take over meanwhile."""
        controller = self.current
        if controller is not None and controller.is_alive:
            controller.pause(length_ms)
            self.world.after(int(length_ms * self.dice.random()), self._adopt)

    # --- controllers and their operator ---------------------------------------------------------
    def _new_controller(self) -> Controller:
        controller = Controller(
            f"c{len(self.controllers)}",
            plan=self.plan,
            ledger=self.ledger,
            hosts=self.hosts,
            hub=self.hub,
            network=self.network,
            audit=self.audit,
            on_over=self._over,
            patience=self.patience,
        )
        self.controllers.append(controller)
        return controller

    def _adopt(self, decision: Decision | None = None) -> None:
        if not self.is_finished:
            controller = self._new_controller()
            controller.run(controller.driver.adopt, takeover=True, decision=decision)

    def _over(self, controller: Controller) -> None:
        """Do what people do when a controller is gone: adopt, decide, or leave it."""
        if controller is not self.current or self.is_finished:
            return
        state = controller.driver.state
        parked = state.tenure is Tenure.PARKED and not controller.driver.is_fenced
        if state.epoch is EpochState.ENDED:
            self.is_finished = True
        elif not parked:
            self.world.after(int(self.dice.uniform(1_000, 60_000)), self._adopt)
        elif self.world.now < self.faults_until:
            self.world.at(self.faults_until + 1_000, self._adopt)
        elif self.operator_acts > 0:
            self.operator_acts -= 1
            self.world.after(30_000, self._adopt, self._decide)
        else:
            self.is_finished = True

    def _abort(self) -> None:
        if self.current is not None and self.current.is_alive:
            abort = self.current.driver.command
            self.current.run(abort, lambda s: proposals.propose_abort(s, "operator"))

    def _operate(self) -> None:
        """Give the running driver one random command."""
        if self.current is not None and self.current.is_alive:
            self.current.run(self.current.driver.command, self._decide)

    def _decide(self, state: RolloutState) -> tuple[Event, ...]:
        """Return what an operator decides who sees `state`; nothing if it makes no difference."""
        dice = self.dice
        choices = [
            proposals.propose_resume(state, "operator"),
            proposals.propose_resume(state, "operator"),
            proposals.propose_pause(state, "operator"),
        ]
        if dice.random() < 0.2:
            choices.append(proposals.propose_abort(state, "operator"))
        held = [n for n, s in state.lanes.items() if s in {LaneState.HELD, LaneState.WAITING}]
        if held:
            lane = dice.choice(held)
            choices.append(proposals.propose_lane_resume(state, lane))
            choices.append(proposals.propose_lane_skip(state, lane))
        # Nobody assumes that a node is down which he has not looked at.
        down = [
            member.name
            for member in state.members.values()
            if member.state is NodeState.UNKNOWN
            and self.network.dead.get(member.name, 0) >= _FOREVER
            and self.hosts[member.name].is_still
        ]
        if down:
            choices.append(proposals.propose_assume_down(state, down[0]))
        return dice.choice(choices)

    # --- the run --------------------------------------------------------------------------------
    def run(self) -> Result:
        """Run to the end and return what came of it."""
        self._plan_faults()
        first = self._new_controller()
        first.run(first.driver.start)
        if (
            first.driver.is_over
            and first.driver.state.epoch is EpochState.RUNNING
            and (not self.controllers[1:] and not first.driver.state.fence)
        ):
            self.is_finished = True
        deadline = self._deadline()
        world = self.world
        try:
            while world.step():
                if world.now > deadline and not self.is_finished:
                    self.audit.fail(f"neither ended nor parked by {deadline} ms")
                    break
        except (AssertionError, Refused) as error:
            # The core refused what it itself had decided: as good as a broken invariant.
            self.audit.fail(f"{type(error).__name__}: {error}")
        self.hub.expire({name for name in self.hosts if self._is_silent(name)})
        self.audit.finish()
        if self.kind == "one_bad":
            self._check_others()
        if self.kind in {"calm", "calm_fresh", "calm_down"}:
            self._check_installed()
        state = self.controllers[-1].driver.state
        return Result(
            seed=self.seed,
            kind=self.kind,
            events=world.events,
            end=f"{state.epoch} {state.tenure}",
            committed=state.tally.committed,
            window_ms_max=self.audit.window_ms_max,
            window_bound_ms=self.audit.window_bound_ms,
            violations=tuple(self.audit.violations),
        )

    def _is_silent(self, name: str) -> bool:
        """Say whether no heartbeat of the node comes any more."""
        return not self.hosts[name].serving or self.network.dead.get(name, 0) > self.world.now

    def _deadline(self) -> int:
        length = estimate_length_ms(self.plan.budget, nodes=len(self.plan.nodes), max_unavailable=1)
        acts = self.operator_acts + 4
        return self.faults_until + 3 * length + acts * (self.patience.stall_ms + 120_000)

    def _check_others(self) -> None:
        """Check that one bad node left the nodes of all other lanes committed."""
        state = self.controllers[-1].driver.state
        bad = state.members[self.bad]
        if bad.canary or bad.state is NodeState.COMMITTED:
            return
        left = [
            member.name
            for member in state.members.values()
            if member.lane != bad.lane and member.state is not NodeState.COMMITTED
        ]
        if left:
            self.audit.fail(f"{self.bad} was bad, and {', '.join(left)} did not commit")

    def _check_installed(self) -> None:
        """Check that a fleet without a healthy node got its release, whatever the floor says."""
        state = self.controllers[-1].driver.state
        if state.tally.committed < len(state.members):
            self.audit.fail(f"only {state.tally.committed} nodes of a {self.kind} fleet committed")


def run_epoch(seed: int, nodes: int, kind: str | None = None) -> Result:
    """Run the epoch of `seed`."""
    return Simulation(seed, nodes, kind).run()
