"""The tables of the ledger; one definition for SQLite and PostgreSQL.

Events are appended and never changed, nodes are never deleted: the database itself refuses, by the
triggers of the first migration, whatever program asks.
"""

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
)

__all__ = [
    "METADATA",
    "events",
    "holds",
    "leases",
    "members",
    "node_facts",
    "nodes",
    "permits",
    "plans",
    "schema",
]

METADATA = MetaData()

schema = Table(
    "schema_info",
    METADATA,
    Column("key", String(32), primary_key=True),
    Column("value", Integer, nullable=False),
)

leases = Table(
    "leases",
    METADATA,
    Column("scope", String(128), primary_key=True),
    Column("holder", String(256), nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("expires_ms", BigInteger, nullable=False),
)

events = Table(
    "events",
    METADATA,
    Column("stream", String(128), nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("body", Text, nullable=False),
    Column("digest", String(71), nullable=False),
    PrimaryKeyConstraint("stream", "seq"),
)

nodes = Table(
    "nodes",
    METADATA,
    Column("node", String(63), primary_key=True),
)

# A node is open in at most one stream: its primary key is the node alone.
members = Table(
    "open_members",
    METADATA,
    Column("node", String(63), ForeignKey("nodes.node"), primary_key=True),
    Column("stream", String(128), nullable=False),
)

permits = Table(
    "permits",
    METADATA,
    Column("node", String(63), ForeignKey("nodes.node"), primary_key=True),
    Column("stream", String(128), nullable=False),
)

holds = Table(
    "holds",
    METADATA,
    Column("node", String(63), ForeignKey("nodes.node"), nullable=False),
    Column("owner", String(128), nullable=False),
    PrimaryKeyConstraint("node", "owner"),
)

# Added by version 2.
plans = Table(
    "plans",
    METADATA,
    Column("digest", String(71), primary_key=True),
    Column("epoch", String(128), nullable=False),
    Column("body", Text, nullable=False),
)

# What hosts' receipts said when a lost ledger was rebuilt; the events of `REBUILT` say the same.
node_facts = Table(
    "node_facts",
    METADATA,
    Column("node", String(63), ForeignKey("nodes.node"), primary_key=True),
    Column("node_key", String(128), nullable=False),
    Column("generation", String(128), nullable=False),
    Column("fence", BigInteger, nullable=False),
)
