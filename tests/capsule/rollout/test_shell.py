"""The production loop on fakes: decisions, interrupts, and reports one at a time."""

import pytest

from capsule.lane.driver import Driver, Patience
from capsule.lane.epoch import EpochState
from capsule.lane.node import NodeState
from capsule.lane.ports import HostReport, HostStep
from capsule.rollout.decisions import Inbox, Wish
from capsule.rollout.dispatch import LedgerDispatch
from capsule.rollout.shell import BootClock, Interrupts, Mailbox, run_driver
from support.memory_ledger import MemoryLedger
from support.plans import plan_of_three

PLAN = plan_of_three(max_unavailable=1)


class Fleet:
    """Hosts that commit at once, and can do something when a node is ordered."""

    def __init__(self, tmp_path):
        self.mailbox = Mailbox()
        self.inbox = Inbox(folder=tmp_path / "inbox")
        self.interrupts = Interrupts()
        self.clock = BootClock()
        self.on_order = {}
        self.refused = []
        self.is_silent = False
        self.driver = Driver(
            PLAN,
            ledger=MemoryLedger(self.clock),
            hosts=self,
            dispatch=LedgerDispatch(hear=self.mailbox.hear, serving=lambda _: True),
            clock=self.clock,
            scope="fleet",
            holder="ana",
            patience=Patience(),
        )

    def order(self, node, op_id, *, fence):
        self.on_order.pop(node, lambda: None)()
        if not self.is_silent:
            self.say(node, op_id, HostStep.PROVED, proof="p")

    def confirm(self, node, op_id, *, proof, fence):
        self.say(node, op_id, HostStep.COMMITTED)

    def query(self, node, op_id, *, fence): ...

    def say(self, node, op_id, step, proof=""):
        self.mailbox.hear(
            HostReport(
                node=node, op_id=op_id, step=step, closed=True, serving=True, proof=proof, reason=""
            )
        )

    def run(self):
        self.driver.start()
        return run_driver(
            self.driver,
            mailbox=self.mailbox,
            inbox=self.inbox,
            interrupts=self.interrupts,
            clock=self.clock,
            refused=lambda wish, error: self.refused.append((wish.verb, error.error_id)),
            turned=lambda: None,
        )

    def states(self):
        return [member.state for member in self.driver.state.members.values()]


@pytest.fixture
def fleet(tmp_path):
    return Fleet(tmp_path)


def interrupt(fleet, times=1):
    fleet.interrupts.count += times


def test_an_epoch_runs_to_its_end(fleet):
    assert fleet.run()
    assert fleet.states() == [NodeState.COMMITTED] * 3
    assert fleet.driver.state.epoch is EpochState.ENDED


def test_the_first_interrupt_lets_what_is_under_way_end_and_takes_nothing_new(fleet):
    fleet.on_order["b"] = lambda: interrupt(fleet)
    assert fleet.run()
    assert fleet.states() == [NodeState.COMMITTED, NodeState.COMMITTED, NodeState.STAGED]
    assert fleet.driver.state.epoch is EpochState.PAUSED


def test_the_second_interrupt_detaches_at_once_and_keeps_the_lease_for_its_time(fleet):
    fleet.is_silent = True
    fleet.on_order["a"] = lambda: interrupt(fleet, 2)
    assert not fleet.run()
    assert not fleet.driver.is_over
    assert fleet.states()[0] is NodeState.STOP_INTENT


def test_a_decision_in_the_inbox_is_carried_out_and_removed(fleet):
    fleet.on_order["a"] = lambda: fleet.inbox.put(
        Wish(verb="abort", subject="", reason="enough"), "1"
    )
    assert fleet.run()
    assert fleet.states() == [NodeState.COMMITTED, NodeState.SKIPPED, NodeState.SKIPPED]
    assert fleet.inbox.waiting() == []


def test_a_decision_about_a_lane_that_is_not_there_is_refused_and_nothing_else_happens(fleet):
    fleet.inbox.put(Wish(verb="lane-skip", subject="zz", reason=""), "1")
    assert fleet.run()
    assert fleet.refused == [("lane-skip", "node-unknown")]
    assert fleet.states() == [NodeState.COMMITTED] * 3
