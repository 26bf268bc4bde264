"""What makes a guard none, judged from what the canary and the outside saw."""

from capsule_installer.guard.canary import CANARY_NAME, TRAPPED, problems

FOUND = {"tcp": "denied", "raw socket": "denied"}


def judged(found=None, **changes):
    seen = {
        "names": [CANARY_NAME],
        "seen": list(TRAPPED),
        "attributed": True,
        "is_reached": False,
    }
    return problems(FOUND if found is None else found, **{**seen, **changes})


def test_a_guard_that_stops_everything_has_no_problem():
    assert judged() == []
    assert judged(attributed=False, seen=[]) == []


def test_one_way_out_is_a_problem():
    assert judged({**FOUND, "tcp": "reached"}) == ["tcp: reached"]


def test_a_listener_that_was_reached_is_one_whatever_the_canary_says():
    assert judged(is_reached=True) == ["the canary reached a listener outside"]


def test_a_call_that_nobody_noticed_is_one_where_that_was_promised():
    for call in TRAPPED:
        left = [seen for seen in TRAPPED if seen != call]
        assert judged(seen=left) == [f"{call} was not noticed"]
        assert judged(seen=left, attributed=False) == []


def test_a_silent_canary_or_sink_is_one():
    assert judged({}) == ["the canary did not answer"]
    assert judged(names=[]) == ["the resolver sink was not asked"]
