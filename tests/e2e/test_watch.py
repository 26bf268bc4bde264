"""An epoch that is followed from beside its controller: lines for people, events for programs."""

import json
import time

import pytest

from support.rollout_desk import BROKEN, RolloutDesk

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def desk(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    desk = RolloutDesk(tmp_path, capsys, {"a": ["n1"]})
    desk.capsule(1)
    desk.stage(1)
    assert desk.preflight(1)[0] == 0
    code, _, err = desk.rollout("start", 1)
    assert code == 0, err
    yield desk
    desk.stop()


def test_an_epoch_is_told_a_line_a_change_where_there_is_no_screen(desk):
    code, out, _ = desk.run("rollout", "watch", "--policy", "trust.json")
    assert code == 0
    lines = out.splitlines()
    assert [line.split()[0] for line in lines] == [str(n + 1) for n in range(len(lines))]
    told = [line.split(maxsplit=1)[1] for line in lines]
    assert told[0] == "epoch: started"
    assert told.index("n1: stop intended") < told.index("n1: commit seen")
    assert "\x1b" not in out


def test_an_epoch_is_told_as_events_with_the_times_at_which_they_were_recorded(desk):
    began_ms = int(time.time() * 1000)
    code, out, _ = desk.run("rollout", "watch", "--policy", "trust.json", "--json")
    assert code == 0
    events = [json.loads(line) for line in out.splitlines()]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert {event["schema"] for event in events} == {1}
    assert [event["event"] for event in events].count("CommitSeen") == 1
    times = [event["at_ms"] for event in events]
    assert times == sorted(times)
    assert times[-1] < began_ms


def test_the_status_says_as_json_what_a_window_is_allowed(desk):
    _, state = desk.json("rollout", "status", "--policy", "trust.json")
    budget = state["budget"]
    longest = max(budget["d1_ms"], budget["d2_ms"]) + budget["restore_ms"]
    assert budget["window_ms"] == longest < budget["ttl_ms"]


def test_a_held_node_is_shown_with_what_its_host_said_of_the_op(desk):
    desk.capsule(2, BROKEN)
    desk.stage(2)
    desk.preflight(2)
    code, _, err = desk.rollout("start", 2, "--allow-outage")
    assert code == 5, err
    _, screen, _ = desk.run("rollout", "status", "--policy", "trust.json")
    assert "n1: held, serves: started: proof-failed: " in screen
    assert "next: capsule status; a later rollout takes it again" in screen
    [node] = desk.status()["nodes"].values()
    assert node["evidence"].startswith("started: proof-failed: ")
    assert node["reason"] == "the host restored what ran before"
