"""The invariants, checked after every event from outside the system under test.

The audit sees the truth of the hosts and every append to the ledger. It folds nodes by the
machine's table and counts permits itself: nothing that the core counts is believed. Checks are made
where something changes, which is the same as after every event and much faster.
"""

from typing import Any

from capsule.lane.epoch import AbortDecided, EpochEvent, Parked, Resumed
from capsule.lane.events import HoldReturned
from capsule.lane.node import HoldTaken, NodeEvent, NodeState, StopIntended
from capsule.lane.node_table import TABLE
from capsule.lane.plan import RolloutPlan
from capsule.lane.ports import HostStep
from sim.host import Host
from sim.hub import Hub

__all__ = ["INVARIANTS", "Auditor"]

INVARIANTS = (
    "never more permits out than max_unavailable, nor more of a domain than its cap",
    "no stop without a permit, no order without its intent, no hold without its permit",
    "the floor holds whenever an op takes a node down",
    "an aborted or skipped node is never stopped, nor one with work on it",
    "a committed node is never disturbed",
    "every stop is bounded by D1 and R of its own host's clock, whatever the fleet's size",
    "a node is committed only with its host's outcome, and both agree at the end",
    "no identity is lost, no hold left behind, nobody away at the end",
    "after a failed canary no node is taken",
    "one bad node leaves the nodes of all other lanes committed",
    "every epoch ends or parks in bounded time once faults end",
    "a fleet without a healthy node is installed and fixed forward",
)
"""What `Auditor` and `sim.fleet` assert; a test holds each to a mutation or a scripted run."""

CANARIES = 3
_ENDED = frozenset({NodeState.COMMITTED, NodeState.HELD, NodeState.SKIPPED})
_STILL = frozenset({HostStep.COMMITTED, HostStep.RESTORED, HostStep.RESTORE_FAILED})


class Auditor:
    """Watch one epoch. `violations` holds one line for each broken invariant."""

    def __init__(
        self, plan: RolloutPlan, hosts: dict[str, Host], hub: Hub, floor_percent: int
    ) -> None:
        self.plan = plan
        self.hosts = hosts
        self.hub = hub
        self.violations: list[str] = []
        self.states = {node.name: NodeState.UNTOUCHED for node in plan.nodes}
        self.domains = {node.name: node.domain for node in plan.nodes}
        self.out: set[str] = set()  # permits, and nodes that stay held
        self.permits: set[str] = set()
        self.intended: set[str] = set()
        self.serving = sum(node.serving for node in plan.nodes) + plan.bystanders
        # A share is compared exactly: the plan may round it up, never down.
        share = -(-floor_percent * len(plan.nodes) // 100)
        self.floor = min(max(plan.floor, share), self.serving)
        self.outside_down: set[str] = set()
        self.turns = dict.fromkeys(self.states, 0)
        self.is_aborted = False
        self.was_down: set[str] = set()  # when it was taken, and when its stop was intended
        self.committed = 0
        self.canaries: set[str] = set()
        self.failed_canary = ""
        self.window_ms_max = 0
        self.ends: list[Any] = []
        budget = plan.budget
        self.window_bound_ms = int(1.02 * budget.d1_ms) + budget.restore_ms + 45_000

    def fail(self, text: str) -> None:
        self.violations.append(text)

    # --- the ledger -----------------------------------------------------------------------------
    def appended(self, events: Any) -> None:
        for event in events:
            if isinstance(event, NodeEvent):
                self._node_event(event)
            elif isinstance(event, HoldReturned):
                self.permits.discard(event.node)
                self.was_down.discard(event.node)
                self.out.discard(event.node)
                self._still(event.node, "permit returned")
            elif isinstance(event, EpochEvent | Parked):
                self.ends.append(event)
                if isinstance(event, AbortDecided):
                    self.is_aborted = True
                elif isinstance(event, Resumed):
                    self.failed_canary = ""

    def _node_event(self, event: NodeEvent) -> None:
        node = event.node
        before = self.states[node]
        after = TABLE.get((before, type(event)))
        if after is None:
            self.fail(f"{node}: {type(event).__name__} in {before}")
            return
        self.states[node] = after
        if isinstance(event, HoldTaken):
            if self.failed_canary:
                self.fail(f"{node}: taken although the canary {self.failed_canary} failed")
            (self.canaries.add if self.committed < CANARIES else self.canaries.discard)(node)
            self.turns[node] += 1
            self._note_whether_down(node)
            self.permits.add(node)
            self.out.add(node)
            self._admitted(node, serving=event.serving)
        elif isinstance(event, StopIntended):
            self._note_whether_down(node)
            if self.is_aborted:
                self.fail(f"{node}: stop intended after the abort")
            self.intended.add(event.op_id)
            if node not in self.permits:
                self.fail(f"{node}: stop intended without a permit")
        elif after is NodeState.COMMITTED:
            self.committed += 1
            if self.hosts[node].records.get(self.hosts[node].op_id) is not HostStep.COMMITTED:
                self.fail(f"{node}: committed without the host's outcome")
        elif after is NodeState.HELD:
            self.permits.discard(node)
            self._still(node, "held")
            if node in self.canaries:
                self.failed_canary = node
        elif after is NodeState.SKIPPED:
            self._still(node, "skipped")

    def _note_whether_down(self, node: str) -> None:
        down = not self.hosts[node].serving
        (self.was_down.add if down else self.was_down.discard)(node)

    def _admitted(self, node: str, *, serving: bool) -> None:
        if len(self.permits) > self.plan.max_unavailable:
            self.fail(f"{node}: {len(self.permits)} permits, {self.plan.max_unavailable} allowed")
        cap = self.plan.domain_cap
        if cap is not None and serving:
            domain = self.domains[node]
            out = sum(self.domains[other] == domain for other in self.out)
            if out > cap:
                self.fail(f"{node}: {out} nodes of {domain} are out, {cap} allowed")

    def _still(self, node: str, what: str) -> None:
        """Check that no order is under way on a node that the ledger is done with."""
        host = self.hosts[node]
        step = host.records.get(host.op_id)
        if step is not None and step not in _STILL and step is not HostStep.REFUSED:
            self.fail(f"{node}: {what} while the host is {step}")

    def held(self, node: str, turn: int) -> None:
        """Check a hold as it is sent."""
        if turn > self.turns[node]:
            self.fail(f"{node}: held before its permit was recorded")

    def ordered(self, node: str, op_id: str) -> None:
        """Check an order as it is sent."""
        if op_id not in self.intended:
            self.fail(f"{node}: ordered before the intent was recorded")

    # --- the hosts ------------------------------------------------------------------------------
    def stopped(self, host: Host) -> None:
        node = host.name
        if self.states[node] in _ENDED:
            self.fail(f"{node}: stopped although {self.states[node]}")
        if node not in self.permits:
            self.fail(f"{node}: stopped without a permit")
        if not self.hub.is_idle(node):
            self.fail(f"{node}: stopped while it had work")

    def went_down(self, host: Host, *, by_op: bool) -> None:
        self.serving -= 1
        if not by_op:
            self.outside_down.add(host.name)
            return
        if self.states[host.name] is NodeState.COMMITTED:
            self.fail(f"{host.name}: a committed node was disturbed")
        # A reboot is the world's doing, unless the node was out of service for us anyway.
        outside = self.outside_down - self.permits
        free = {node for node in self.was_down & self.permits if not self.hosts[node].serving}
        if self.serving + len(outside) + len(free) < self.floor:
            self.fail(f"{host.name}: {self.serving} serve, floor {self.floor}")

    def came_up(self, host: Host) -> None:
        self.serving += 1
        self.outside_down.discard(host.name)

    def window_ended(self, host: Host, length_ms: int) -> None:
        self.window_ms_max = max(self.window_ms_max, length_ms)
        if length_ms > self.window_bound_ms:
            self.fail(f"{host.name}: away for {length_ms} ms, bound {self.window_bound_ms}")

    # --- the end --------------------------------------------------------------------------------
    def finish(self) -> None:
        """Check what must hold once faults are over and nothing moves."""
        for name, host in self.hosts.items():
            state = self.states[name]
            if host.stopped_at >= 0:
                self.fail(f"{name}: still away at the end, {state}")
            if (state is NodeState.COMMITTED) != (
                host.records.get(host.op_id) is HostStep.COMMITTED
            ) and state is not NodeState.UNKNOWN:
                self.fail(f"{name}: ledger {state}, host {host.records.get(host.op_id)}")
            slot = self.hub.slots[name]
            if slot.held and state in {NodeState.COMMITTED, NodeState.SKIPPED, NodeState.STAGED}:
                self.fail(f"{name}: {state}, but its hold was left behind")
        if set(self.hosts) - self.hub.identities:
            self.fail("an identity was lost")
