"""The ledger of a real rollout: checked, lost, made again from the hosts, and rolled out with."""

import json
from pathlib import Path

import pytest

from support.ledgers import tamper
from support.rollout_desk import RolloutDesk

pytestmark = pytest.mark.timeout(180)
REBUILD = ("ledger", "rebuild", "--from-hosts", "--controller-key", "controller.key", "--json")


@pytest.fixture
def desk(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = RolloutDesk(tmp_path, capsys, {"a": ["n1"], "b": ["n2"]}, max_unavailable=1)
    yield made
    made.stop()


def roll_out(desk, counter):
    mini = desk.capsule(counter)
    desk.stage(counter)
    code, found = desk.preflight(counter)
    assert code == 0, found
    code, _, err = desk.rollout("start", counter)
    assert code == 0, err
    return mini


def ledger_path(tmp_path):
    (path,) = (tmp_path / "state").rglob("ledger.sqlite")
    return path


def verified(desk):
    code, out, _ = desk.run("ledger", "verify", "--json")
    return code, json.loads(out)


def test_the_ledger_of_a_rollout_is_whole_and_a_changed_event_is_found(desk, tmp_path):
    roll_out(desk, 1)
    code, document = verified(desk)
    assert (code, document["epochs"], document["nodes"], document["lanes"]) == (0, 1, 2, 2)
    tamper(ledger_path(tmp_path), "UPDATE events SET body = replace(body, 'n1', 'n2')")
    code, document = verified(desk)
    assert (code, document["error"]) == (10, "ledger-damaged")
    assert ", event " in document["where"]


def test_a_lost_ledger_is_made_again_and_the_next_rollout_goes_on_from_it(desk, tmp_path):
    first = roll_out(desk, 1)
    path = ledger_path(tmp_path)
    for item in path.parent.glob("ledger.sqlite*"):
        item.unlink()
    code, out, err = desk.run(*REBUILD)
    assert code == 0, err
    rebuilt = json.loads(out)
    for node in ("n1", "n2"):
        row = rebuilt["nodes"][node]
        assert (row["generation"], row["source"]) == (first.generation, "host")
        assert not row["held"]
        assert row["fence"] < rebuilt["fence"]
    assert verified(desk)[1]["events"] == 2
    second = roll_out(desk, 2)
    assert {desk.current(node) for node in ("n1", "n2")} == {second.generation}
    code, document = verified(desk)
    assert (code, document["epochs"], document["streams"]) == (0, 1, 2)
    shown = json.loads(desk.run("ledger", "show", "--json")[1])
    (lease,) = shown["leases"]
    assert lease["fence"] > rebuilt["fence"]
    assert not Path(str(path) + "-reserve").stat().st_size % 4096
