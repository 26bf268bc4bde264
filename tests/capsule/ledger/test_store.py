"""What the database itself refuses, and what an audit finds."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from capsule.lane.events import Started
from capsule.lane.node import StageSeen
from capsule.lane.ports import Rows
from capsule.ledger.audit import audit_ledger
from capsule.ledger.codec import EVENT_CLASSES, decode_any, decode_event, encode_event
from capsule.ledger.engine import begin, open_engine
from capsule.ledger.location import filesystem_of
from capsule.ledger.schema import migrate
from capsule.ledger.store import SqlLedger
from capsule_manifest.errors import ExitCode, Failed, Refused


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> Iterator[SqlLedger]:
    engine = open_engine(str(path))
    migrate(engine)
    store = SqlLedger(engine)
    store.add_nodes(["n1", "n2"])
    lease = store.acquire("fleet", "c1", takeover=False)
    started = Started(plan="sha256:" + "a" * 64, fence=1)
    store.append(
        lease, "e1", expected_seq=0, events=[started, StageSeen("n1"), StageSeen("n2")],
        rows=Rows(opened=("n1", "n2")),
    )  # fmt: skip
    yield store
    engine.dispose()


def tamper(path: Path, *statements: str) -> None:
    """Change the ledger as somebody with the file and no scruples would."""
    connection = sqlite3.connect(path)
    for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'"):
        connection.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM nodes",
        "DELETE FROM nodes WHERE node = 'n1'",
        "UPDATE nodes SET node = 'other'",
        "REPLACE INTO events SELECT stream, seq, 9, body, digest FROM events",
        "DELETE FROM events",
        "UPDATE events SET body = '{}'",
    ],
)
@pytest.mark.usefixtures("ledger")
def test_the_database_itself_refuses_to_lose_a_node_or_an_event(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA recursive_triggers = ON")
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute(statement)
    connection.close()


@pytest.mark.usefixtures("ledger")
def test_a_whole_ledger_passes_its_audit(path: Path) -> None:
    engine = open_engine(str(path))
    assert audit_ledger(engine).events == 3
    engine.dispose()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET body = replace(body, 'n1', 'n2') WHERE seq = 2",
        "DELETE FROM events WHERE seq = 2",
        "DELETE FROM events WHERE seq = 1",
        "UPDATE events SET fence = 9 WHERE seq = 3",
        "UPDATE events SET digest = 'sha256:' || substr(digest, 8, 63) || '0' WHERE seq = 3",
        "UPDATE events SET stream = 'e2'",
        "UPDATE events SET seq = 10 - seq",
    ],
)
@pytest.mark.usefixtures("ledger")
def test_an_audit_finds_every_change_of_an_event(path: Path, statement: str) -> None:
    tamper(path, statement)
    engine = open_engine(str(path))
    with pytest.raises(Refused) as caught:
        audit_ledger(engine)
    assert (caught.value.error_id, caught.value.exit_code) == (
        "ledger-damaged",
        ExitCode.INTEGRITY,
    )
    engine.dispose()


def test_every_event_class_survives_its_journey_and_the_list_is_pinned() -> None:
    values = {"str": "x", "bool": True, "int": 7}
    for name, kind in EVENT_CLASSES.items():
        fields = {
            field: values[getattr(info.type, "__name__", str(info.type))]
            for field, info in kind.__dataclass_fields__.items()
        }
        event = kind(**fields)
        assert decode_any(encode_event(event)) == event, name
    assert len(EVENT_CLASSES) == 36, "an event came or went: old ledgers must still be readable"


@pytest.mark.parametrize("text", ["{}", "[]", "x", '{"event":"Nobody"}', '{"event":"StageSeen"}'])
def test_an_event_that_can_not_be_read_is_damage(text: str) -> None:
    with pytest.raises(Refused) as caught:
        decode_event(text)
    assert caught.value.error_id == "ledger-damaged"


def test_migrating_twice_changes_nothing_and_a_newer_ledger_is_refused(path: Path) -> None:
    engine = open_engine(str(path))
    migrate(engine)
    migrate(engine)
    with begin(engine) as connection:
        connection.exec_driver_sql("UPDATE schema_info SET value = 99 WHERE key = 'min_reader'")
    with pytest.raises(Refused) as caught:
        migrate(engine)
    assert caught.value.error_id == "ledger-too-new"
    engine.dispose()


MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/root rw
30 22 0:40 / /srv/shared rw - nfs4 server:/export rw
31 30 0:41 / /srv/shared/local rw - tmpfs tmpfs rw
32 22 0:42 / /mnt/with\\040space rw - fuse.sshfs user@host: rw
"""


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        ("/var/lib/ledger.db", "ext4"),
        ("/srv/shared/ledger.db", "nfs4"),
        ("/srv/shared/local/ledger.db", "tmpfs"),
        ("/srv/sharedness/ledger.db", "ext4"),
        ("/mnt/with space/ledger.db", "fuse.sshfs"),
    ],
)
def test_the_file_system_of_a_path_is_that_of_its_closest_mount(place: str, kind: str) -> None:
    assert filesystem_of(Path(place), MOUNTS) == kind


def test_a_network_file_system_is_refused_with_its_type() -> None:
    from capsule.ledger.location import check_location

    for place in ("/srv/shared/ledger.db", "/mnt/with space/ledger.db"):
        with pytest.raises(Refused) as caught:
            check_location(Path(place), MOUNTS)
        assert caught.value.error_id == "ledger-on-network"
        assert caught.value.got


def test_an_address_of_another_kind_is_refused_without_its_password() -> None:
    with pytest.raises(Refused) as caught:
        open_engine("mysql://user:secret@host/db")
    assert caught.value.error_id == "ledger-address"
    assert "secret" not in str(caught.value)


def test_a_full_disk_is_told_apart_and_loses_nothing(path: Path, ledger: SqlLedger) -> None:
    engine = open_engine(str(path))
    lease = ledger.acquire("fleet", "c1", takeover=True)
    store = SqlLedger(engine)
    with begin(engine) as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
    # The limit is the connection's own, and the pool hands out one connection here.
    with engine.connect() as connection:
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
    seq = 3
    with pytest.raises(Failed) as caught:
        for _ in range(10_000):
            seq = store.append(
                lease, "e1", expected_seq=seq, events=[StageSeen("n1")] * 50, rows=Rows()
            )
    assert (caught.value.error_id, caught.value.exit_code) == ("ledger-full", ExitCode.SPACE)
    assert len(ledger.read("e1")) == seq
    engine.dispose()


def test_durability_settings_are_in_force(path: Path, ledger: SqlLedger) -> None:
    assert ledger.node_names() == ("n1", "n2")
    engine = open_engine(str(path))
    with begin(engine) as connection:
        settings = [
            connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in ("journal_mode", "synchronous", "foreign_keys")
        ]
    assert settings == ["wal", 2, 1]
    engine.dispose()
