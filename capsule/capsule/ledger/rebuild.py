"""Enter what hosts' receipts say into an empty ledger, in one transaction.

What can be known again: which nodes there are, their keys, the highest fence that each has seen and
what runs on it. What can't: the epochs' own history. The events say that they were rebuilt.

Source: design, section 11, "A lost ledger is rebuilt from the hosts' receipts".
"""

from collections.abc import Iterable, Sequence
from typing import Final

from sqlalchemy import Connection, func, insert, select

from capsule.ledger.codec import GENESIS, chain_digest, encode_event
from capsule.ledger.engine import begin
from capsule.ledger.rebuilt import REBUILT, NodeRebuilt
from capsule.ledger.store import SqlLedger
from capsule.ledger.tables import events, holds, leases, node_facts, nodes
from capsule_manifest.errors import Refused

__all__ = ["HOLD_OWNER", "rebuild"]

HOLD_OWNER: Final = "rebuild"
"""Who holds a node whose host says that it is held, or in the middle of an op."""


def rebuild(
    ledger: SqlLedger, found: Sequence[NodeRebuilt], *, held: Iterable[str], scope: str, holder: str
) -> int:
    """Write nodes, their facts and events; return the fence, above every host's.

    Raises:
        Refused: `ledger-not-empty`.
        Failed: `ledger-unavailable`, `ledger-full`.
    """
    fence = 1 + max((item.fence for item in found), default=0)
    with begin(ledger.engine) as connection:
        _check_empty(connection)
        # The lease is over at once; its fence is what a later controller goes on from.
        connection.execute(
            insert(leases).values(scope=scope, holder=holder, fence=fence, expires_ms=0)
        )
        if not found:
            return fence
        connection.execute(insert(nodes), [{"node": item.node} for item in found])
        connection.execute(
            insert(node_facts),
            [
                {
                    "node": item.node,
                    "node_key": item.node_key,
                    "generation": item.generation,
                    "fence": item.fence,
                }
                for item in found
            ],
        )
        connection.execute(insert(events), _chained(found, fence))
        names = [{"node": node, "owner": HOLD_OWNER} for node in sorted(held)]
        if names:
            connection.execute(insert(holds), names)
    return fence


def _check_empty(connection: Connection) -> None:
    for table in (events, nodes, leases):
        count = connection.execute(select(func.count()).select_from(table)).scalar_one()
        if count:
            raise Refused(
                "ledger-not-empty",
                "a rebuild would mix with what the ledger knows",
                expected="an empty ledger",
                got=f"{count} rows of {table.name}",
            )


def _chained(found: Sequence[NodeRebuilt], fence: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    previous = GENESIS
    for seq, item in enumerate(found, 1):
        body = encode_event(item)
        previous = chain_digest(previous, REBUILT, seq, fence, body)
        rows.append(
            {"stream": REBUILT, "seq": seq, "fence": fence, "body": body, "digest": previous}
        )
    return rows
