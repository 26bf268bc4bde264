"""Rollouts over folder hosts with the real host program: what an operator types and sees."""

import json
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from capsule.builder.keyfile import generate_key
from capsule_manifest.envelope import decode_record
from capsule_manifest.records import decode_receipt
from support.rollout_desk import BROKEN, RolloutDesk, marker_path

pytestmark = pytest.mark.timeout(180)

SIX = {"a": ["n1", "n2", "n3"], "b": ["n4", "n5", "n6"]}


@pytest.fixture
def make_desk(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = []

    def make(lanes, **options):
        made.append(RolloutDesk(tmp_path, capsys, lanes, **options))
        return made[-1]

    yield make
    for desk in made:
        desk.stop()


def prepare(desk, counter=1, components=None):
    mini = desk.capsule(counter, components)
    desk.stage(counter)
    code, found = desk.preflight(counter)
    assert code == 0, found
    return mini


@contextmanager
def started(*arguments):
    """Run a controller as a process of its own until it has sent its first order."""
    argv = [
        sys.executable, "-m", "capsule", "rollout", "start", "1.capsule", "--json",
        "--policy", "trust.json", "--controller-key", "controller.key", *arguments,
    ]  # fmt: skip
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as controller:
        for line in controller.stdout:
            if json.loads(line)["event"] == "StopIntended":
                break
        yield controller, controller.stdout


def fails_on(node):
    script = f'[ "$1" = {node} ] && exit 1\nexec sleep 1000\n'
    return {"app": {"main.sh": script.encode()}}


def test_a_failure_stays_in_its_lane_and_the_lane_goes_on_when_it_is_resumed(make_desk):
    desk = make_desk(SIX, max_unavailable=1)
    mini = prepare(desk, components=fails_on("n5"))
    code, _, err = desk.rollout("start", 1)
    assert code == 6, err
    assert desk.states() == {
        "n1": "committed", "n4": "committed", "n2": "committed", "n3": "committed",
        "n5": "held", "n6": "staged",
    }  # fmt: skip
    assert "proof-failed" in err
    _, screen, _ = desk.run("rollout", "status", "--policy", "trust.json")
    assert "n5: held, does not serve" in screen
    assert "capsule lane resume b" in screen
    assert desk.current("n6") == "absent"
    code, _, err = desk.lane("resume", "b", 1)
    assert code == 6, err
    assert desk.states()["n6"] == "committed"
    assert desk.current("n6") == mini.generation
    assert desk.current("n5") == "absent"


def test_a_failed_canary_stops_every_lane_and_nothing_else_was_touched(make_desk):
    desk = make_desk({"a": ["n1"], "b": ["n2"]})
    prepare(desk, components=BROKEN)
    code, _, err = desk.rollout("start", 1)
    assert code == 6, err
    assert desk.states() == {"n1": "held", "n2": "staged"}
    code, _, err = desk.rollout("abort", 1, "--reason", "broken release")
    assert desk.status()["state"] == "ended", err
    assert desk.states() == {"n1": "held", "n2": "skipped"}


def test_a_killed_controller_is_adopted_and_every_node_commits_once(make_desk):
    desk = make_desk({"a": ["n1", "n2"]}, max_unavailable=1)
    mini = prepare(desk)
    with started() as (controller, _):
        time.sleep(0.5)
        controller.send_signal(signal.SIGKILL)
    code, _, err = desk.rollout("adopt", 1)
    assert (code, "lease-busy" in err) == (8, True)
    code, _, err = desk.rollout("adopt", 1, "--takeover")
    assert code == 0, err
    assert desk.states() == {"n1": "committed", "n2": "committed"}
    for node in desk.nodes:
        assert desk.current(node) == mini.generation
        kinds = [
            decode_receipt(decode_record(raw, where="").payload).kind
            for raw in desk.session(node).receipts()
        ]
        assert kinds.count("install") == 1


def test_the_first_interrupt_ends_what_is_under_way_and_the_epoch_can_be_resumed(make_desk):
    desk = make_desk({"a": ["n1", "n2"]}, max_unavailable=1)
    prepare(desk)
    with started() as (controller, events):
        controller.send_signal(signal.SIGINT)
        events = [json.loads(line)["event"] for line in events]
    assert "Paused" in events
    assert events[-1] == "Parked"
    assert desk.states() == {"n1": "committed", "n2": "staged"}
    code, _, err = desk.rollout("resume", 1)
    assert code == 0, err
    assert desk.states()["n2"] == "committed"


def test_a_start_needs_a_fresh_preflight_of_this_capsule(make_desk):
    desk = make_desk({"a": ["n1"]})
    desk.capsule(1)
    desk.stage(1)
    code, _, err = desk.rollout("start", 1)
    assert (code, "preflight-missing" in err) == (3, True)
    assert "next: run `capsule preflight`" in err
    desk.preflight(1)
    code, _, err = desk.rollout("start", 1, "--plan-digest", "sha256:" + "0" * 64)
    assert (code, "plan-changed" in err) == (3, True)
    assert desk.current("n1") == "absent"


def test_every_class_of_identity_is_found_and_named_with_both_values(make_desk):
    desk = make_desk({"a": ["n1", "n2", "n3", "n4"]}, max_unavailable=4)
    first = prepare(desk)
    code, _, err = desk.rollout("start", 1)
    assert code == 0, err
    marker_path(desk.root("n2")).unlink()
    current = desk.root("n3") / "opt/capsule/current"
    current.unlink()
    code, found = desk.preflight(1)
    assert code == 3
    classes = {node: fields["class"] for node, fields in found["nodes"].items()}
    assert classes == {
        "n1": "coherent", "n2": "repairable", "n3": "contradictory", "n4": "coherent",
    }  # fmt: skip
    said = " ".join(found["nodes"]["n3"]["disagreements"])
    assert f"the installed marker says {first.generation}, the current link says absent" in said
    assert all(fields["serving"] for fields in found["nodes"].values() if fields["fit"])

    repair = ("node", "repair", "--policy", "trust.json", "--controller-key", "controller.key")
    code, _, err = desk.run(*repair, "n3")
    assert (code, "repair-refused" in err) == (3, True)
    code, _, err = desk.run(*repair, "n2")
    assert code == 0, err
    assert desk.preflight(1)[1]["nodes"]["n2"]["class"] == "coherent"
    code, _, err = desk.run(*repair, "n2")
    assert (code, "expected repairable" in err) == (3, True)


def test_a_contradictory_node_is_quarantined_before_anything_else_is_changed(make_desk):
    desk = make_desk({"a": ["n1", "n2", "n3"]}, max_unavailable=3)
    prepare(desk)
    assert desk.rollout("start", 1)[0] == 0
    marker = marker_path(desk.root("n2"))
    marker.chmod(0o666)
    second = desk.capsule(2)
    desk.stage(2)
    assert desk.preflight(2)[0] == 3
    code, _, err = desk.rollout("start", 2)
    assert (code, "preflight-refused" in err) == (3, True)
    code, _, err = desk.rollout("start", 2, "--without-unfit")
    assert code == 0, err
    assert "n2: quarantined, contradictory" in err
    assert {desk.current("n1"), desk.current("n3")} == {second.generation}
    assert desk.current("n2") != second.generation
    release = ("node", "release", "n2", "--policy", "trust.json")
    assert desk.run(*release)[0] == 3
    marker.chmod(0o600)
    assert desk.preflight(2)[0] == 0
    assert desk.run(*release)[0] == 0
    code, _, err = desk.rollout("start", 2)
    assert code == 0, err
    assert desk.current("n2") == second.generation


def test_another_environment_adopts_if_the_route_lists_its_key_and_else_is_refused(
    make_desk, monkeypatch
):
    desk = make_desk({"a": ["n1", "n2"]}, max_unavailable=1)
    generate_key(desk.folder / "second.key", owner="second")
    fleet = desk.folder / "fleet.toml"
    listed = 'controllers = ["second.key.pub"]\n[nodes.n1]'
    fleet.write_text(fleet.read_text().replace("[nodes.n1]", listed))
    prepare(desk)
    ledger = ("--ledger", "shared.sqlite")
    with started(*ledger) as (controller, _):
        controller.send_signal(signal.SIGKILL)
    assert desk.run("route", "export", "route.json", "--policy", "trust.json")[0] == 0
    monkeypatch.setenv("XDG_STATE_HOME", str(desk.folder / "elsewhere"))
    assert desk.run("route", "import", "route.json", "--policy", "trust.json")[0] == 0
    generate_key(desk.folder / "stranger.key", owner="stranger")
    adopt = ("rollout", "adopt", "1.capsule", "--takeover", "--policy", "trust.json", *ledger)
    code, _, err = desk.run(*adopt, "--controller-key", "stranger.key")
    assert (code, "authority-denied" in err) == (12, True)
    code, _, err = desk.run(*adopt, "--controller-key", "second.key")
    assert code == 0, err
    report = ("rollout", "report", "--policy", "trust.json", *ledger)
    assert desk.json(*report)[1]["committed"] == 2


def test_a_route_that_changed_after_freezing_is_shown_as_drift_and_changes_nothing(make_desk):
    desk = make_desk({"a": ["n1", "n2"]}, max_unavailable=2)
    prepare(desk)
    fleet = desk.folder / "fleet.toml"
    fleet.write_text(fleet.read_text().replace("hosts/n2", "hosts/other"))
    code, found = desk.json("route", "diff", "--policy", "trust.json")
    assert code == 40
    assert [item["where"] for item in found["drift"]] == ["nodes.n2.endpoint"]
    code, _, err = desk.rollout("start", 1)
    assert code == 0, err
    assert not (desk.folder / "hosts/other").exists()
