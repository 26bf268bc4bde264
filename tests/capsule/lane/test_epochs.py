"""Whole epochs of six nodes in virtual time: what is refused, decided, and left behind."""

from dataclasses import replace

import pytest

from capsule.lane import proposals
from capsule.lane.budget import Budget
from capsule.lane.epoch import EpochState, Tenure
from capsule.lane.node import NodeState
from capsule_manifest.errors import ExitCode, Refused
from sim.bench import Bench
from sim.host import Nature
from sim.kills import SIX_NODES


def nobody(_):
    """Do nothing about a controller that is over."""


@pytest.fixture
def bench():
    return Bench(SIX_NODES, {})


def started(bench):
    controller = bench.controller(nobody)
    controller.run(controller.driver.start)
    return controller


def run_for(bench, length_ms):
    until = bench.world.now + length_ms
    while bench.world.now < until and bench.world.step():
        pass


def states(controller):
    return {member.name: member.state for member in controller.driver.state.members.values()}


def refusal(act, **options):
    with pytest.raises(Refused) as caught:
        act(**options)
    return caught.value.error_id, caught.value.exit_code


def test_a_second_controller_is_refused_while_the_first_one_is_at_work(bench):
    started(bench)
    second = bench.controller(nobody).driver
    assert refusal(second.start) == ("lease-busy", ExitCode.BUSY)
    assert refusal(second.adopt, takeover=False) == ("lease-busy", ExitCode.BUSY)


def test_a_replaced_controller_is_fenced_by_its_next_append_and_sends_nothing_more(bench):
    old = started(bench)
    run_for(bench, 100)
    bench.controller(nobody).driver.adopt(takeover=True)
    sent = bench.world.events
    old.driver.command(lambda state: proposals.propose_pause(state, "late"))
    assert old.driver.is_over
    assert old.driver.is_fenced
    assert bench.world.events == sent


def test_a_new_epoch_over_the_nodes_of_an_unfinished_one_is_refused(bench):
    first = started(bench)
    run_for(bench, 100)
    first.kill()
    run_for(bench, 60_000)
    bench.plan = replace(SIX_NODES, epoch="seven")
    second = bench.controller(nobody).driver
    assert refusal(second.start) == ("epoch-unfinished", ExitCode.UNFINISHED_EPOCH)


def test_an_epoch_is_adopted_only_with_the_plan_it_was_begun_with(bench):
    started(bench).kill()
    bench.plan = replace(SIX_NODES, max_unavailable=3)
    other = bench.controller(nobody).driver
    assert refusal(other.adopt, takeover=True)[0] == "plan-mismatch"


def test_adopting_an_ended_epoch_changes_nothing(bench):
    started(bench)
    bench.run()
    length = len(bench.ledger.read("six"))
    late = bench.controller(nobody).driver
    late.adopt(takeover=False)
    assert late.is_over
    assert len(bench.ledger.read("six")) == length


def test_a_node_that_a_person_holds_is_skipped_and_stays_held(bench):
    bench.ledger.hold("n2", "ana")
    controller = started(bench)
    bench.run()
    assert states(controller)["n2"] is NodeState.SKIPPED
    assert bench.ledger.foreign_holds("six") == {"n2"}
    assert controller.driver.state.tally.committed == 5


def test_an_abort_touches_no_further_node_and_lets_those_in_flight_end(bench):
    controller = started(bench)
    run_for(bench, 6_000)
    controller.run(
        controller.driver.command, lambda state: proposals.propose_abort(state, "operator")
    )
    bench.run()
    assert controller.driver.state.epoch is EpochState.ENDED
    assert set(states(controller).values()) == {NodeState.COMMITTED, NodeState.SKIPPED}
    assert not bench.audit.violations


def test_a_paused_epoch_parks_without_a_lease_and_goes_on_when_resumed(bench):
    first = started(bench)
    first.run(first.driver.command, lambda state: proposals.propose_pause(state, "lunch"))
    run_for(bench, 600_000)
    assert first.driver.state.tenure is Tenure.PARKED
    second = bench.controller(nobody)
    second.run(second.driver.adopt, takeover=False)
    assert (second.driver.state.epoch, second.driver.state.tenure) == ("paused", "parked")
    third = bench.controller(nobody)
    third.run(
        third.driver.adopt,
        takeover=False,
        decision=lambda state: proposals.propose_resume(state, "back"),
    )
    bench.run()
    assert set(states(third).values()) == {NodeState.COMMITTED}


@pytest.mark.parametrize(
    ("decision", "left"),
    [(proposals.propose_lane_resume, "committed"), (proposals.propose_lane_skip, "skipped")],
)
def test_a_held_lane_goes_on_or_is_left_as_its_operator_decides(decision, left):
    bench = Bench(replace(SIX_NODES, max_unavailable=1), {"n4": Nature(refuses="space-short")})
    first = started(bench)
    bench.run()
    assert states(first)["n5"] is NodeState.STAGED
    assert first.driver.state.tenure is Tenure.PARKED
    second = bench.controller(nobody)
    second.run(second.driver.adopt, takeover=False, decision=lambda state: decision(state, "l2"))
    bench.run()
    assert states(second)["n5"] == left
    assert second.driver.state.epoch is EpochState.ENDED


def test_a_drain_past_its_limit_skips_the_node_and_releases_its_hold():
    bench = Bench(replace(SIX_NODES, budget=Budget(drain_ms=60_000)), {})
    bench.hub.stuck.add("n4")
    controller = started(bench)
    bench.run()
    assert states(controller)["n4"] is NodeState.SKIPPED
    assert not bench.hub.slots["n4"].held
    assert proposals.result_of(controller.driver.state) is ExitCode.NODES_HELD


def test_a_credential_that_ends_during_the_drain_skips_the_node_with_the_arithmetic(bench):
    bench.hub.slots["n3"].credential_until = 300_000
    controller = started(bench)
    bench.run()
    member = controller.driver.state.members["n3"]
    assert member.state is NodeState.SKIPPED
    assert member.reason.startswith("credential-ends-inside: 1.15 x 350 s")


@pytest.mark.parametrize(
    ("natures", "code"),
    [
        ({}, ExitCode.DONE),
        ({"n5": Nature(refuses="space-short")}, ExitCode.NODES_HELD),
        ({"n5": Nature(never_proves=True, restore_fails=True)}, ExitCode.NOT_SERVING),
    ],
)
def test_the_result_says_what_state_the_fleet_is_in(natures, code):
    bench = Bench(SIX_NODES, natures)
    controller = started(bench)
    bench.run()
    assert proposals.result_of(controller.driver.state) is code


def test_more_failed_lanes_than_allowed_halt_the_epoch():
    natures = {"n3": Nature(refuses="drift"), "n4": Nature(refuses="drift")}
    bench = Bench(replace(SIX_NODES, max_failed_lanes=1, max_unavailable=1), natures)
    controller = started(bench)
    bench.run()
    assert controller.driver.state.epoch is EpochState.HALTED
