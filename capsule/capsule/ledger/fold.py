"""`capsule ledger verify`, second part: recompute every state and compare it with the tables.

The tables of open members, permits and holds are a cache of what the events say, kept so that the
database itself can refuse a second permit. The first row that says something else ends the check.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sqlalchemy import Connection, Engine, Table, select

from capsule.lane.decide import decide
from capsule.lane.epoch import EpochState
from capsule.lane.hold import HoldState
from capsule.lane.machine import IllegalTransition
from capsule.lane.node import HoldTaken, NodeState
from capsule.lane.state import RolloutState, initial_state
from capsule.ledger.codec import decode_any, decode_event
from capsule.ledger.engine import snapshot
from capsule.ledger.plans import epochs, plan_of
from capsule.ledger.rebuilt import REBUILT, NodeRebuilt
from capsule.ledger.tables import events, holds, members, node_facts, permits
from capsule_manifest.errors import Refused

__all__ = ["Fold", "check_states", "fold_epochs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """One epoch as its events say. `took` holds the nodes whose hold the epoch ever took."""

    stream: str
    length: int
    state: RolloutState
    took: frozenset[str]


def check_states(engine: Engine) -> tuple[Fold, ...]:
    """Recompute every node, lane and epoch, and compare members, permits and holds with it.

    Raises:
        Refused: `ledger-damaged` with the first event or row that is wrong.
        Failed: `ledger-unavailable`.
    """
    with snapshot(engine) as connection:
        folds = tuple(_fold(connection, stream) for stream in epochs(connection))
        _check_owned(connection, members, folds, _open_members)
        _check_owned(connection, permits, folds, _permits)
        _check_holds(connection, folds)
        _check_facts(connection)
    return folds


def fold_epochs(engine: Engine) -> tuple[Fold, ...]:
    """Recompute every epoch without looking at the tables. Raises: as `check_states`."""
    with snapshot(engine) as connection:
        return tuple(_fold(connection, stream) for stream in epochs(connection))


def _fold(connection: Connection, stream: str) -> Fold:
    plan = plan_of(connection, stream)
    state = initial_state(plan)
    took: set[str] = set()
    length = 0
    for row in connection.execute(
        select(events.c.seq, events.c.body).where(events.c.stream == stream).order_by(events.c.seq)
    ):
        event = decode_event(row.body)
        try:
            state, _ = decide(state, event)
        except (IllegalTransition, KeyError) as error:
            raise _damaged(
                "an event does not follow from those before it",
                "an event that the state machine has a row for",
                str(error),
                f"{stream}, event {row.seq}",
            ) from error
        if isinstance(event, HoldTaken):
            took.add(event.node)
        length = row.seq
    return Fold(stream=stream, length=length, state=state, took=frozenset(took))


def _open_members(state: RolloutState) -> Iterable[str]:
    return () if state.epoch is EpochState.ENDED else state.members


def _permits(state: RolloutState) -> Iterable[str]:
    return (m.name for m in state.members.values() if m.hold is not HoldState.FREE)


def _held(state: RolloutState) -> frozenset[str]:
    """Return the nodes whose hold is still the epoch's; one that turned `held` keeps it."""
    return frozenset(
        member.name
        for member in state.members.values()
        if member.hold is not HoldState.FREE or member.state is NodeState.HELD
    )


def _check_owned(
    connection: Connection,
    table: Table,
    folds: Iterable[Fold],
    names: Callable[[RolloutState], Iterable[str]],
) -> None:
    """Compare a table of one owner a node with what the epochs' states say."""
    expected: dict[str, str] = {}
    for fold in folds:
        for node in names(fold.state):
            if node in expected:
                raise _damaged(
                    "two epochs have a node", expected[node], fold.stream, f"{table.name}, {node}"
                )
            expected[node] = fold.stream
    found = {row.node: row.stream for row in connection.execute(select(table))}
    for node in sorted({*expected, *found}):
        if expected.get(node) != found.get(node):
            raise _damaged(
                "a row differs from the events",
                expected.get(node, "no row"),
                found.get(node, "no row"),
                f"{table.name}, {node}",
            )


def _check_holds(connection: Connection, folds: tuple[Fold, ...]) -> None:
    """Compare the epochs' holds with their states.

    A hold that an ended epoch left is taken over by the next, and goes with that one's: of a node
    that one epoch took, the row is known exactly, of others which rows there can be.
    """
    takers = Counter(node for fold in folds for node in fold.took)
    streams = {fold.stream for fold in folds}
    found = {
        (row.node, row.owner) for row in connection.execute(select(holds)) if row.owner in streams
    }
    for fold in folds:
        held, out = _held(fold.state), frozenset(_permits(fold.state))
        for node in sorted(fold.state.members):
            has = (node, fold.stream) in found
            needed = node in out or (node in held and takers[node] == 1)
            if needed and not has:
                raise _damaged("a hold is gone", "a row", "no row", f"holds, {node}")
            if has and node not in held:
                raise _damaged(
                    "a hold is left that its epoch gave up", "no row", fold.stream, f"holds, {node}"
                )


def _check_facts(connection: Connection) -> None:
    """Compare what is known of rebuilt nodes with the events that say so."""
    expected: dict[str, tuple[str, str, int]] = {}
    for row in connection.execute(
        select(events.c.seq, events.c.body).where(events.c.stream == REBUILT).order_by(events.c.seq)
    ):
        event = decode_any(row.body)
        if not isinstance(event, NodeRebuilt):
            raise _damaged(
                "another event in this stream",
                "NodeRebuilt",
                type(event).__name__,
                f"{REBUILT}, event {row.seq}",
            )
        expected[event.node] = (event.node_key, event.generation, event.fence)
    found = {
        row.node: (row.node_key, row.generation, row.fence)
        for row in connection.execute(select(node_facts))
    }
    for node in sorted({*expected, *found}):
        if expected.get(node) != found.get(node):
            raise _damaged(
                "a row differs from the events",
                expected.get(node, "no row"),
                found.get(node, "no row"),
                f"{node_facts.name}, {node}",
            )


def _damaged(what: str, expected: object, got: object, where: str) -> Refused:
    return Refused("ledger-damaged", what, expected=expected, got=got, where=where)
