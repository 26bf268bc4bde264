"""What a controller keeps of an epoch for people survives that it was killed while it wrote."""

import json
from types import SimpleNamespace

from capsule.rollout.kept import keep_event, keep_reason, kept_events, kept_reasons


def receipt(op_id, reason):
    said = SimpleNamespace(op_id=op_id, result="restored", reason=reason)
    return SimpleNamespace(receipt=said, digest="sha256:" + "0" * 64)


def test_events_come_back_in_order_and_a_folder_that_is_not_there_has_none(tmp_path):
    folder = tmp_path / "rollouts" / "7-0a1b2c3d.1"
    assert list(kept_events(folder)) == []
    for seq in (1, 2):
        keep_event(folder, json.dumps({"seq": seq, "event": "Started"}))
    assert [item["seq"] for item in kept_events(folder)] == [1, 2]


def test_a_line_that_was_cut_costs_itself_and_what_was_appended_to_it(tmp_path):
    keep_event(tmp_path, '{"seq": 1}')
    with (tmp_path / "events.ndjson").open("a") as stream:
        stream.write('{"seq": 2, "eve')
    assert [item["seq"] for item in kept_events(tmp_path)] == [1]
    for seq in (3, 4):
        keep_event(tmp_path, json.dumps({"seq": seq}))
    assert [item["seq"] for item in kept_events(tmp_path)] == [1, 4]


def test_the_last_reason_of_an_op_counts_and_an_op_without_one_is_missing(tmp_path):
    assert kept_reasons(tmp_path) == {}
    keep_reason(tmp_path, "n1", receipt("op1", "proof-failed: zwölf"))
    keep_reason(tmp_path, "n1", receipt("op1", "service-failed"))
    keep_reason(tmp_path, "n2", receipt("op2", ""))
    assert kept_reasons(tmp_path) == {"op1": "service-failed"}
