"""What `capsule ledger show` reads: states from the events, rows from the tables."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from sqlalchemy import Engine, Table, select

from capsule.ledger.codec import decode_any
from capsule.ledger.engine import snapshot
from capsule.ledger.fold import Fold, fold_epochs
from capsule.ledger.tables import events, holds, leases, node_facts, nodes
from capsule_manifest.errors import Refused

__all__ = ["Overview", "read_events", "read_overview"]

Row = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The whole ledger, without the events themselves."""

    folds: tuple[Fold, ...]
    leases: tuple[Row, ...]
    holds: tuple[Row, ...]
    nodes: tuple[Row, ...]


def read_overview(engine: Engine) -> Overview:
    """Return the epochs as their events say, and what is held and leased.

    Raises:
        Refused: `ledger-damaged`.
        Failed: `ledger-unavailable`.
    """
    folds = fold_epochs(engine)
    known = select(nodes.c.node, node_facts.c.node_key, node_facts.c.generation, node_facts.c.fence)
    with snapshot(engine) as connection:

        def rows(table: Table) -> tuple[Row, ...]:
            found = connection.execute(select(table).order_by(*table.primary_key)).mappings()
            return tuple(dict(row) for row in found)

        joined = known.join_from(nodes, node_facts, isouter=True).order_by(nodes.c.node)
        named = tuple(dict(row) for row in connection.execute(joined).mappings())
        return Overview(folds=folds, leases=rows(leases), holds=rows(holds), nodes=named)


def read_events(engine: Engine, stream: str) -> tuple[Row, ...]:
    """Return every event of a stream, as fields.

    Raises:
        Refused: `epoch-unknown`, `ledger-damaged`.
        Failed: `ledger-unavailable`.
    """
    with snapshot(engine) as connection:
        found = connection.execute(
            select(events).where(events.c.stream == stream).order_by(events.c.seq)
        ).all()
    if not found:
        raise Refused("epoch-unknown", "no epoch has this name", got=stream)
    shown: list[Row] = []
    for row in found:
        event = decode_any(row.body)
        shown.append(
            {
                **asdict(event),
                "seq": row.seq,
                "fence": row.fence,
                "event": type(event).__name__,
                "digest": row.digest,
            }
        )
    return tuple(shown)
