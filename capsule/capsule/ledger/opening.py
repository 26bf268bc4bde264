"""Open a ledger by its address, brought to this version's schema, with its reserve."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from capsule.ledger.engine import open_engine
from capsule.ledger.reserve import Reserve
from capsule.ledger.schema import migrate
from capsule.ledger.store import SqlLedger
from capsule_manifest.errors import Failed, Refused

__all__ = ["open_ledger", "reserve_path"]


@contextmanager
def open_ledger(address: str, *, create: bool) -> Iterator[SqlLedger]:
    """Open a ledger for the length of a block.

    With `create` a SQLite file that is not there is made, and its reserve is set aside if there is
    space for it: an adopter has to be able to go on without.

    Raises:
        Refused: `ledger-missing`, `ledger-address`, `ledger-on-network`, `ledger-too-new`.
        Failed: `ledger-unavailable`, `ledger-full`.
    """
    is_file = "://" not in address
    if is_file and not create and not Path(address).exists():
        raise Refused("ledger-missing", "there is no ledger", got=address)
    engine = open_engine(address)
    try:
        migrate(engine)
        reserve = Reserve(reserve_path(address)) if is_file else None
        if reserve is not None and create:
            with suppress(Failed):
                reserve.require()
        yield SqlLedger(engine, reserve=reserve)
    finally:
        engine.dispose()


def reserve_path(address: str) -> Path:
    """Return where the reserve of a SQLite ledger lies: on the ledger's own file system."""
    path = Path(address).absolute()
    return path.with_name(f"{path.name}-reserve")
