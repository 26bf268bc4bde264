"""A plan is refused before anything is stopped, and its digest names all of it."""

from dataclasses import replace
from fractions import Fraction
from math import ceil

import pytest

from capsule.lane.budget import Budget
from capsule.lane.plan import PlannedNode, RolloutPlan, check_plan, floor_of, plan_digest
from capsule_manifest.errors import ExitCode, Refused


def planned(count, *, serving=True, lane="l{}", width=8):
    return tuple(
        PlannedNode(
            name=f"n{number:02}", lane=lane.format(number // width), domain="d", serving=serving
        )
        for number in range(count)
    )


def plan(**changes):
    values = {
        "epoch": "e1",
        "capsule": "sha256:" + "c" * 64,
        "route": "sha256:" + "d" * 64,
        "preflight": "sha256:" + "e" * 64,
        "nodes": planned(50),
        "bystanders": 0,
        "max_unavailable": 5,
        "floor": 45,
        "domain_cap": None,
        "max_failed_lanes": None,
        "allow_outage": False,
        "budget": Budget(),
    }
    return RolloutPlan(**(values | changes))


def refused(bad):
    with pytest.raises(Refused) as refusal:
        check_plan(bad)
    return refusal.value


def test_a_plan_that_can_be_carried_out_passes():
    check_plan(plan())
    assert plan_digest(plan()) == plan_digest(plan())


def test_a_floor_is_rounded_up():
    for share in range(101):
        for nodes in range(1, 120):
            floor = floor_of(share, nodes)
            assert floor == ceil(Fraction(share, 100) * nodes)
            assert 100 * floor >= share * nodes


def test_an_empty_selection_is_refused():
    assert refused(plan(nodes=())).error_id == "plan-empty"


def test_a_node_that_is_selected_twice_is_refused_by_name():
    refusal = refused(plan(nodes=(*planned(3), planned(1)[0]), floor=0))
    assert (refusal.error_id, refusal.got) == ("plan-node-twice", "n00")


def test_a_lane_of_eight_passes_and_one_of_nine_is_refused():
    check_plan(plan(nodes=planned(8), floor=1))
    refusal = refused(plan(nodes=planned(9, width=9), floor=1))
    assert (refusal.error_id, refusal.got, refusal.where) == ("lane-too-wide", "9", "lane l0")


def test_a_floor_that_leaves_no_serving_node_to_stop_is_refused_with_its_arithmetic():
    check_plan(plan(floor=49))
    refusal = refused(plan(floor=50))
    assert refusal.error_id == "floor-too-high"
    assert refusal.exit_code is ExitCode.BUDGET_REFUSED
    assert refusal.got == "50 - 50 = 0"
    assert "n00" in refusal.expected


def test_healthy_bystanders_count_for_the_floor():
    check_plan(plan(nodes=planned(1), bystanders=5, floor=5))
    assert refused(plan(nodes=planned(1), bystanders=5, floor=6)).error_id == "floor-too-high"


@pytest.mark.parametrize("floor", [0, 50, 99])
def test_a_fleet_that_serves_nothing_yet_passes_whatever_its_floor(floor):
    check_plan(plan(nodes=planned(50, serving=False), floor=floor))


def test_a_fleet_of_one_needs_a_decision_to_be_away():
    alone = plan(nodes=planned(1), floor=0)
    assert refused(alone).error_id == "outage-not-allowed"
    check_plan(replace(alone, allow_outage=True))
    check_plan(replace(alone, nodes=planned(1, serving=False)))


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": "e2"},
        {"capsule": "sha256:" + "0" * 64},
        {"route": "sha256:" + "0" * 64},
        {"preflight": "sha256:" + "0" * 64},
        {"nodes": planned(49)},
        {"nodes": tuple(reversed(planned(50)))},
        {"nodes": planned(50, serving=False)},
        {"nodes": planned(50, lane="m{}")},
        {"nodes": tuple(replace(node, domain="e") for node in planned(50))},
        {"bystanders": 1},
        {"max_unavailable": 4},
        {"floor": 44},
        {"domain_cap": 1},
        {"max_failed_lanes": 0},
        {"allow_outage": True},
        *({"budget": replace(Budget(), **{name: 7})} for name in Budget.__dataclass_fields__),
    ],
)
def test_every_change_of_a_plan_changes_its_digest(change):
    assert plan_digest(plan(**change)) != plan_digest(plan())
