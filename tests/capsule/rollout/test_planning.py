"""From a preflight to a plan: who is in it, in what order, and what is refused."""

from dataclasses import dataclass, replace

import pytest

from capsule.lane.plan import plan_digest
from capsule.rollout.coherence import Coherence
from capsule.rollout.planning import PlanChoices, epoch_name, make_plan
from capsule.rollout.preflight import (
    Finding,
    Preflight,
    decode_preflight,
    encode_preflight,
    require_fresh,
)
from capsule_manifest.errors import ExitCode
from capsule_manifest.route import Endpoint, RouteNode
from support import documents
from support.failures import fails_with

CAPSULE, ROUTE = "sha256:" + "1" * 64, "sha256:" + "2" * 64
LANES = {"n1": "a", "n2": "a", "n3": "b", "n4": "b"}
FIT = Finding(
    coherence=Coherence.COHERENT, serving=True, current="1-aa", fence=1, disagreements=(),
    problems=(), notes=(),
)  # fmt: skip


@dataclass(frozen=True)
class Route:
    route: object
    digest: str = ROUTE


@dataclass(frozen=True)
class Payload:
    release: object
    capsule: str = CAPSULE
    generation: str = "2-11111111"


def plan(findings, choices=None, *, floor=1, max_unavailable=2):
    nodes = {
        name: RouteNode(
            role="web", platform="bookworm", domain="d", lane=LANES[name],
            endpoint=Endpoint(kind="local", root=f"/{name}"), node_key=None, vars={},
        )
        for name in findings
    }  # fmt: skip
    route = replace(
        documents.make_route(), nodes=nodes, floor=floor, max_unavailable=max_unavailable
    )
    found = Preflight(route=ROUTE, capsule=CAPSULE, made_ms=1, nodes=findings)
    return make_plan(
        Route(route),
        Payload(documents.make_release()),
        found,
        epoch="e",
        choices=choices or PlanChoices(),
    )


def four(**changes):
    return {name: changes.get(name, FIT) for name in LANES}


def test_nodes_of_all_lanes_come_in_turn_so_that_canaries_are_of_different_lanes():
    assert [node.name for node in plan(four()).nodes] == ["n1", "n3", "n2", "n4"]


def test_a_node_that_runs_the_capsule_is_left_alone_and_counts_as_healthy():
    made = plan(four(n1=replace(FIT, current="2-11111111")))
    assert "n1" not in {node.name for node in made.nodes}
    assert made.bystanders == 1


def test_a_node_that_has_the_capsule_and_does_not_serve_is_taken_again():
    made = plan(four(n1=replace(FIT, current="2-11111111", serving=False)))
    assert "n1" in {node.name for node in made.nodes}


def test_an_unfit_node_refuses_the_plan_and_is_named_with_its_remedy():
    bad = replace(FIT, coherence=Coherence.UNREACHABLE, problems=("unreachable: make it answer",))
    with fails_with("preflight-refused") as failure:
        plan(four(n2=bad))
    assert failure.value.exit_code is ExitCode.PREFLIGHT_REFUSED
    assert "n2: unreachable: make it answer" in failure.value.got


def test_an_unfit_node_that_is_left_out_counts_as_down_and_never_shrinks_the_floor():
    bad = replace(FIT, coherence=Coherence.UNREACHABLE, serving=False, problems=("x",))
    made = plan(four(n2=bad), PlanChoices(without_unfit=True), floor=2)
    assert [node.name for node in made.nodes] == ["n1", "n3", "n4"]
    assert (made.bystanders, made.floor) == (0, 2)
    with fails_with("floor-too-high"):
        plan(four(n2=bad), PlanChoices(without_unfit=True), floor=3)


def test_the_digest_of_a_plan_changes_with_what_preflight_found():
    first = plan(four())
    again = plan(four())
    other = plan(four(n4=replace(FIT, serving=False)))
    assert plan_digest(first) == plan_digest(again) != plan_digest(other)


def test_the_name_of_an_epoch_counts_those_of_its_generation():
    assert epoch_name("2-ab", []) == "2-ab.1"
    assert epoch_name("2-ab", ["1-cd.1", "2-ab.1", "2-ab.2"]) == "2-ab.3"


def test_a_preflight_reads_back_as_it_was_written():
    made = Preflight(
        route=ROUTE,
        capsule=CAPSULE,
        made_ms=5,
        nodes={"n1": replace(FIT, problems=("a",), notes=("b",), disagreements=("c",))},
    )
    assert decode_preflight(encode_preflight(made), where="") == made
    assert replace(made, made_ms=9).digest == made.digest


@pytest.mark.parametrize(
    ("changes", "now_ms"),
    [({}, 5_000), ({}, 0), ({"route": CAPSULE}, 100), ({"capsule": ROUTE}, 100)],
)
def test_a_preflight_that_is_old_of_the_future_or_of_something_else_is_refused(changes, now_ms):
    made = replace(Preflight(route=ROUTE, capsule=CAPSULE, made_ms=50, nodes={}), **changes)
    with fails_with("preflight-missing"):
        require_fresh(made, route=ROUTE, capsule=CAPSULE, now_ms=now_ms, age_ms_max=1_000)


def test_a_fresh_preflight_of_the_same_route_and_capsule_is_taken():
    made = Preflight(route=ROUTE, capsule=CAPSULE, made_ms=50, nodes={})
    assert require_fresh(made, route=ROUTE, capsule=CAPSULE, now_ms=60, age_ms_max=10) is made
