"""The first schema, and what the database itself refuses."""

from alembic import op

from capsule.ledger.tables import (
    METADATA,
    events,
    holds,
    leases,
    members,
    nodes,
    permits,
    schema,
)

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

MIN_READER = 1
"""The oldest schema version whose code may read and write this one."""

# What must not happen, whatever program asks: (table, statement, message).
FORBIDDEN = (
    ("nodes", "DELETE", "a node is never deleted"),
    ("nodes", "UPDATE", "a node id is never changed"),
    ("events", "DELETE", "an event is never deleted"),
    ("events", "UPDATE", "an event is never changed"),
)


def upgrade() -> None:
    """Create the tables and the triggers."""
    bind = op.get_bind()
    # By name: what later versions added has a migration of its own.
    METADATA.create_all(bind, tables=[schema, leases, events, nodes, members, permits, holds])
    op.bulk_insert(
        schema, [{"key": "version", "value": 1}, {"key": "min_reader", "value": MIN_READER}]
    )
    if bind.dialect.name == "postgresql":
        _postgresql()
    else:
        _sqlite()


def _sqlite() -> None:
    for table, statement, message in FORBIDDEN:
        op.execute(
            f"CREATE TRIGGER {table}_{statement.lower()} BEFORE {statement} ON {table} "
            f"BEGIN SELECT RAISE(ABORT, '{message}'); END"
        )


def _postgresql() -> None:
    for table, statement, message in FORBIDDEN:
        name = f"{table}_{statement.lower()}"
        op.execute(
            f"CREATE FUNCTION refuse_{name}() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION '{message}'; END $$"
        )
        op.execute(
            f"CREATE TRIGGER {name} BEFORE {statement} ON {table} "
            f"FOR EACH ROW EXECUTE FUNCTION refuse_{name}()"
        )
        if statement == "DELETE":
            op.execute(
                f"CREATE TRIGGER {table}_truncate BEFORE TRUNCATE ON {table} "
                f"FOR EACH STATEMENT EXECUTE FUNCTION refuse_{name}()"
            )
