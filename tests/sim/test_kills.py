"""A controller that is killed anywhere costs time, and nothing else."""

import pytest

from sim.host import Nature
from sim.kills import SIX_NODES, run_with_kill

FLEETS = {
    "all good": {},
    "one never proves": {"n4": Nature(never_proves=True)},
    "one refuses": {"n5": Nature(refuses="space-short")},
}


@pytest.mark.parametrize("natures", FLEETS.values(), ids=FLEETS)
def test_killed_after_any_commit_or_send_and_adopted_ends_the_same(natures):
    expected, calls, violations = run_with_kill(SIX_NODES, natures, None)
    assert violations == ()
    assert calls > 30
    for kill_at in range(calls):
        outcome, _, violations = run_with_kill(SIX_NODES, natures, kill_at)
        assert violations == (), f"killed at call {kill_at}"
        assert outcome == expected, f"killed at call {kill_at}"


def test_all_six_nodes_commit_when_nothing_is_wrong():
    outcome, _, _ = run_with_kill(SIX_NODES, {}, None)
    assert {state for _, state in outcome} == {"committed"}
