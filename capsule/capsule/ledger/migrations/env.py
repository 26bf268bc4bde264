"""Run migrations over the connection that `capsule.ledger.schema` hands in."""

from alembic import context

from capsule.ledger.tables import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    # A migration that failed half-way must leave nothing, also where DDL is transactional.
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
