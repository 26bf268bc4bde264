"""Plans beside the epochs, and what a rebuild learned of nodes."""

from alembic import op
from sqlalchemy import update

from capsule.ledger.tables import METADATA, node_facts, plans, schema

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

VERSION = 2
MIN_READER = 2
"""Code of version 1 would start epochs without their plans, which an adopter then lacks."""

FORBIDDEN = (
    ("plans", "DELETE", "a plan is never deleted"),
    ("plans", "UPDATE", "a plan is never changed"),
)


def upgrade() -> None:
    """Create the tables, their triggers, and the new version's row."""
    bind = op.get_bind()
    METADATA.create_all(bind, tables=[plans, node_facts])
    for key, value in (("version", VERSION), ("min_reader", MIN_READER)):
        bind.execute(update(schema).where(schema.c.key == key).values(value=value))
    for table, statement, message in FORBIDDEN:
        name = f"{table}_{statement.lower()}"
        if bind.dialect.name == "postgresql":
            op.execute(
                f"CREATE FUNCTION refuse_{name}() RETURNS trigger LANGUAGE plpgsql AS "
                f"$$ BEGIN RAISE EXCEPTION '{message}'; END $$"
            )
            op.execute(
                f"CREATE TRIGGER {name} BEFORE {statement} ON {table} "
                f"FOR EACH ROW EXECUTE FUNCTION refuse_{name}()"
            )
        else:
            op.execute(
                f"CREATE TRIGGER {name} BEFORE {statement} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{message}'); END"
            )
