"""One driver on fakes of its ports: what it records, sends, waits for, and when it lets go."""

from dataclasses import replace

import pytest

from capsule.lane.driver import Driver, Patience, op_id_of
from capsule.lane.epoch import EpochState, Tenure
from capsule.lane.hold import HoldState
from capsule.lane.lane import LaneState
from capsule.lane.node import NodeState
from capsule.lane.plan import plan_digest
from capsule.lane.ports import HoldReport, HostReport, HostStep, Unreachable
from capsule.lane.proposals import propose_abort, propose_lane_resume, propose_resume
from capsule_manifest.errors import ExitCode, Refused
from support.memory_ledger import MemoryLedger
from support.plans import plan_of_three

PLAN = plan_of_three(max_unavailable=2)
PATIENCE = Patience()


class World:
    """A clock, a ledger, and a list of what was sent."""

    def __init__(self):
        self.now = 0
        self.ledger = MemoryLedger(self)
        self.sent = []

    def now_ms(self):
        return self.now

    def hold(self, node, turn, *, fence):
        self.sent.append(("hold", node, turn, fence))

    def release(self, node, turn, *, fence):
        self.sent.append(("release", node, turn, fence))

    def order(self, node, op_id, *, fence):
        self.sent.append(("order", node, op_id, fence))

    def confirm(self, node, op_id, *, proof, fence):
        self.sent.append(("confirm", node, op_id, proof, fence))

    def query(self, node, op_id, *, fence):
        self.sent.append(("query", node, op_id, fence))

    def driver(self, plan=PLAN, holder="ana"):
        return Driver(
            plan,
            ledger=self.ledger,
            hosts=self,
            dispatch=self,
            clock=self,
            scope="fleet",
            holder=holder,
            patience=PATIENCE,
        )

    def taken(self):
        """Return what was sent since the last call."""
        sent, self.sent = self.sent, []
        return sent

    def wait(self, driver, time_ms):
        """Let time pass as a shell does: tick when the driver wants it."""
        until = self.now + time_ms
        while not driver.is_over and driver.next_at_ms <= until:
            self.now = max(self.now, driver.next_at_ms)
            driver.tick()
        self.now = until


@pytest.fixture
def world():
    return World()


@pytest.fixture
def driver(world):
    """Return a driver that has started and taken its canary."""
    driver = world.driver()
    driver.start()
    assert world.taken() == [("hold", "a", 1, 1)]
    return driver


def held(node, turn=1, **changes):
    values = {
        "node": node,
        "turn": turn,
        "held": True,
        "busy": 0,
        "serving": True,
        "heartbeat_age_ms": 0,
        "credential_ms": None,
    }
    return HoldReport(**(values | changes))


def says(driver, node, step, **changes):
    values = {
        "node": node,
        "op_id": driver.state.members[node].op_id,
        "step": step,
        "closed": False,
        "serving": True,
        "proof": "proof" if step is HostStep.PROVED else "",
        "reason": "",
    }
    return HostReport(**(values | changes))


def state_of(driver, node):
    return driver.state.members[node].state


def commit(driver, node, turn=1):
    """Let a node that holds its permit go all the way."""
    driver.receive(held(node, turn))
    for step in (HostStep.STOPPED, HostStep.PROVED, HostStep.COMMITTED):
        driver.receive(says(driver, node, step))
    driver.receive(held(node, turn, held=False))


# --- the ordinary way -----------------------------------------------------------------------------
def test_a_node_goes_from_hold_to_commit_with_one_message_a_step(world, driver):
    op_id = op_id_of(plan_digest(PLAN), "a", 1)
    driver.receive(held("a"))
    assert world.taken() == [("order", "a", op_id, 1)]
    driver.receive(says(driver, "a", HostStep.ACCEPTED))
    driver.receive(says(driver, "a", HostStep.STOPPED))
    driver.receive(says(driver, "a", HostStep.SWITCHED))
    driver.receive(says(driver, "a", HostStep.STARTED))
    assert world.taken() == []
    driver.receive(says(driver, "a", HostStep.PROVED))
    assert world.taken() == [("confirm", "a", op_id, "proof", 1)]
    driver.receive(says(driver, "a", HostStep.COMMITTED))
    # The canary has committed, so two may be out; its own permit is one of them until it returns.
    assert world.taken() == [("release", "a", 1, 1), ("hold", "b", 1, 1)]
    assert world.ledger.permits("e1") == {"a", "b"}
    driver.receive(held("a", held=False))
    assert world.ledger.permits("e1") == {"b", "c"}
    assert world.taken() == [("hold", "c", 1, 1)]


def test_when_every_node_has_committed_the_epoch_ends_and_the_lease_is_free(world, driver):
    for node in ("a", "b", "c"):
        commit(driver, node)
    assert driver.state.epoch is EpochState.ENDED
    assert driver.is_over
    assert not driver.is_fenced
    assert world.ledger.permits("e1") == set()
    world.ledger.acquire("fleet", "ben", takeover=False)


def test_a_driver_that_is_over_takes_nothing_in(world, driver):
    for node in ("a", "b", "c"):
        commit(driver, node)
    world.taken()
    before = driver.state
    driver.receive(held("a"))
    driver.see_health("a", serving=False)
    driver.command(lambda state: propose_abort(state, "late"))
    driver.tick()
    assert driver.state is before
    assert world.taken() == []


def test_what_is_recorded_is_the_state_that_an_adopter_reads(world, driver):
    commit(driver, "a")
    adopter = world.driver(holder="ben")
    adopter.adopt(takeover=True)
    assert state_of(adopter, "a") is NodeState.COMMITTED
    assert adopter.fence == 2


# --- refusals -------------------------------------------------------------------------------------
@pytest.mark.usefixtures("driver")
def test_a_second_controller_is_refused_while_the_first_has_the_lease(world):
    with pytest.raises(Refused, match="lease-busy") as refusal:
        world.driver(holder="ben").adopt(takeover=False)
    assert refusal.value.exit_code is ExitCode.BUSY
    assert "ana" in refusal.value.got


@pytest.mark.usefixtures("driver")
def test_an_unfinished_epoch_is_adopted_or_aborted_and_not_begun_beside(world):
    world.now += 60_000
    other = world.driver(replace(PLAN, epoch="e2"), holder="ben")
    with pytest.raises(Refused, match="epoch-unfinished") as refusal:
        other.start()
    assert refusal.value.exit_code is ExitCode.UNFINISHED_EPOCH
    assert other.is_over
    # The refused one left no lease behind, so that adopting works at once.
    world.driver(holder="ben").adopt(takeover=False)


@pytest.mark.usefixtures("driver")
def test_adopting_under_another_plan_is_refused_and_leaves_no_lease(world):
    other = world.driver(replace(PLAN, floor=1), holder="ben")
    with pytest.raises(Refused, match="plan-mismatch") as refusal:
        other.adopt(takeover=True)
    assert refusal.value.exit_code is ExitCode.ROUTE_MISMATCH
    world.driver(holder="ben").adopt(takeover=False)


def test_a_plan_that_can_not_be_carried_out_takes_no_lease(world):
    with pytest.raises(Refused, match="floor-too-high"):
        world.driver(replace(PLAN, floor=6)).start()
    world.driver().start()


def test_a_ledger_that_refuses_for_another_reason_is_not_taken_for_a_takeover(world, driver):
    world.ledger._permits["b"] = "another epoch"
    with pytest.raises(Refused, match="permit-taken"):
        commit(driver, "a")
    assert not driver.is_fenced


# --- fences and leases ----------------------------------------------------------------------------
def test_a_replaced_controller_sends_nothing_more(world, driver):
    world.driver(holder="ben").adopt(takeover=True)
    world.taken()
    driver.receive(held("a"))
    assert driver.is_fenced
    assert driver.is_over
    assert world.taken() == []


def test_the_lease_is_renewed_so_that_nobody_can_take_it(world, driver):
    driver.receive(held("a", busy=1))
    world.wait(driver, 120_000)
    assert not driver.is_over
    with pytest.raises(Refused, match="lease-busy"):
        world.driver(holder="ben").adopt(takeover=False)


def test_a_controller_that_could_not_renew_in_time_stops_itself(world, driver):
    world.now += PATIENCE.self_stop_ms
    driver.tick()
    assert driver.is_fenced
    assert driver.is_over


def test_a_renewal_that_is_refused_ends_the_controller(world, driver):
    world.driver(holder="ben").adopt(takeover=True)
    world.now += PATIENCE.renew_ms
    driver.tick()
    assert driver.is_fenced


# --- adoption -------------------------------------------------------------------------------------
@pytest.mark.usefixtures("driver")
def test_an_adopter_gives_untouched_holds_back(world):
    adopter = world.driver(holder="ben")
    adopter.adopt(takeover=True)
    assert state_of(adopter, "a") is NodeState.STAGED
    assert adopter.state.members["a"].hold is HoldState.RELEASING
    assert ("release", "a", 1, 2) in world.taken()
    assert "a" in world.ledger.permits("e1")
    adopter.receive(held("a", held=False))
    assert adopter.state.members["a"].attempts == 2


def test_an_adopter_fences_what_may_have_been_ordered_before_it_concludes_anything(world, driver):
    driver.receive(held("a"))
    adopter = world.driver(holder="ben")
    adopter.adopt(takeover=True)
    op_id = adopter.state.members["a"].op_id
    assert ("query", "a", op_id, 2) in world.taken()
    assert state_of(adopter, "a") is NodeState.UNKNOWN
    adopter.receive(says(adopter, "a", HostStep.NO_RECORD))
    assert state_of(adopter, "a") is NodeState.UNKNOWN
    assert world.taken() == []
    adopter.receive(says(adopter, "a", HostStep.NO_RECORD, closed=True))
    assert state_of(adopter, "a") is NodeState.STAGED


def test_an_adopter_confirms_a_proof_that_it_finds(world, driver):
    driver.receive(held("a"))
    adopter = world.driver(holder="ben")
    adopter.adopt(takeover=True)
    world.taken()
    adopter.receive(says(adopter, "a", HostStep.PROVED))
    op_id = adopter.state.members["a"].op_id
    assert world.taken() == [("confirm", "a", op_id, "proof", 2)]


def test_adopting_an_epoch_that_has_ended_changes_nothing(world, driver):
    for node in ("a", "b", "c"):
        commit(driver, node)
    recorded = len(world.ledger.read("e1"))
    adopter = world.driver(holder="ben")
    adopter.adopt(takeover=False)
    assert adopter.is_over
    assert adopter.state.epoch is EpochState.ENDED
    assert len(world.ledger.read("e1")) == recorded


def test_an_adopter_asks_again_for_a_release_that_was_not_acknowledged(world, driver):
    driver.receive(held("a"))
    for step in (HostStep.PROVED, HostStep.COMMITTED):
        driver.receive(says(driver, "a", step))
    world.taken()
    adopter = world.driver(holder="ben")
    adopter.adopt(takeover=True)
    assert ("release", "a", 1, 2) in world.taken()


# --- waiting --------------------------------------------------------------------------------------
def test_a_dispatcher_that_does_not_answer_is_asked_again_and_then_left(world, driver):
    world.wait(driver, PATIENCE.hold_ms)
    sent = world.taken()
    assert sent.count(("hold", "a", 1, 1)) == PATIENCE.hold_ms // PATIENCE.repeat_ms - 1
    assert ("release", "a", 1, 1) in sent
    assert state_of(driver, "a") is NodeState.STAGED


def test_a_node_whose_hold_never_comes_is_left_alone_after_three_times(world, driver):
    for turn in (1, 2, 3):
        world.wait(driver, PATIENCE.hold_ms)
        driver.receive(held("a", turn, held=False))
    assert state_of(driver, "a") is NodeState.SKIPPED
    assert "3 times" in driver.state.members["a"].reason


def test_a_drain_that_does_not_finish_releases_its_hold_and_skips_the_node(world, driver):
    driver.receive(held("a", busy=1))
    world.wait(driver, PLAN.budget.drain_ms + PATIENCE.repeat_ms)
    assert state_of(driver, "a") is NodeState.SKIPPED
    assert ("release", "a", 1, 1) in world.taken()
    assert driver.state.lanes["lane-a"] is LaneState.OPEN


def test_a_silent_host_becomes_unknown_and_is_asked_until_it_answers(world, driver):
    driver.receive(held("a"))
    world.taken()
    world.wait(driver, PATIENCE.silence_ms)
    assert state_of(driver, "a") is NodeState.UNKNOWN
    world.taken()
    world.wait(driver, 4 * PATIENCE.repeat_ms)
    assert len([sent for sent in world.taken() if sent[0] == "query"]) == 4
    driver.receive(says(driver, "a", HostStep.COMMITTED))
    assert state_of(driver, "a") is NodeState.COMMITTED


def test_a_host_that_is_heard_is_not_silent(world, driver):
    driver.receive(held("a"))
    for _ in range(10):
        world.wait(driver, PATIENCE.silence_ms // 2)
        driver.receive(says(driver, "a", HostStep.ACCEPTED))
    assert state_of(driver, "a") is NodeState.STOP_INTENT


def test_an_order_that_was_lost_is_sent_again_under_its_op_id(world, driver):
    driver.receive(held("a"))
    (first,) = world.taken()
    driver.receive(says(driver, "a", HostStep.NO_RECORD))
    assert world.taken() == [first]


def test_a_confirm_is_repeated_until_the_outcome_is_heard(world, driver):
    driver.receive(held("a"))
    driver.receive(says(driver, "a", HostStep.PROVED))
    world.taken()
    world.wait(driver, PATIENCE.repeat_ms)
    assert [sent[0] for sent in world.taken()] == ["confirm", "query"]


def test_a_release_is_repeated_until_it_is_acknowledged(world, driver):
    driver.receive(held("a"))
    for step in (HostStep.PROVED, HostStep.COMMITTED):
        driver.receive(says(driver, "a", step))
    world.taken()
    world.wait(driver, 2 * PATIENCE.repeat_ms)
    assert world.taken().count(("release", "a", 1, 1)) == 2


# --- what changes nothing -------------------------------------------------------------------------
@pytest.mark.parametrize("step", HostStep)
def test_a_report_about_another_op_changes_nothing(world, driver, step):
    driver.receive(held("a"))
    world.taken()
    before = driver.state
    driver.receive(says(driver, "a", step, op_id="0" * 32, closed=True))
    assert driver.state is before
    assert world.taken() == []


def test_a_report_about_a_node_that_nothing_was_asked_of_changes_nothing(driver):
    before = driver.state
    driver.receive(says(driver, "c", HostStep.STOPPED))
    assert driver.state is before


def test_a_send_that_failed_says_nothing_about_the_host(driver):
    driver.receive(held("a"))
    before = driver.state
    driver.receive(Unreachable(node="a", reason="connect timed out"))
    assert driver.state is before


def test_a_late_hold_of_an_earlier_turn_orders_nothing(world, driver):
    world.wait(driver, PATIENCE.hold_ms)
    driver.receive(held("a", 1, held=False))
    world.taken()
    driver.receive(held("a", 1))
    assert state_of(driver, "a") is NodeState.HOLDING
    assert world.taken() == []


# --- the world changes ----------------------------------------------------------------------------
def test_a_fleet_at_its_floor_goes_on_when_another_node_serves_again(world):
    plan = replace(PLAN, bystanders=0, floor=2)
    driver = world.driver(plan)
    driver.start()
    commit(driver, "a")
    assert len(world.ledger.permits("e1")) == 1
    driver.see_health("a", serving=False)
    driver.receive(held("b"))
    for step in (HostStep.PROVED, HostStep.COMMITTED):
        driver.receive(says(driver, "b", step))
    driver.receive(held("b", held=False))
    assert world.ledger.permits("e1") == set()
    world.taken()
    driver.see_health("a", serving=True)
    assert world.taken() == [("hold", "c", 1, 1)]


def test_health_that_is_known_already_is_not_recorded(world, driver):
    recorded = len(world.ledger.read("e1"))
    driver.see_health("c", serving=True)
    driver.receive(held("a"))
    driver.see_health("a", serving=False)
    assert [type(r.event).__name__ for r in world.ledger.read("e1")[recorded:]] == [
        "HoldSeen",
        "StopIntended",
    ]


def test_a_node_that_a_person_holds_is_skipped_and_stays_held(world):
    world.ledger.hold("a", "ben")
    driver = world.driver()
    driver.start()
    assert state_of(driver, "a") is NodeState.SKIPPED
    assert world.taken() == [("hold", "b", 1, 1)]
    assert world.ledger.holders("a") == {"ben"}


# --- parking --------------------------------------------------------------------------------------
def test_a_failed_canary_halts_the_epoch_and_it_parks_at_once(world, driver):
    driver.receive(held("a"))
    driver.receive(says(driver, "a", HostStep.RESTORED))
    assert state_of(driver, "a") is NodeState.HELD
    assert driver.state.epoch is EpochState.HALTED
    assert driver.state.tenure is Tenure.PARKED
    assert driver.is_over
    parked = world.ledger.read("e1")[-1].event
    assert parked.exit_code == ExitCode.NODES_HELD
    assert world.ledger.permits("e1") == set()


def test_an_unresolved_permit_parks_the_epoch_in_bounded_time(world, driver):
    driver.receive(held("a"))
    world.wait(driver, PATIENCE.silence_ms + PATIENCE.stall_ms + PATIENCE.repeat_ms)
    assert driver.state.tenure is Tenure.PARKED
    assert world.ledger.read("e1")[-1].event.exit_code == ExitCode.NOT_SERVING
    assert world.ledger.permits("e1") == {"a"}
    world.ledger.acquire("fleet", "ben", takeover=False)


def test_a_parked_epoch_goes_on_when_it_is_adopted_with_a_decision(world, driver):
    driver.receive(held("a"))
    driver.receive(says(driver, "a", HostStep.RESTORED))
    world.taken()
    adopter = world.driver(holder="ben")
    adopter.adopt(takeover=False, decision=lambda state: propose_resume(state, "looked at"))
    assert adopter.state.epoch is EpochState.RUNNING
    assert world.taken() == [("hold", "b", 1, 2)]


def test_a_parked_epoch_that_is_adopted_without_a_decision_parks_again(world, driver):
    driver.receive(held("a"))
    driver.receive(says(driver, "a", HostStep.RESTORED))
    adopter = world.driver(holder="ben")
    adopter.adopt(takeover=False)
    assert adopter.state.tenure is Tenure.PARKED
    world.ledger.acquire("fleet", "cem", takeover=False)


def test_an_abort_lets_the_ordered_node_reach_its_own_end(world, driver):
    driver.receive(held("a"))
    driver.command(lambda state: propose_abort(state, "operator"))
    assert state_of(driver, "b") is NodeState.SKIPPED
    assert state_of(driver, "a") is NodeState.STOP_INTENT
    for step in (HostStep.PROVED, HostStep.COMMITTED):
        driver.receive(says(driver, "a", step))
    driver.receive(held("a", held=False))
    assert driver.state.epoch is EpochState.ENDED
    assert world.ledger.read("e1")[-1].event.exit_code == ExitCode.NODES_HELD


def test_a_command_that_does_not_apply_records_nothing(world, driver):
    recorded = len(world.ledger.read("e1"))
    driver.command(lambda state: propose_lane_resume(state, "lane-a"))
    assert len(world.ledger.read("e1")) == recorded


# --- a host that answers for ever and never ends -------------------------------------------------
ENDLESS_MS = 1.15 * PLAN.budget.op_ms + PATIENCE.silence_ms + PATIENCE.repeat_ms


def keep_saying(world, driver, node, step, time_ms):
    """Let a host answer every query with the same step."""
    until = world.now + time_ms
    while not driver.is_over and world.now < until:
        world.wait(driver, PATIENCE.repeat_ms)
        if not driver.is_over:
            driver.receive(says(driver, node, step))


@pytest.mark.parametrize(
    "step", [HostStep.ACCEPTED, HostStep.STOPPED, HostStep.PROVED, HostStep.RESTORING]
)
def test_a_host_that_answers_for_ever_and_never_ends_its_op_becomes_unknown(world, driver, step):
    driver.receive(held("a"))
    keep_saying(world, driver, "a", step, ENDLESS_MS)
    assert state_of(driver, "a") is NodeState.UNKNOWN
    # Saying the same once more is no news: the epoch parks, and does not begin to wait again.
    keep_saying(world, driver, "a", step, PATIENCE.stall_ms + 2 * PATIENCE.renew_ms)
    assert driver.state.tenure is Tenure.PARKED
    assert state_of(driver, "a") is NodeState.UNKNOWN


@pytest.mark.parametrize(
    ("step", "after"),
    [(HostStep.COMMITTED, NodeState.COMMITTED), (HostStep.RESTORED, NodeState.HELD)],
)
def test_an_end_is_taken_however_late_it_comes(world, driver, step, after):
    driver.receive(held("a"))
    keep_saying(world, driver, "a", HostStep.PROVED, ENDLESS_MS)
    assert state_of(driver, "a") is NodeState.UNKNOWN
    driver.receive(says(driver, "a", step))
    assert state_of(driver, "a") is after


def test_a_slow_host_is_waited_for_as_long_as_its_own_limits_allow(world, driver):
    driver.receive(held("a"))
    keep_saying(world, driver, "a", HostStep.STOPPED, PLAN.budget.op_ms)
    assert state_of(driver, "a") is NodeState.STOPPED


def test_an_epoch_that_has_no_room_under_the_floor_says_so_when_it_parks(world):
    driver = world.driver(replace(PLAN, bystanders=0, floor=2))
    driver.start()
    commit(driver, "a")
    driver.see_health("a", serving=False)
    commit(driver, "b")
    world.wait(driver, PATIENCE.stall_ms + 2 * PATIENCE.renew_ms)
    assert driver.state.tenure is Tenure.PARKED
    assert state_of(driver, "c") is NodeState.STAGED
    parked = [item.event for item in world.ledger.read(PLAN.epoch)][-1]
    assert "floor" in parked.reason
