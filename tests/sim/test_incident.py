"""The incident as it was, and as it is with lanes."""

from dataclasses import replace

from sim.incident import FLEET, WATCHED_S, replay
from sim.old import run_old


def test_the_old_transaction_lost_identities_and_left_nodes_down():
    old = run_old(FLEET, watched_s=WATCHED_S)
    assert old.updated == 0
    assert old.most_down_at_once == 45
    assert len(old.identities_lost) > 25
    assert set(old.identities_lost) <= set(old.down_at_end)


def test_the_old_transaction_was_sound_for_a_small_fleet():
    # Which is why nobody saw it coming: the same rules recover nine nodes in time.
    small = replace(FLEET, nodes=10, drifted=9, frozen=-1, timing_out=-1)
    old = run_old(small, watched_s=WATCHED_S)
    assert (old.down_at_end, old.identities_lost) == ([], [])


def test_with_lanes_three_bad_nodes_decide_for_their_own_lanes_only():
    summary = replay()
    lanes = summary["lanes"]
    assert summary["violations"] == 0
    assert lanes["down_at_end"] == 0
    assert lanes["identities_lost"] == 0
    assert lanes["most_down_at_once"] <= 8
    assert lanes["longest_outage_s"] <= 120
    # All of the other seven lanes, and what its lane had begun beside each bad node.
    assert lanes["updated"] >= 35
    assert lanes["held"] == 1
    assert lanes["unknown"] == 1
    assert sum(lanes[key] for key in ("updated", "held", "unknown", "waiting_for_operator")) == 50
