"""The ledger behind `capsule.lane.ports.Ledger`: every method is one transaction.

The fence is checked inside the transaction that appends. Permits, holds and the intent that needs
them are rows of the same transaction, so a controller that dies leaves all or none of them.

Source: design, section 11, "Ledger".
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from sqlalchemy import Connection, Engine, Table, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from capsule.lane.events import Event
from capsule.lane.plan import RolloutPlan, encode_plan, plan_digest
from capsule.lane.ports import Lease, Recorded, Rows
from capsule.lane.refusals import (
    epoch_unfinished,
    fence_stale,
    lease_busy,
    ledger_conflict,
    permit_taken,
)
from capsule.ledger.codec import GENESIS, chain_digest, decode_event, encode_event
from capsule.ledger.engine import begin, database_ms
from capsule.ledger.plans import plan_of
from capsule.ledger.rebuilt import REBUILT
from capsule.ledger.reserve import Reserve
from capsule.ledger.tables import events as events_table
from capsule.ledger.tables import holds, leases, members, node_facts, nodes, permits, plans
from capsule_manifest.errors import CapsuleError, Refused

__all__ = ["LEASE_MS", "SqlLedger"]

LEASE_MS: Final = 30_000
"""A lease lasts so long; its holder renews it every 10 s and stops by itself after 20 s."""


_STREAMS: Final = select(events_table.c.stream).where(
    events_table.c.seq == 1, events_table.c.stream != REBUILT
)
"""Every epoch that was ever started."""

Result = TypeVar("Result")


class SqlLedger:
    """Implement `Ledger` with SQLAlchemy Core on SQLite or PostgreSQL.

    `reserve` is the space that lets what is under way end on a full disk; None where the database
    has a machine of its own to look after.
    """

    def __init__(
        self, engine: Engine, *, lease_ms: int = LEASE_MS, reserve: Reserve | None = None
    ) -> None:
        self._engine = engine
        self._lease_ms = lease_ms
        self._reserve = reserve
        self.fence_floor = 0
        """The least fence of the next lease: hosts may know a higher one than this ledger."""

    @property
    def engine(self) -> Engine:
        """Return the database, for what reads it as a whole."""
        return self._engine

    def add_nodes(self, names: Sequence[str]) -> None:
        """Make nodes known. They stay for ever; those that are known already are left alone."""
        with begin(self._engine) as connection:
            known = set(connection.execute(select(nodes.c.node)).scalars())
            fresh = [{"node": name} for name in sorted(set(names) - known)]
            if fresh:
                connection.execute(insert(nodes), fresh)

    def node_names(self) -> tuple[str, ...]:
        """Return every node that was ever made known."""
        with begin(self._engine) as connection:
            return tuple(connection.execute(select(nodes.c.node).order_by(nodes.c.node)).scalars())

    def acquire(self, scope: str, holder: str, *, takeover: bool) -> Lease:
        """Raise the fence of `scope` and take its lease. Source: `Ledger.acquire`.

        Raises:
            Refused: `lease-busy`.
            Failed: `ledger-unavailable`, `ledger-full`.
        """
        return self._with_reserve(lambda: self._acquire(scope, holder, takeover=takeover))

    def _acquire(self, scope: str, holder: str, *, takeover: bool) -> Lease:
        with begin(self._engine) as connection:
            now_ms = database_ms(connection)
            row = connection.execute(
                select(leases.c.holder, leases.c.fence, leases.c.expires_ms)
                .where(leases.c.scope == scope)
                .with_for_update()
            ).one_or_none()
            if row and row.expires_ms > now_ms and not takeover:
                raise lease_busy(scope, row.holder, left_ms=row.expires_ms - now_ms)
            fence = 1 + (row.fence if row else _highest_rebuilt(connection))
            fence = max(fence, self.fence_floor)
            values = {
                "holder": holder, "fence": fence, "expires_ms": now_ms + self._lease_ms,
            }  # fmt: skip
            if row:
                connection.execute(update(leases).where(leases.c.scope == scope).values(values))
            else:
                try:
                    connection.execute(insert(leases).values(scope=scope, **values))
                except IntegrityError as error:
                    raise lease_busy(scope, "unknown", left_ms=self._lease_ms) from error
            return Lease(scope=scope, holder=holder, fence=fence)

    def renew(self, lease: Lease) -> None:
        """Extend the lease. Source: `Ledger.renew`.

        Raises:
            Refused: `fence-stale`.
            Failed: `ledger-unavailable`, `ledger-full`.
        """

        def extend() -> None:
            with begin(self._engine) as connection:
                _check_fence(connection, lease)
                self._set_expiry(connection, lease, database_ms(connection) + self._lease_ms)

        self._with_reserve(extend)

    def release(self, lease: Lease) -> None:
        """End the lease; the fence stays. Source: `Ledger.release`.

        Raises:
            Failed: `ledger-unavailable`, `ledger-full`.
        """

        def end() -> None:
            with begin(self._engine) as connection:
                self._set_expiry(connection, lease, 0)

        self._with_reserve(end)

    def append(
        self,
        lease: Lease,
        stream: str,
        *,
        expected_seq: int,
        events: Sequence[Event],
        rows: Rows,
    ) -> int:
        """Append events and change rows, or nothing. Source: `Ledger.append`.

        Raises:
            Refused: `fence-stale`, `ledger-conflict`, `epoch-unfinished`, `permit-taken`.
            Failed: `ledger-unavailable`; `ledger-full`, for new permits and new epochs already when
                the reserve is not whole.
        """
        if rows.taken or rows.opened:
            # The reserve is for those that are out: nothing new is paid from it.
            if self._reserve is not None:
                self._reserve.require()
            return self._append(lease, stream, expected_seq, events, rows)
        return self._with_reserve(lambda: self._append(lease, stream, expected_seq, events, rows))

    def _append(
        self, lease: Lease, stream: str, expected_seq: int, events: Sequence[Event], rows: Rows
    ) -> int:
        with begin(self._engine) as connection:
            _check_fence(connection, lease)
            length, previous = _tail(connection, stream)
            if length != expected_seq:
                raise ledger_conflict(stream, expected_seq=expected_seq, length=length)
            added = []
            for seq, item in enumerate(events, length + 1):
                body = encode_event(item)
                previous = chain_digest(previous, stream, seq, lease.fence, body)
                added.append(
                    {
                        "stream": stream, "seq": seq, "fence": lease.fence, "body": body,
                        "digest": previous,
                    }
                )  # fmt: skip
            if added:
                try:
                    connection.execute(insert(events_table), added)
                except IntegrityError as error:
                    raise ledger_conflict(
                        stream, expected_seq=expected_seq, length=length
                    ) from error
            _change_rows(connection, stream, rows)
            return length + len(added)

    def keep_plan(self, plan: RolloutPlan) -> None:
        """Keep a plan under its digest. Source: `Ledger.keep_plan`.

        Raises:
            Failed: `ledger-unavailable`, `ledger-full`.
        """
        if self._reserve is not None:
            self._reserve.require()
        digest = plan_digest(plan)
        row = {"digest": digest, "epoch": plan.epoch, "body": encode_plan(plan).decode()}
        with begin(self._engine) as connection:
            known = select(plans.c.digest).where(plans.c.digest == digest)
            if connection.execute(known).first() is None:
                connection.execute(insert(plans).values(row))

    def plan(self, stream: str) -> RolloutPlan:
        """Return the plan that an epoch was started with.

        Raises:
            Refused: `epoch-unknown`, `ledger-damaged`.
            Failed: `ledger-unavailable`.
        """
        with begin(self._engine) as connection:
            return plan_of(connection, stream)

    def read(self, stream: str, *, after: int = 0) -> tuple[Recorded, ...]:
        """Return the stream's events above `after`. Source: `Ledger.read`.

        Raises:
            Refused: `ledger-damaged`.
            Failed: `ledger-unavailable`.
        """
        with begin(self._engine) as connection:
            found = connection.execute(
                select(events_table.c.seq, events_table.c.fence, events_table.c.body)
                .where(events_table.c.stream == stream, events_table.c.seq > after)
                .order_by(events_table.c.seq)
            ).all()
        return tuple(
            Recorded(seq=row.seq, fence=row.fence, event=decode_event(row.body)) for row in found
        )

    def foreign_holds(self, stream: str) -> frozenset[str]:
        """Return the nodes that no epoch holds but somebody else. Source: `Ledger.foreign_holds`.

        Raises:
            Failed: `ledger-unavailable`.
        """
        del stream
        with begin(self._engine) as connection:
            held = select(holds.c.node).where(holds.c.owner.not_in(_STREAMS)).distinct()
            return frozenset(connection.execute(held).scalars())

    def permits(self, stream: str) -> frozenset[str]:
        """Return the nodes whose permits `stream` has out."""
        with begin(self._engine) as connection:
            out = select(permits.c.node).where(permits.c.stream == stream)
            return frozenset(connection.execute(out).scalars())

    def _with_reserve(self, work: Callable[[], Result]) -> Result:
        """Do `work`; if the disk is full, give the reserve back and do it once more."""
        try:
            return work()
        except CapsuleError as error:
            if (
                error.error_id != "ledger-full"
                or self._reserve is None
                or not self._reserve.release()
            ):
                raise
            return work()

    @staticmethod
    def _set_expiry(connection: Connection, lease: Lease, expires_ms: int) -> None:
        connection.execute(
            update(leases)
            .where(leases.c.scope == lease.scope, leases.c.fence == lease.fence)
            .values(expires_ms=expires_ms)
        )

    def place_hold(self, node: str, owner: str) -> None:
        """Hold a node for an owner that is no rollout; repeating it changes nothing."""
        with begin(self._engine) as connection:
            key = (holds.c.node == node, holds.c.owner == owner)
            if connection.execute(select(holds.c.node).where(*key)).first() is None:
                connection.execute(insert(holds).values(node=node, owner=owner))

    def remove_hold(self, node: str, owner: str) -> None:
        """Remove the owner's hold of a node, and nobody else's."""
        with begin(self._engine) as connection:
            connection.execute(delete(holds).where(holds.c.node == node, holds.c.owner == owner))


def _highest_rebuilt(connection: Connection) -> int:
    # Hosts have seen fences of a ledger that is lost: no new scope begins below them.
    return connection.execute(select(func.max(node_facts.c.fence))).scalar_one() or 0


def _check_fence(connection: Connection, lease: Lease) -> None:
    # Locked until the end of the transaction: a newer controller waits, then finds what we wrote.
    current = connection.execute(
        select(leases.c.fence).where(leases.c.scope == lease.scope).with_for_update()
    ).scalar_one_or_none()
    if current != lease.fence:
        raise fence_stale(lease.scope, newest=current or 0, own=lease.fence)


def _tail(connection: Connection, stream: str) -> tuple[int, str]:
    row = connection.execute(
        select(events_table.c.seq, events_table.c.digest)
        .where(events_table.c.stream == stream)
        .order_by(events_table.c.seq.desc())
        .limit(1)
    ).one_or_none()
    return (row.seq, row.digest) if row else (0, GENESIS)


def _change_rows(connection: Connection, stream: str, rows: Rows) -> None:
    own = select(members.c.node).where(members.c.stream == stream)
    still_open = set(connection.execute(own).scalars()) if rows.opened else set()
    fresh = [name for name in rows.opened if name not in still_open]
    _add(connection, members, stream, fresh, epoch_unfinished)
    _add(connection, permits, stream, rows.taken, permit_taken)
    if rows.taken:
        # A hold that this or an ended epoch left is taken over; a person's stays beside it.
        connection.execute(
            delete(holds).where(holds.c.node.in_(rows.taken), holds.c.owner.in_(_STREAMS))
        )
        connection.execute(insert(holds), [{"node": name, "owner": stream} for name in rows.taken])
    _drop(connection, permits, stream, (*rows.returned, *rows.kept))
    if rows.returned:
        connection.execute(
            delete(holds).where(holds.c.node.in_(rows.returned), holds.c.owner == stream)
        )
    _drop(connection, members, stream, rows.closed)


def _add(
    connection: Connection,
    table: Table,
    stream: str,
    names: Sequence[str],
    refusal: Callable[[str, str], Refused],
) -> None:
    if not names:
        return
    taken = connection.execute(
        select(table.c.node, table.c.stream)
        .where(table.c.node.in_(names))
        .order_by(table.c.node)
        .with_for_update()
    ).first()
    if taken is not None:
        raise refusal(taken.node, taken.stream)
    try:
        connection.execute(insert(table), [{"node": name, "stream": stream} for name in names])
    except IntegrityError as error:
        # Somebody was quicker by less than a read: whose it is can be asked, not told from here.
        raise refusal(", ".join(names), "unknown") from error


def _drop(connection: Connection, table: Table, stream: str, names: Sequence[str]) -> None:
    if names:
        connection.execute(delete(table).where(table.c.node.in_(names), table.c.stream == stream))
