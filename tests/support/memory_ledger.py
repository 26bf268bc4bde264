"""A ledger in memory: what the simulator runs on, and the first that the contract suite tests."""

from collections.abc import Sequence

from capsule.lane.events import Event, Started
from capsule.lane.plan import RolloutPlan, plan_digest
from capsule.lane.ports import Clock, Lease, Recorded, Rows
from capsule.lane.refusals import (
    epoch_unfinished,
    fence_stale,
    lease_busy,
    ledger_conflict,
    permit_taken,
)

__all__ = ["LEASE_MS", "MemoryLedger"]

LEASE_MS = 30_000


class MemoryLedger:
    """Every method is one transaction, because nothing else runs meanwhile."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._fences: dict[str, int] = {}
        self._leases: dict[str, tuple[str, int]] = {}
        self._streams: dict[str, list[Recorded]] = {}
        self._open: dict[str, str] = {}
        self._permits: dict[str, str] = {}
        self._holds: dict[str, str] = {}
        self._people: dict[str, set[str]] = {}
        self._plans: dict[str, RolloutPlan] = {}

    def acquire(self, scope: str, holder: str, *, takeover: bool) -> Lease:
        known, until_ms = self._leases.get(scope, ("", 0))
        if known and until_ms > self._clock.now_ms() and not takeover:
            left_ms = until_ms - self._clock.now_ms()
            raise lease_busy(scope, known, left_ms=left_ms)
        self._fences[scope] = self._fences.get(scope, 0) + 1
        self._leases[scope] = (holder, self._clock.now_ms() + LEASE_MS)
        return Lease(scope=scope, holder=holder, fence=self._fences[scope])

    def renew(self, lease: Lease) -> None:
        self._check(lease)
        self._leases[lease.scope] = (lease.holder, self._clock.now_ms() + LEASE_MS)

    def release(self, lease: Lease) -> None:
        if self._fences.get(lease.scope) == lease.fence:
            self._leases.pop(lease.scope, None)

    def append(
        self, lease: Lease, stream: str, *, expected_seq: int, events: Sequence[Event], rows: Rows
    ) -> int:
        self._check(lease)
        recorded = self._streams.setdefault(stream, [])
        if len(recorded) != expected_seq:
            raise ledger_conflict(stream, expected_seq=expected_seq, length=len(recorded))
        self._check_rows(stream, rows)
        for event in events:
            recorded.append(Recorded(seq=len(recorded) + 1, fence=lease.fence, event=event))
        self._change_rows(stream, rows)
        return len(recorded)

    def keep_plan(self, plan: RolloutPlan) -> None:
        self._plans[plan_digest(plan)] = plan

    def plan(self, stream: str) -> RolloutPlan:
        """Return the plan that an epoch was started with."""
        started = self._streams[stream][0].event
        assert isinstance(started, Started)
        return self._plans[started.plan]

    def read(self, stream: str, *, after: int = 0) -> tuple[Recorded, ...]:
        return tuple(self._streams.get(stream, [])[after:])

    def foreign_holds(self, stream: str) -> frozenset[str]:
        # What an ended epoch left held is fixed forward by a newer one: it is nobody's.
        return frozenset(self._people)

    def hold(self, node: str, owner: str) -> None:
        """Place a hold for a person."""
        self._people.setdefault(node, set()).add(owner)

    def unhold(self, node: str, owner: str) -> None:
        """End a person's hold."""
        owners = self._people[node]
        owners.remove(owner)
        if not owners:
            del self._people[node]

    def holders(self, node: str) -> frozenset[str]:
        """Return who holds the node: people, and at most one epoch."""
        epoch = {self._holds[node]} if node in self._holds else set()
        return frozenset(self._people.get(node, set()) | epoch)

    def permits(self, stream: str) -> frozenset[str]:
        """Return the nodes whose permits `stream` has out."""
        return frozenset(node for node, owner in self._permits.items() if owner == stream)

    def _check(self, lease: Lease) -> None:
        fence = self._fences.get(lease.scope, 0)
        if fence != lease.fence:
            raise fence_stale(lease.scope, newest=fence, own=lease.fence)

    def _check_rows(self, stream: str, rows: Rows) -> None:
        for node in rows.opened:
            if self._open.get(node, stream) != stream:
                raise epoch_unfinished(node, self._open[node])
        for node in rows.taken:
            if node in self._permits:
                raise permit_taken(node, self._permits[node])

    def _change_rows(self, stream: str, rows: Rows) -> None:
        for node in rows.opened:
            self._open[node] = stream
        for node in rows.taken:
            self._permits[node] = stream
            self._holds[node] = stream
        for node in (*rows.returned, *rows.kept):
            self._permits.pop(node, None)
        for node in rows.returned:
            self._holds.pop(node, None)
        for node in rows.closed:
            self._open.pop(node, None)
