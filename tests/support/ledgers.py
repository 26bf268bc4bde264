"""SQL ledgers for tests: whole epochs in them, and an audit that reads along."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from capsule.lane.decide import decide
from capsule.lane.plan import RolloutPlan
from capsule.lane.rows import rows_of
from capsule.lane.state import initial_state
from capsule.ledger.opening import open_ledger
from capsule.ledger.store import SqlLedger

__all__ = ["AuditedSqlLedger", "opened", "record_epoch", "tamper"]


@contextmanager
def opened(address: Path | str) -> Iterator[SqlLedger]:
    """Open, or make, the ledger in a file or of a server."""
    with open_ledger(str(address), create=True) as ledger:
        yield ledger


def record_epoch(ledger: SqlLedger, plan: RolloutPlan, events: Any) -> None:
    """Append the events of a whole epoch one by one, with the rows that each changes."""
    ledger.add_nodes([node.name for node in plan.nodes])
    ledger.keep_plan(plan)
    lease = ledger.acquire("fleet", "recorder", takeover=True)
    state = initial_state(plan)
    for seq, event in enumerate(events):
        before, (state, _) = state, decide(state, event)
        rows = rows_of(before, [event], state)
        ledger.append(lease, plan.epoch, expected_seq=seq, events=[event], rows=rows)
    ledger.release(lease)


def tamper(path: Path, *statements: str) -> None:
    """Change a ledger as somebody with the file and no scruples would."""
    connection = sqlite3.connect(path)
    for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'"):
        connection.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


class AuditedSqlLedger:
    """A SQL ledger in the place of the simulator's own, with the audit reading along."""

    def __init__(self, ledger: SqlLedger) -> None:
        self._ledger = ledger
        self.audit: Any = None

    def append(self, lease, stream, *, expected_seq, events, rows):  # type: ignore[no-untyped-def]
        length = self._ledger.append(
            lease, stream, expected_seq=expected_seq, events=events, rows=rows
        )
        self.audit.appended(events)
        return length

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)
