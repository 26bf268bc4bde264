"""The judge of the incident: what it measures, and that each broken demand is told."""

import json
from dataclasses import replace

import pytest

from lab.incident_measured import events_of, measure, pair_ms, window_ms
from lab.incident_told import Evidence, Run, told

NODES = [f"n{number:02}" for number in range(12)]
DRIFTED, FROZEN, LATE, CRASHING, DOWN = "n01", "n07", "n08", "n05", "n03"


class Seen:
    """What was seen from outside."""

    def __init__(self, out_max=3, longest_s=2.0):
        self.out_max, self.longest_s = out_max, longest_s
        self.out_nodes_max = tuple(NODES[:out_max])

    def longest(self):
        return {node: self.longest_s for node in NODES if node != DOWN}

    def sample_ms(self):
        return 100.0


def step(name, took_ms):
    return {"name": name, "took_ms": took_ms, "limit_ms": None}


def receipt(node, result="committed", *steps):
    usual = (step("stop", 300), step("switch", 20), step("start", 80), step("prove", 4_100),
             step("commit", 500))  # fmt: skip
    reason = "" if result == "committed" else "proof-failed"
    return {"node": node, "result": result, "reason": reason, "steps": list(steps or usual)}


RESTORED = (step("stop", 300), step("start", 80), step("restore-stop", 200),
            step("restore-start", 700))  # fmt: skip


def event(name, node, at_ms, **more):
    return {"event": name, "node": node, "at_ms": at_ms, **more}


def report(states, unknown):
    rows = {
        node: {"state": state, "lane": f"l{int(node[1:]) // 2}", "reason": "why"}
        for node, state in states.items()
    }
    return {
        "nodes": rows,
        "committed": list(states.values()).count("committed"),
        "unknown": unknown,
    }


def good():
    taken = [node for node in NODES if node not in {DRIFTED, DOWN}]
    last = dict.fromkeys(taken, "committed") | {FROZEN: "held", CRASHING: "held"}
    first = last | {FROZEN: "unknown", "n06": "staged"}
    identities = {node: ("in the ledger", node) for node in NODES}
    events = [event("HoldTaken", n, 0, canary=place < 3) for place, n in enumerate(taken)]
    events += [event("StopIntended", n, 40) for n in taken]
    events += [event("StopSeen", LATE, 21_040)]
    classes = {DRIFTED: "repairable", DOWN: "unreachable"}
    finding = {"problems": [], "disagreements": ["why"], "notes": []}
    return Run(
        permits=3,
        evidence={
            node: Evidence(done="something", may_commit=node == LATE)
            for node in (DRIFTED, FROZEN, LATE, CRASHING, DOWN)
        },
        outside=Seen(),
        staged={"nodes": {"n00": {"state": "staged", "took_ms": 900}, DOWN: {"state": "failed"}}},
        preflight={"nodes": {n: {"class": classes.get(n, "coherent"), **finding} for n in NODES}},
        first=report(first, 1),
        last=report(last, 0),
        events=events,
        receipts=[receipt(n) for n in taken if last[n] == "committed"]
        + [receipt(FROZEN, "restored", *RESTORED), receipt(CRASHING, "restored", *RESTORED)],
        resumed=["l3", "l2"],
        code=6,
        wall_s=60.0,
        timeout_ms=31_000,
        window_bound_s=50.0,
        before=identities,
        after=dict(identities),
        serving={n: "" if n == DOWN else "1" if last.get(n) != "committed" else "2" for n in NODES},
        old_trouble=(DRIFTED, FROZEN, LATE),
    )


def test_a_run_as_it_should_be_passes_and_prints_what_was_promised():
    found = told(good())
    assert found["failed"] == []
    assert list(found)[:17] == [
        "nodes", "committed", "committed_after_resume", "held", "skipped", "quarantined",
        "unreachable", "identities_lost", "permits", "out_of_service_max", "outage_median_s",
        "outage_max_s", "window_max_s", "window_bound_s", "wall_s", "exit_code", "old_algorithm",
    ]  # fmt: skip
    assert json.loads(json.dumps(found)) == found
    assert "first heard 21.0 s later" in found["evidence"][LATE]["said"]


def test_the_old_transaction_is_walked_through_at_what_this_run_measured():
    old = told(good())["old_algorithm"]
    assert old["measured_ms"] == {
        "stage_ms": 900, "drain_ms": 40, "stop_ms": 300, "install_ms": 4_200, "restore_ms": 900,
        "timeout_ms": 31_000,
    }  # fmt: skip
    slower = told(replace(good(), timeout_ms=91_000))["old_algorithm"]
    assert slower["length_s"] == old["length_s"] + 2 * 60  # at the frozen one, and at the end
    assert old["out_at_once_max"] == len(NODES)


def without(run, node, **fields):
    nodes = {**run.last["nodes"], node: {**run.last["nodes"][node], **fields}}
    return {**run.last, "nodes": nodes}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: {"last": without(r, "n10", state="staged")}, "n10 is healthy and was not"),
        (lambda _: {"resumed": ["l2"]}, "n06 needed an operator, but its lane was not stopped"),
        (lambda r: {"serving": {**r.serving, "n00": "1"}}, "n00 is committed and serves 1"),
        (lambda r: {"last": without(r, CRASHING, state="committed")}, "n05 is broken and was"),
        (lambda _: {"outside": Seen(out_max=4)}, "4 were out of service, 3 may be"),
        (lambda r: {"after": {**r.after, "n02": ("", "n02")}}, "1 identities are lost"),
        (lambda _: {"outside": Seen(longest_s=51)}, "window by outside is 51 s"),
        (
            lambda r: {"receipts": [*r.receipts, receipt("n00", "committed", step("stop", 60000))]},
            "window by receipts is 60.0 s",
        ),
        (lambda r: {"last": without(r, FROZEN, state="staged")}, "n07 is broken and neither held"),
        (lambda r: {"last": without(r, LATE, reason=""), "events": r.events[:-1]}, "n08 has no"),
        (lambda _: {"code": 0}, "exit 0 with 1 unknown"),
        (lambda r: {"events": r.events[1:]}, "the canaries were n02, n04"),
    ],
)  # fmt: skip
def test_every_demand_that_is_not_met_is_told(change, words):
    run = good()
    found = told(replace(run, **change(run)))
    assert not found["passed"]
    assert any(words in text for text in found["failed"]), found["failed"]


def test_a_healthy_node_that_was_held_is_shown_with_what_its_host_said():
    run = good()
    late = receipt("n10", "restored", *RESTORED)
    found = told(
        replace(run, last=without(run, "n10", state="held"), receipts=[late, *run.receipts])
    )
    assert found["evidence"]["n10"] == {
        "done": "nothing", "state": "held", "said": "why; proof-failed",
    }  # fmt: skip


def test_a_window_is_from_the_stop_to_proved_and_a_restore_counts():
    assert window_ms(receipt("n00")) == 300 + 20 + 80 + 4_100
    assert window_ms(receipt("n00", "restored", *RESTORED)) == 300 + 80 + 200 + 700
    # rescue.sh restores without a clock of its own: that is not a window of nothing.
    assert window_ms(receipt("n00", "restored", step("stop", 300))) is None


def test_a_pair_of_events_is_measured_once_a_node():
    events = [event("A", "n1", 5), event("B", "n1", 9), event("A", "n1", 20), event("B", "n1", 50),
              event("B", "n2", 1)]  # fmt: skip
    assert pair_ms(events, "A", "B") == {"n1": 4}


def test_events_are_read_past_a_line_that_a_killed_controller_left_half(tmp_path):
    folder = tmp_path / "products/p/rollouts/e.1"
    folder.mkdir(parents=True)
    (folder / "events.ndjson").write_text('{"seq": 1}\n{"seq": 2}\n{"seq"')
    assert events_of(tmp_path, "e.1") == [{"seq": 1}, {"seq": 2}]


def test_what_a_run_did_not_measure_is_not_made_up():
    measured = measure(staged={"nodes": {}}, events=[], receipts=[], timeout_ms=1)
    with pytest.raises(ValueError, match="stage_ms, drain_ms, stop_ms, install_ms, restore_ms"):
        measured.costs()
