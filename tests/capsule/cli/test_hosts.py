"""The commands that work with hosts, as a user calls them, on hosts that only keep the wire."""

import json

import pytest

from support.desk import Desk


@pytest.fixture
def desk(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Desk(tmp_path, capsys)


def test_a_stage_prints_its_cost_first_and_one_row_a_host_last(desk):
    code, out, err = desk.run(*desk.stage("--lane", "all"))
    assert code == 0, err
    assert err.startswith("staging on 2 hosts: at most ")
    rows = [line.split()[:3] for line in out.splitlines()[1:]]
    assert rows == [[node, "staged", desk.mini.generation] for node in ("n1", "n2")]


def test_a_stage_says_as_json_what_it_did_on_every_host(desk):
    code, document = desk.json(*desk.stage("--node", "n1"))
    assert (code, document["schema"], document["exit_code"]) == (0, 1, 0)
    assert document["nodes"]["n1"]["state"] == "staged"
    assert document["capsule"] == desk.mini.capsule


def test_one_failed_host_makes_the_exit_code_and_not_the_others_fail(desk):
    desk.run(*desk.stage("--lane", "all"))
    desk.behave("n2", refuse={"receive": "disk-full"})
    code, document = desk.json(*desk.stage("--lane", "all"))
    assert (code, document["exit_code"]) == (20, 20)
    assert document["nodes"]["n1"]["state"] == "staged"
    assert document["nodes"]["n2"]["error"] == "disk-full"
    assert document["nodes"]["n2"]["next"]


def test_a_stage_needs_a_lane_or_nodes_and_not_both(desk):
    for arguments in ((), ("--lane", "a", "--node", "n1")):
        code, _, err = desk.run(*desk.stage(*arguments))
        assert code == 2
        assert "--lane or --node" in err


def test_a_lane_that_is_not_there_is_refused_by_name(desk):
    code, out, err = desk.run(*desk.stage("--lane", "z"))
    assert (code, out) == (2, "")
    assert "node-unknown" in err
    assert "a, b" in err


def test_an_installation_is_told_step_by_step_and_ends_with_a_table(desk):
    desk.run(*desk.stage("--lane", "all"))
    code, out, err = desk.run(*desk.install("--node", "n1", "--node", "n2"))
    assert code == 0, err
    assert "n1: ordered" in err
    assert "n1: proof accepted and confirmed: hello.service" in err
    assert [line.split()[:3] for line in out.splitlines()[1:]] == [
        [node, "committed", desk.mini.generation] for node in ("n1", "n2")
    ]


def test_after_a_restored_node_no_further_node_is_ordered(desk):
    desk.run(*desk.stage("--lane", "all"))
    desk.behave("n1", result="restored")
    code, document = desk.json(*desk.install("--node", "n1", "--node", "n2"))
    assert code == 60
    assert document["nodes"]["n1"]["state"] == "restored"
    assert document["nodes"]["n2"]["error"] == "install-not-begun"
    assert desk.json("status")[1]["nodes"]["n2"]["current"] == "absent"


def test_an_installation_before_any_stage_says_to_stage(desk):
    code, _, err = desk.run(*desk.install("--node", "n1"))
    assert code == 40
    assert "capsule stage" in err


def test_the_status_names_every_host_also_the_one_that_is_gone(desk):
    desk.run(*desk.stage("--node", "n1"))
    desk.run(*desk.install("--node", "n1"))
    (desk.folder / "hosts/n2").rmdir()
    code, document = desk.json("status")
    assert code == 6
    states = {node: fields["state"] for node, fields in document["nodes"].items()}
    assert states == {"n1": "installed", "n2": "unknown"}
    code, out, err = desk.run("status")
    assert code == 6
    assert "host-unreachable" in out
    assert "next:" in err


def test_receipts_are_listed_and_verified(desk):
    desk.run(*desk.stage("--lane", "all"))
    desk.run(*desk.install("--node", "n1"))
    options = ("--lane", "all", "--controller-key", "controller.key")
    code, document = desk.json("receipts", "list", *options)
    assert code == 0
    assert [item["kind"] for item in document["nodes"]["n1"]] == ["enrol", "stage", "install"]
    assert desk.json("receipts", "verify", *options)[1]["nodes"]["n2"] == {"receipts": 2}
    assert desk.run("receipts", "list", *options)[1].count("done") == 4


def test_a_host_that_lost_its_past_fails_verification_with_10(desk):
    desk.run(*desk.stage("--lane", "all"))
    path = desk.folder / "hosts/n1/fake.json"
    state = json.loads(path.read_text())
    path.write_text(json.dumps({**state, "receipts": state["receipts"][:1]}))
    code, out, err = desk.run(
        "receipts", "verify", "--lane", "all", "--controller-key", "controller.key"
    )
    assert code == 10
    assert [line.split()[1] for line in out.splitlines()[1:]] == ["differs", "agrees"]
    assert "n1: receipt 2 was cut off at the end" in err
    code, document = desk.json(
        "receipts", "verify", "--lane", "all", "--controller-key", "controller.key"
    )
    assert (code, document["nodes"]["n1"]["error"]) == (10, "record-chain-broken")
    assert [item["number"] for item in document["nodes"]["n1"]["findings"]] == [2]


def test_receipts_are_exported_once_and_audited_with_a_public_key_alone(desk):
    desk.run(*desk.stage("--lane", "all"))
    options = ("--lane", "all", "--controller-key", "controller.key", "--output", "all.ndjson")
    assert desk.json("receipts", "export", *options)[1]["nodes"] == {"n1": 2, "n2": 2}
    code, _, err = desk.run("receipts", "export", *options)
    assert code == 2
    assert "file-exists" in err
    audit = ("receipts", "audit", "all.ndjson", "--key", "controller.key.pub")
    assert desk.run(*audit)[1].count("done") == 4
    assert [len(items) for items in desk.json(*audit)[1]["nodes"].values()] == [2, 2]
    path = desk.folder / "all.ndjson"
    path.write_bytes(path.read_bytes().rpartition(b"\n{")[0] + b"\n")
    assert desk.run(*audit)[0] == 10


def test_freezing_shows_the_route_and_gives_the_digest_that_staging_uses(desk):
    staged = desk.json(*desk.stage("--lane", "all"))[1]
    freeze = (
        "freeze", "--policy", "trust.json", "--route-key", "route.key",
        "--controller-key", "controller.key",
    )  # fmt: skip
    code, document = desk.json(*freeze)
    assert (code, document["route"]) == (0, staged["route"])
    assert "not met yet" not in desk.run(*freeze)[1]


def test_taking_over_raises_the_fence_above_what_hosts_have_seen(desk, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(desk.folder / "first"))
    desk.run(*desk.stage("--lane", "all"))
    desk.run(*desk.stage("--lane", "all", "--take-over"))
    monkeypatch.setenv("XDG_STATE_HOME", str(desk.folder / "second"))
    assert desk.run(*desk.stage("--lane", "all"))[0] == 7
    assert desk.run(*desk.stage("--lane", "all", "--take-over"))[0] == 0
    monkeypatch.setenv("XDG_STATE_HOME", str(desk.folder / "first"))
    assert desk.run(*desk.install("--node", "n1"))[0] == 7


def test_a_release_key_is_refused_as_route_key_before_a_host_is_asked(desk):
    arguments = [word.replace("route.key", "release.key") for word in desk.stage("--lane", "a")]
    code, _, err = desk.run(*arguments)
    assert code == 12
    assert "authority-denied" in err


FILES = ("node", "files", "n1", "--policy", "trust.json", "--controller-key", "controller.key")


def test_the_files_of_a_node_are_shown_set_aside_on_demand_and_its_receipt_is_copied(desk):
    desk.run(*desk.stage("--lane", "all"))
    assert desk.run(*FILES)[0] == 0
    desk.behave("n1", files={"/etc/x": "mode 0o666"})
    code, out, _ = desk.run(*FILES)
    assert (code, out.split()[-3:]) == (3, ["/etc/x", "mode", "0o666"])
    code, out, err = desk.run(*FILES, "--set-aside")
    assert (code, out.split()[-2:]) == (0, ["/etc/x", "same"])
    assert "/quarantine/etc/x" in err
    options = ("--node", "n1", "--controller-key", "controller.key")
    copies = desk.json("receipts", "list", *options)[1]["nodes"]["n1"]
    assert [item["kind"] for item in copies] == ["enrol", "stage", "files"]


def test_the_files_of_a_node_that_no_route_has_are_refused_by_name(desk):
    desk.run(*desk.stage("--lane", "all"))
    code, _, err = desk.run("node", "files", "n9", *FILES[3:])
    assert code == 2
    assert "node-unknown" in err


def test_a_collection_that_one_host_refuses_is_done_on_the_others(desk):
    desk.run(*desk.stage("--lane", "all"))
    desk.behave("n1", refuse={"gc": "op-open"})
    code, document = desk.json("gc", "--lane", "all", "--dry-run")
    assert (code, document["nodes"]["n1"]["error"]) == (8, "op-open")
    assert document["nodes"]["n2"]["removed"] == []
