"""Bring a ledger to the schema that this code writes; forward only.

Source: design, section 9, on migrations: they are additive until every reader is new enough.
"""

from pathlib import Path
from typing import Final

from alembic.command import upgrade
from alembic.config import Config
from sqlalchemy import Engine, inspect, select

from capsule.ledger.engine import begin
from capsule.ledger.tables import schema
from capsule_manifest.errors import Refused

__all__ = ["SCHEMA_VERSION", "migrate"]

SCHEMA_VERSION: Final = 2


def migrate(engine: Engine, *, to: str = "head") -> None:
    """Apply the migrations that are missing, as far as revision `to`.

    Raises:
        Refused: `ledger-too-new` when the ledger's `min_reader` is above this code's version.
        Failed: `ledger-unavailable`, `ledger-full`.
    """
    with begin(engine) as connection:
        if inspect(connection).has_table(schema.name):
            needed = connection.execute(
                select(schema.c.value).where(schema.c.key == "min_reader")
            ).scalar_one()
            if needed > SCHEMA_VERSION:
                raise Refused(
                    "ledger-too-new",
                    "the ledger was written by a newer capsule",
                    expected=f"schema version {needed} or newer",
                    got=SCHEMA_VERSION,
                )
        config = Config()
        config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
        config.attributes["connection"] = connection
        upgrade(config, to)
