"""Which rows beside the stream a list of events changes: the ledger does it in one transaction."""

from collections.abc import Iterable

from capsule.lane.epoch import Ended
from capsule.lane.events import Event, HoldReturned, Started
from capsule.lane.hold import HoldState
from capsule.lane.node import HoldTaken, NodeState
from capsule.lane.ports import Rows
from capsule.lane.state import RolloutState

__all__ = ["rows_of"]


def rows_of(before: RolloutState, events: Iterable[Event], after: RolloutState) -> Rows:
    """Return the rows for `events`, which lead from `before` to `after`."""
    opened: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()
    taken, returned, kept = [], [], []
    for event in events:
        if isinstance(event, HoldTaken):
            taken.append(event.node)
        elif isinstance(event, HoldReturned):
            returned.append(event.node)
        elif isinstance(event, Started):
            opened = tuple(after.members)
        elif isinstance(event, Ended):
            closed = tuple(after.members)
        elif (node := getattr(event, "node", None)) is not None:
            was, now = before.members[node], after.members[node]
            if now.state is NodeState.HELD and was.hold is not HoldState.FREE and node not in kept:
                kept.append(node)
    return Rows(
        opened=opened,
        closed=closed,
        taken=tuple(taken),
        returned=tuple(returned),
        kept=tuple(kept),
    )
