"""A ledger of the version before is brought to this one, with all that is in it."""

import sqlite3

import pytest
from sqlalchemy import inspect

from capsule.ledger.audit import audit_ledger
from capsule.ledger.engine import begin, open_engine
from capsule.ledger.schema import SCHEMA_VERSION, migrate
from capsule.ledger.store import SqlLedger
from capsule.ledger.tables import METADATA
from support.postgres import running_cluster


@pytest.fixture(scope="module")
def cluster():
    with running_cluster() as made:
        yield made


@pytest.fixture(params=["sqlite", "postgres"])
def engine(request, tmp_path):
    if request.param == "sqlite":
        address = str(tmp_path / "ledger.db")
    else:
        address = request.getfixturevalue("cluster").new_database()
    made = open_engine(address)
    yield made
    made.dispose()


def versions(engine):
    with begin(engine) as connection:
        found = connection.exec_driver_sql("SELECT key, value FROM schema_info").all()
    return {row[0]: row[1] for row in found}


def test_the_version_before_is_upgraded_with_all_its_rows(engine):
    migrate(engine, to="0001")
    assert versions(engine) == {"version": 1, "min_reader": 1}
    assert not inspect(engine).has_table("plans")
    old = SqlLedger(engine)
    old.add_nodes(["n1", "n2"])
    with begin(engine) as connection:
        connection.exec_driver_sql("INSERT INTO leases VALUES ('fleet', 'c1', 7, 0)")
        connection.exec_driver_sql("INSERT INTO holds VALUES ('n2', 'alice')")
    migrate(engine)
    assert versions(engine) == {"version": SCHEMA_VERSION, "min_reader": 2}
    new = SqlLedger(engine)
    assert new.node_names() == ("n1", "n2")
    assert new.foreign_holds("e1") == {"n2"}
    assert new.acquire("fleet", "c2", takeover=False).fence == 8
    assert audit_ledger(engine).events == 0


def test_step_by_step_and_at_once_give_the_same_tables(engine):
    migrate(engine, to="0001")
    migrate(engine)
    found = inspect(engine)
    assert set(found.get_table_names()) == {*METADATA.tables, "alembic_version"}
    for name, table in METADATA.tables.items():
        assert [c["name"] for c in found.get_columns(name)] == [c.name for c in table.columns]


@pytest.mark.parametrize("statement", ["DELETE FROM plans", "UPDATE plans SET epoch = 'e2'"])
def test_a_plan_is_never_changed_or_deleted(tmp_path, statement):
    engine = open_engine(str(tmp_path / "ledger.db"))
    migrate(engine)
    with begin(engine) as connection:
        connection.exec_driver_sql("INSERT INTO plans VALUES ('d', 'e1', '{}')")
    engine.dispose()
    connection = sqlite3.connect(tmp_path / "ledger.db")
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute(statement)
    connection.close()
