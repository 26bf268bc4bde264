"""A plan that could not be carried out as written is refused before anything is stopped."""

from dataclasses import replace

import pytest

from capsule.lane.budget import Budget
from capsule.lane.plan import PlannedNode, RolloutPlan, check_plan, floor_of, plan_digest
from capsule_manifest.errors import ExitCode, Refused


def plan(nodes=4, *, lanes=2, serving=True, **changes):
    values = {
        "epoch": "e1",
        "capsule": "c",
        "route": "r",
        "preflight": "p",
        "nodes": tuple(
            PlannedNode(name=f"n{n}", lane=f"l{n % lanes}", domain="d", serving=serving)
            for n in range(nodes)
        ),
        "bystanders": 0,
        "max_unavailable": 1,
        "floor": 1,
        "domain_cap": None,
        "max_failed_lanes": None,
        "allow_outage": False,
        "budget": Budget(),
    }
    return RolloutPlan(**(values | changes))


def refusal(bad):
    with pytest.raises(Refused) as refused:
        check_plan(bad)
    return refused.value


def test_a_plan_without_fault_passes():
    check_plan(plan())
    assert floor_of(50, 4) == 2


def test_an_empty_plan_is_refused():
    assert refusal(plan(0)).error_id == "plan-empty"


def test_a_node_that_is_selected_twice_is_refused():
    twice = plan()
    error = refusal(replace(twice, nodes=(*twice.nodes, twice.nodes[0])))
    assert (error.error_id, error.got) == ("plan-node-twice", "n0")


def test_a_lane_of_nine_is_refused_and_of_eight_is_not():
    check_plan(plan(8, lanes=1))
    error = refusal(plan(9, lanes=1))
    assert (error.error_id, error.where) == ("lane-too-wide", "lane l0")


def test_a_floor_at_the_healthy_count_is_refused_with_the_arithmetic():
    error = refusal(plan(floor=4))
    assert error.error_id == "floor-too-high"
    assert error.got == "4 - 4 = 0"
    assert "n0" in error.expected
    assert error.exit_code is ExitCode.BUDGET_REFUSED


def test_a_floor_above_a_fleet_that_is_down_forbids_nothing():
    check_plan(plan(floor=4, serving=False))


def test_bystanders_count_for_the_floor():
    check_plan(plan(floor=4, bystanders=1))


def test_one_serving_node_needs_an_explicit_outage():
    assert refusal(plan(1, floor=0)).error_id == "outage-not-allowed"
    check_plan(plan(1, floor=0, allow_outage=True))
    check_plan(plan(1, floor=0, serving=False))


@pytest.mark.parametrize(("percent", "nodes", "floor"), [(50, 5, 3), (1, 50, 1), (90, 50, 45)])
def test_a_share_is_rounded_up_to_whole_nodes(percent, nodes, floor):
    assert floor_of(percent, nodes) == floor


CHANGES = {
    "epoch": "e2",
    "capsule": "c2",
    "route": "r2",
    "preflight": "p2",
    "nodes": plan(5).nodes,
    "bystanders": 1,
    "max_unavailable": 2,
    "floor": 2,
    "domain_cap": 1,
    "max_failed_lanes": 1,
    "allow_outage": True,
    "budget": Budget(d1_ms=1),
}


@pytest.mark.parametrize("name", RolloutPlan.__dataclass_fields__)
def test_every_field_of_the_plan_is_in_its_digest(name):
    assert plan_digest(replace(plan(), **{name: CHANGES[name]})) != plan_digest(plan())


def test_the_digest_of_an_equal_plan_is_equal():
    assert plan_digest(plan()) == plan_digest(plan())
