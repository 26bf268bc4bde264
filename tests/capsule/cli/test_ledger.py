"""`capsule ledger`, as an operator calls it."""

import json
import sqlite3
from pathlib import Path

import pytest

from capsule_manifest.errors import Refused
from sim.fleet import Simulation
from support.desk import Desk
from support.ledgers import opened, record_epoch, tamper

KEY = ("--controller-key", "controller.key")
REBUILD = ("ledger", "rebuild", "--from-hosts", *KEY)


@pytest.fixture
def desk(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Desk(tmp_path, capsys)


@pytest.fixture
def installed(desk):
    """Two hosts on which one capsule was installed."""
    assert desk.run(*desk.stage("--lane", "all"))[0] == 0
    for node in ("n1", "n2"):
        assert desk.run(*desk.install("--node", node))[0] == 0
    return desk


@pytest.fixture
def written(desk):
    """A ledger with one epoch of twelve nodes, parked with a held one."""
    simulation = Simulation(9, 12)
    simulation.run()
    with opened(Path("some.db")) as ledger:
        events = [r.event for r in simulation.ledger.read("e9")]
        record_epoch(ledger, simulation.plan, events)
    return desk, len(events)


def test_a_whole_ledger_is_verified_with_what_was_recomputed(written):
    desk, length = written
    code, document = desk.json("ledger", "verify", "--ledger", "some.db")
    assert (code, document["events"], document["epochs"]) == (0, length, 1)
    assert (document["nodes"], document["violations"]) == (12, 0)
    code, out, _ = desk.run("ledger", "verify", "--ledger", "some.db")
    assert code == 0
    assert out.startswith(f"whole: {length} events in 1 stream; recomputed 1 epoch, ")


@pytest.mark.parametrize(
    ("statement", "where"),
    [
        ("UPDATE events SET body = replace(body, 'n0', 'n1') WHERE seq = 7", "e9, event 7"),
        ("DELETE FROM events WHERE seq = 5", "e9, event 6"),
        ("DELETE FROM holds", "holds, n0008"),
    ],
)
def test_a_damaged_ledger_is_exit_code_10_and_names_the_first_wrong_row(written, statement, where):
    desk, _ = written
    tamper(Path("some.db"), statement)
    code, document = desk.json("ledger", "verify", "--ledger", "some.db")
    assert (code, document["error"]) == (10, "ledger-damaged")
    assert where in document["where"]


def test_a_ledger_that_is_not_there_is_not_made_by_looking_at_it(desk):
    for verb in ("verify", "show"):
        assert desk.json("ledger", verb, "--ledger", "none.db")[1]["error"] == "ledger-missing"
    assert not Path("none.db").exists()


def test_epochs_leases_and_holds_are_shown(written):
    desk, length = written
    code, document = desk.json("ledger", "show", "--ledger", "some.db")
    (epoch,) = document["epochs"]
    assert (code, epoch["epoch"], epoch["tenure"], epoch["events"]) == (0, "e9", "parked", length)
    assert epoch["nodes"]["n0008"]["state"] == "held"
    assert document["holds"] == [{"node": "n0008", "owner": "e9"}]
    assert len(document["nodes"]) == 12
    out = desk.run("ledger", "show", "--ledger", "some.db")[1]
    assert "1 held" in out
    assert "hold on n0008" in out


def test_the_events_of_an_epoch_are_shown_in_order(written):
    desk, length = written
    code, document = desk.json("ledger", "show", "e9", "--ledger", "some.db")
    assert (code, [e["seq"] for e in document["events"]]) == (0, list(range(1, length + 1)))
    assert document["events"][0]["event"] == "Started"
    assert (
        len(desk.run("ledger", "show", "e9", "--ledger", "some.db")[1].splitlines()) == length + 1
    )
    assert desk.json("ledger", "show", "e8", "--ledger", "some.db")[0] == 2


def test_a_lost_ledger_is_rebuilt_from_what_hosts_have_signed(installed):
    desk = installed
    code, document = desk.json(*REBUILD)
    assert code == 0
    fence = json.loads(Path("hosts/n1/fake.json").read_text())["fence"]
    assert document["fence"] == fence + 1
    for node in ("n1", "n2"):
        row = document["nodes"][node]
        assert (row["generation"], row["source"]) == (desk.mini.generation, "host")
        assert (row["fence"], row["held"], row["receipts"]) == (fence, False, 3)
    assert desk.json("ledger", "verify")[1]["events"] == 2
    events = desk.json("ledger", "show", "rebuilt:nodes")[1]["events"]
    assert [(e["event"], e["node"]) for e in events] == [
        ("NodeRebuilt", "n1"),
        ("NodeRebuilt", "n2"),
    ]


def test_a_new_controller_of_a_rebuilt_ledger_is_above_every_hosts_fence(installed):
    desk = installed
    document = desk.json(*REBUILD, "--ledger", "new.db")[1]
    with opened(Path("new.db")) as ledger:
        for scope in ("acme/hello", "another"):
            lease = ledger.acquire(scope, "c1", takeover=False)
            assert lease.fence > max(row["fence"] for row in document["nodes"].values())


def test_a_ledger_that_knows_something_is_never_rebuilt(installed):
    desk = installed
    assert desk.run(*REBUILD)[0] == 0
    code, document = desk.json(*REBUILD)
    assert (code, document["error"]) == (3, "ledger-not-empty")


def test_copies_speak_for_a_host_that_does_not_answer_and_the_node_is_held(installed):
    desk = installed
    assert desk.run("receipts", "verify", "--lane", "all", *KEY)[0] == 0
    desk.behave("n2", die={"hello": 0}, refuse={"hello": "host-busy"})
    code, document = desk.json(*REBUILD)
    assert code == 0, document
    assert document["nodes"]["n2"]["source"] == "copies"
    assert document["nodes"]["n2"]["held"]
    assert document["nodes"]["n2"]["generation"] == desk.mini.generation
    assert desk.json("ledger", "show")[1]["holds"] == [{"node": "n2", "owner": "rebuild"}]


def test_a_host_with_another_key_rebuilds_nothing(installed):
    desk = installed
    desk.behave("n2", lie="key")
    code, document = desk.json(*REBUILD)
    assert (code, document["nodes"]["n2"]["error"]) == (10, "node-key-changed")
    assert desk.json("ledger", "show")[1]["error"] == "ledger-missing"


def test_a_host_that_tells_its_past_differently_rebuilds_nothing(installed):
    desk = installed
    assert desk.run("receipts", "verify", "--lane", "all", *KEY)[0] == 0
    path = Path("hosts/n2/fake.json")
    state = json.loads(path.read_text())
    path.write_text(json.dumps({**state, "receipts": state["receipts"][:1]}))
    code, document = desk.json(*REBUILD)
    assert (code, document["nodes"]["n2"]["error"]) == (10, "record-chain-broken")


def test_a_node_that_was_never_met_rebuilds_nothing(desk):
    code, document = desk.json(*REBUILD)
    assert code == 3
    assert {row["error"] for row in document["nodes"].values()} == {"node-unmet"}


def test_what_a_rebuild_learned_is_compared_with_its_events(installed):
    desk = installed
    assert desk.run(*REBUILD, "--ledger", "new.db")[0] == 0
    connection = sqlite3.connect("new.db")
    connection.execute("UPDATE node_facts SET fence = 0 WHERE node = 'n2'")
    connection.commit()
    connection.close()
    code, document = desk.json("ledger", "verify", "--ledger", "new.db")
    assert (code, document["where"]) == (10, "node_facts, n2")


def test_a_ledger_on_a_network_file_system_is_refused_and_not_made(desk, tmp_path, monkeypatch):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        f"22 1 254:0 / / rw - ext4 /dev/root rw\n30 22 0:40 / {tmp_path} rw - nfs4 s:/ rw\n"
    )
    monkeypatch.setattr("capsule.ledger.engine._MOUNTINFO", mounts)
    with pytest.raises(Refused) as caught, opened(tmp_path / "new.db"):
        pass
    assert (caught.value.error_id, caught.value.exit_code) == ("ledger-on-network", 3)
    assert (caught.value.got, caught.value.where) == ("nfs4", str(tmp_path / "new.db"))
    assert not (tmp_path / "new.db").exists()
    Path("old.db").touch()
    assert desk.json("ledger", "verify", "--ledger", "old.db")[0] == 3
