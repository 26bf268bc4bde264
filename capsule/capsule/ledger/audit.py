"""`capsule ledger verify`, first part: walk every chain of events.

What a chain can't show is that its end was cut off; the tables do, which `capsule.ledger.fold`
compares with the events.
"""

from dataclasses import dataclass

from sqlalchemy import Engine, select

from capsule.ledger.codec import GENESIS, chain_digest, decode_any
from capsule.ledger.engine import snapshot
from capsule.ledger.tables import events, leases
from capsule_manifest.errors import Refused

__all__ = ["Audit", "audit_ledger"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What was walked."""

    streams: int
    events: int


def audit_ledger(engine: Engine) -> Audit:
    """Check every event of every stream; the first that is wrong ends it.

    Raises:
        Refused: `ledger-damaged` for a gap, a broken link, an event that can't be read, or a fence
            that fell or was never given out.
        Failed: `ledger-unavailable`.
    """
    streams: dict[str, tuple[int, int, str]] = {}
    count = 0
    with snapshot(engine) as connection:
        highest = max(connection.execute(select(leases.c.fence)).scalars(), default=0)
        rows = connection.execute(select(events).order_by(events.c.stream, events.c.seq))
        for row in rows:
            seq, fence, previous = streams.get(row.stream, (0, 0, GENESIS))
            where = f"{row.stream}, event {row.seq}"
            if row.seq != seq + 1:
                raise _damaged("an event is missing", f"event {seq + 1}", row.seq, where)
            expected = chain_digest(previous, row.stream, row.seq, row.fence, row.body)
            if row.digest != expected:
                raise _damaged("an event differs from its digest", expected, row.digest, where)
            if not fence <= row.fence <= highest:
                raise _damaged("a fence fell", f"{fence} to {highest}", row.fence, where)
            decode_any(row.body)
            streams[row.stream] = (row.seq, row.fence, row.digest)
            count += 1
    return Audit(streams=len(streams), events=count)


def _damaged(what: str, expected: object, got: object, where: str) -> Refused:
    return Refused("ledger-damaged", what, expected=expected, got=got, where=where)
