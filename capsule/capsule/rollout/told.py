"""A ledger that tells what was appended: the one source of an epoch's event stream.

An event is told after it is durable and never before, so that what a watcher saw is what an adopter
will read.
"""

from collections.abc import Callable, Sequence

from capsule.lane.events import Event
from capsule.lane.plan import RolloutPlan
from capsule.lane.ports import Lease, Ledger, Recorded, Rows

__all__ = ["ToldLedger"]


class ToldLedger:
    """Pass everything on to `ledger`, and each appended event to `tell` with its number."""

    def __init__(self, ledger: Ledger, tell: Callable[[int, Event], None]) -> None:
        self._ledger = ledger
        self._tell = tell

    def acquire(self, scope: str, holder: str, *, takeover: bool) -> Lease:
        """Take the lease. Source: `Ledger.acquire`."""
        return self._ledger.acquire(scope, holder, takeover=takeover)

    def renew(self, lease: Lease) -> None:
        """Extend the lease. Source: `Ledger.renew`."""
        self._ledger.renew(lease)

    def release(self, lease: Lease) -> None:
        """End the lease. Source: `Ledger.release`."""
        self._ledger.release(lease)

    def keep_plan(self, plan: RolloutPlan) -> None:
        """Keep a plan. Source: `Ledger.keep_plan`."""
        self._ledger.keep_plan(plan)

    def append(
        self,
        lease: Lease,
        stream: str,
        *,
        expected_seq: int,
        events: Sequence[Event],
        rows: Rows,
    ) -> int:
        """Append, then tell. Source: `Ledger.append`."""
        length = self._ledger.append(
            lease, stream, expected_seq=expected_seq, events=events, rows=rows
        )
        for seq, event in enumerate(events, length - len(events) + 1):
            self._tell(seq, event)
        return length

    def read(self, stream: str, *, after: int = 0) -> tuple[Recorded, ...]:
        """Return events. Source: `Ledger.read`."""
        return self._ledger.read(stream, after=after)

    def foreign_holds(self, stream: str) -> frozenset[str]:
        """Return foreign holds. Source: `Ledger.foreign_holds`."""
        return self._ledger.foreign_holds(stream)
