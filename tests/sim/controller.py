"""A controller process in virtual time: the production driver behind its Protocols.

It can be killed between any two calls of its ports, or stand still with its clock for a while and
then go on, not knowing that another one took over.
"""

from typing import Any

from capsule.lane.driver import Driver, Patience
from capsule.lane.plan import RolloutPlan
from sim.audit import Auditor
from sim.host import Host
from sim.hub import Hub
from sim.world import Network, World
from support.memory_ledger import MemoryLedger

__all__ = ["ORDER_VALID_MS", "AuditedLedger", "Controller", "Killed"]

ORDER_VALID_MS = 60_000


class Killed(BaseException):
    """The process is gone in the middle of what it did."""


class AuditedLedger(MemoryLedger):
    """The ledger in memory, with the audit reading along."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.audit: Auditor | None = None

    def append(self, lease, stream, *, expected_seq, events, rows):  # type: ignore[no-untyped-def]
        length = super().append(lease, stream, expected_seq=expected_seq, events=events, rows=rows)
        if self.audit is not None:
            self.audit.appended(events)
        return length


class Controller:
    """One process. `kill_in` counts port calls down to its death; None is never."""

    def __init__(
        self,
        name: str,
        *,
        plan: RolloutPlan,
        ledger: AuditedLedger,
        hosts: dict[str, Host],
        hub: Hub,
        network: Network,
        audit: Auditor,
        on_over: Any,
        patience: Patience,
    ) -> None:
        self.name = name
        self.ledger = ledger
        self.fleet = hosts
        self.hub = hub
        self.network = network
        self.world = network.world
        self.audit = audit
        self.on_over = on_over
        self.is_alive = True
        self.was_killed = False
        self.kill_in: int | None = None
        self._paused_until = 0
        self._paused_total = 0
        self._tick_at = -1
        self._sent: dict[str, tuple[int, int]] = {}
        self.driver = Driver(
            plan,
            ledger=self,
            hosts=self,
            dispatch=_Dispatch(self),
            clock=self,
            scope="fleet",
            holder=name,
            patience=patience,
        )

    # --- life -----------------------------------------------------------------------------------
    def run(self, act: Any, *arguments: Any, **options: Any) -> None:
        """Let the driver do something, unless the process is dead or stands still."""
        if not self.is_alive:
            return
        if self._paused_until > self.world.now:
            self.world.at(self._paused_until, lambda: self.run(act, *arguments, **options))
            return
        try:
            act(*arguments, **options)
        except Killed:
            self.is_alive = False
            self.was_killed = True
        if self.is_alive and not self.driver.is_over:
            self._schedule()
            return
        self.is_alive = False
        self.on_over(self)

    def kill(self) -> None:
        if self.is_alive:
            self.is_alive = False
            self.on_over(self)

    def pause(self, length_ms: int) -> None:
        """Stand still, clock and all, as a suspended machine does."""
        if self.is_alive and self._paused_until <= self.world.now:
            self._paused_until = self.world.now + length_ms
            self._paused_total += length_ms

    def now_ms(self) -> int:
        return self.world.now - self._paused_total

    def _schedule(self) -> None:
        at = max(self.driver.next_at_ms + self._paused_total, self.world.now + 1)
        if self._tick_at <= self.world.now or at < self._tick_at:
            self._tick_at = at
            self.world.at(at, self._tick, at)

    def _tick(self, at: int) -> None:
        if at == self._tick_at:
            self.run(self.driver.tick)

    def hear(self, report: Any) -> None:
        self.run(self.driver.receive, report)

    def _reply_from(self, node: str) -> Any:
        return lambda report: self.network.send(node, self.hear, report)

    def _maybe_die(self) -> None:
        if self.kill_in is not None:
            self.kill_in -= 1
            if self.kill_in < 0:
                raise Killed

    # --- Ledger: the real one, with a chance to die after each commit ---------------------------
    def acquire(self, scope, holder, *, takeover):  # type: ignore[no-untyped-def]
        return self.ledger.acquire(scope, holder, takeover=takeover)

    def renew(self, lease):  # type: ignore[no-untyped-def]
        self.ledger.renew(lease)

    def release(self, lease):  # type: ignore[no-untyped-def]
        self.ledger.release(lease)

    def append(self, lease, stream, *, expected_seq, events, rows):  # type: ignore[no-untyped-def]
        length = self.ledger.append(
            lease, stream, expected_seq=expected_seq, events=events, rows=rows
        )
        self._maybe_die()
        return length

    def keep_plan(self, plan):  # type: ignore[no-untyped-def]
        self.ledger.keep_plan(plan)

    def read(self, stream, *, after=0):  # type: ignore[no-untyped-def]
        return self.ledger.read(stream, after=after)

    def foreign_holds(self, stream):  # type: ignore[no-untyped-def]
        return self.ledger.foreign_holds(stream)

    # --- Hosts ----------------------------------------------------------------------------------
    def order(self, node: str, op_id: str, *, fence: int) -> None:
        self.audit.ordered(node, op_id)
        host = self.fleet[node]
        valid_until = int(self.world.now * host.nature.skew) + ORDER_VALID_MS
        # A repeated order is the same signed bytes: it answers the first hello, and ends with it.
        boot, until = self._sent.setdefault(op_id, (host.boot, valid_until))
        self.network.send(node, host.order, op_id, fence, boot, until, self._reply_from(node))
        self._maybe_die()

    def confirm(self, node: str, op_id: str, *, proof: str, fence: int) -> None:
        self.network.send(
            node, self.fleet[node].confirm, op_id, proof, fence, self._reply_from(node)
        )
        self._maybe_die()

    def query(self, node: str, op_id: str, *, fence: int) -> None:
        # What this controller never sent was sent, if at all, under a lower fence.
        boot, until = self._sent.get(op_id, (-1, -1))
        self.network.send(
            node, self.fleet[node].query, op_id, fence, boot, until, self._reply_from(node)
        )
        self._maybe_die()


class _Dispatch:
    """The way to the hub: the same network, with the hub's own outages."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def hold(self, node: str, turn: int, *, fence: int) -> None:
        self._controller.audit.held(node, turn)
        self._send(node, self._controller.hub.hold, turn)

    def release(self, node: str, turn: int, *, fence: int) -> None:
        self._send(node, self._controller.hub.release, turn)

    def _send(self, node: str, act: Any, turn: int) -> None:
        controller = self._controller
        reply = lambda report: controller.network.send("hub", controller.hear, report)  # noqa: E731
        controller.network.send("hub", act, node, turn, reply)
        controller._maybe_die()
