"""The incident ends differently: one bad node decides for itself only."""

import pytest

from sim.incident import NAMES, NODES, TROUBLE, TTL_MS, replay, run_old
from sim.old_algorithm import Costs, OldFleet, Trouble, deploy


@pytest.fixture(scope="module")
def numbers():
    return replay()


def test_the_old_transaction_stops_everything_and_brings_a_part_back(numbers):
    old = numbers["old"]
    assert old["out_at_once_max"] == NODES
    assert old["installed"] == 0
    assert old["not_serving_at_end"] > NODES // 2
    assert old["identities_lost"] > NODES // 2


def test_without_trouble_the_old_transaction_installs_everything():
    fleet = OldFleet(names=NAMES, ttl_ms=TTL_MS * 100)
    nobody = Trouble(drifted="", frozen="", times_out="")
    assert deploy(fleet, nobody, Costs())
    assert fleet.released == set(NAMES)


@pytest.mark.parametrize("part", ["stage_ms", "drain_ms", "stop_ms", "restore_ms", "timeout_ms"])
def test_every_measured_duration_decides_how_long_the_old_transaction_takes(part):
    measured = {"stage_ms": 900, "drain_ms": 40, "stop_ms": 300, "install_ms": 5_000,
                "restore_ms": 6_000, "timeout_ms": 20_000}  # fmt: skip
    usual = run_old(costs=Costs(**measured))
    slower = run_old(costs=Costs(**{**measured, part: measured[part] + 60_000}))
    assert slower["length_s"] >= usual["length_s"] + 60


def test_the_old_transaction_strands_nodes_however_fast_each_step_is():
    names = [f"m{number}" for number in range(12)]
    quick = Costs(stage_ms=1, drain_ms=1, stop_ms=1, install_ms=1, restore_ms=1, timeout_ms=1)
    trouble = Trouble(drifted="m1", frozen="m7", times_out="m8")
    old = run_old(names, trouble, quick)
    assert old["out_at_once_max"] == len(names)
    assert old["not_serving_at_end"] == old["identities_lost"] == 5  # m7 to m11


def test_only_the_bad_nodes_lanes_are_left_behind(numbers):
    new = numbers["new"]
    assert new["other_lanes_left"] == 0
    assert new["installed"] >= NODES - 3 * 8
    assert (new["held"], new["unknown"]) == (1, 1)


def test_no_node_but_the_frozen_one_is_away_at_the_end(numbers):
    assert numbers["new"]["not_serving_at_end"] == 1


def test_no_identity_is_lost_to_the_ttl(numbers):
    assert numbers["new"]["identities_lost"] == 0


def test_the_floor_holds_all_the_time(numbers):
    assert numbers["new"]["out_at_once_max"] <= 5 + 1  # the frozen node is nobody's permit
    assert numbers["new"]["violations"] == 0


def test_every_outage_is_a_fraction_of_the_ttl(numbers):
    assert numbers["new"]["outage_s_max"] * 1000 < TTL_MS // 10
    assert numbers["old"]["outage_s_max"] * 1000 > TTL_MS


def test_the_rollout_parks_and_says_that_a_node_is_unknown(numbers):
    assert numbers["new"]["exit_code"] == 6


def test_the_trouble_is_three_nodes_of_three_lanes():
    assert len({NAMES.index(name) // 8 for name in TROUBLE.names}) == 3
