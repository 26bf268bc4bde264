"""Connections to the ledger: SQLite by default, PostgreSQL by address, one way to use both.

SQLite runs in WAL mode with full synchronisation: a commit that returned survives power loss. A
transaction takes the write lock when it begins, so that two controllers queue instead of failing in
the middle.
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.pool import ConnectionPoolEntry

from capsule.ledger.location import check_location
from capsule_manifest.errors import Failed, Refused

__all__ = ["begin", "database_ms", "open_engine", "snapshot"]

_BUSY_S: Final = 30
_MOUNTINFO: Final = Path("/proc/self/mountinfo")


def open_engine(address: str) -> Engine:
    """Open a ledger: a path for SQLite, or `postgresql://…`. The caller disposes of it.

    Raises:
        Refused: `ledger-on-network`, `ledger-address`.
    """
    if address.startswith("postgresql://"):
        url = make_url(address).set(drivername="postgresql+psycopg")
        # A server that was restarted has closed its connections: each is tried before its use.
        # READ COMMITTED is enough: the lease's row is locked first, and primary keys decide races
        # between scopes. SERIALIZABLE would only make controllers retry.
        return create_engine(url, pool_pre_ping=True)
    if "://" in address:
        raise Refused(
            "ledger-address",
            "the ledger's address is of an unknown kind",
            expected="a path, or postgresql://…",
            got=make_url(address).render_as_string(hide_password=True),
        )
    path = Path(address).absolute()
    check_location(path, _MOUNTINFO.read_text(encoding="utf-8"))
    engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": _BUSY_S})
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_immediate)
    return engine


@contextmanager
def begin(engine: Engine) -> Iterator[Connection]:
    """Run one transaction; it is durable when the block has ended.

    Raises:
        Failed: `ledger-full`, `ledger-unavailable`; the second can be tried again.
    """
    try:
        with engine.begin() as connection:
            yield connection
    except OperationalError as error:
        if "full" in str(error.orig).lower() or "no space" in str(error.orig).lower():
            raise Failed("ledger-full", "the ledger's disk is full") from error
        raise _unavailable(error) from error
    except DBAPIError as error:
        if error.connection_invalidated:
            raise _unavailable(error) from error
        raise


@contextmanager
def snapshot(engine: Engine) -> Iterator[Connection]:
    """Run one transaction that sees a single moment, whoever writes meanwhile.

    Raises:
        Failed: as `begin`.
    """
    if engine.dialect.name == "postgresql":
        engine = engine.execution_options(isolation_level="REPEATABLE READ")
    with begin(engine) as connection:
        yield connection


def database_ms(connection: Connection) -> int:
    """Return milliseconds of the one clock that all controllers of this ledger share.

    With PostgreSQL that is the server's; with SQLite all controllers are on one machine, whose boot
    clock no administrator can set back.
    """
    if connection.dialect.name == "postgresql":
        now = text("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint")
        return int(connection.execute(now).scalar_one())
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def _prepare_sqlite(connection: sqlite3.Connection, _record: ConnectionPoolEntry) -> None:
    # The driver's own transactions begin late and take the write lock later still.
    connection.isolation_level = None
    for setting in (
        "journal_mode = WAL",
        "synchronous = FULL",
        "foreign_keys = ON",
        f"busy_timeout = {_BUSY_S * 1000}",
    ):
        connection.execute(f"PRAGMA {setting}")


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _unavailable(error: DBAPIError) -> Failed:
    return Failed(
        "ledger-unavailable",
        "the ledger did not answer",
        got=type(error.orig).__name__,
        retryable=True,
    )
