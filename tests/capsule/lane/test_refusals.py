"""Every refusal shows its arithmetic, ends with its code, and says what to do next.

The texts are in `tests/golden/refusals.txt`, as an operator sees them.
"""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from capsule.lane.budget import Budget, Liveness, check_node, check_plan_length
from capsule.lane.events import Started
from capsule.lane.plan import PlannedNode, RolloutPlan, check_plan
from capsule.lane.ports import Rows
from capsule.ledger.opening import open_ledger
from capsule_manifest.errors import ExitCode, Refused, render
from support.memory_ledger import MemoryLedger

GOLDEN = Path(__file__).resolve().parents[2] / "golden/refusals.txt"
MINUTE_MS = 60_000
NODES = tuple(
    PlannedNode(name=f"n{number:02}", lane=f"l{number // 8}", domain="d", serving=number != 9)
    for number in range(10)
)
PLAN = RolloutPlan(
    epoch="e1",
    capsule="c",
    route="r",
    preflight="p",
    nodes=NODES,
    bystanders=0,
    max_unavailable=2,
    floor=8,
    domain_cap=None,
    max_failed_lanes=None,
    allow_outage=False,
    budget=Budget(),
)


class Clock:
    """A clock that is set."""

    value_ms = 0

    def now_ms(self):
        return self.value_ms


def window_above_ttl():
    # The replaced transaction's own numbers: recovery in turn outlived the TTL of an hour.
    budget = Budget(ttl_ms=60 * MINUTE_MS, d1_ms=40 * MINUTE_MS, restore_ms=15 * MINUTE_MS)
    check_node(budget, Liveness(node="n40", heartbeat_age_ms=12_000, credential_ms=None))


def credential_ends_inside():
    check_node(Budget(), Liveness(node="n07", heartbeat_age_ms=0, credential_ms=11 * MINUTE_MS))


def credential_ends_first():
    livenesses = [
        Liveness(node=f"n{number:02}", heartbeat_age_ms=0, credential_ms=hours * 60 * MINUTE_MS)
        for number, hours in enumerate((24, 1, 24, 2))
    ]
    check_plan_length(Budget(), livenesses, nodes=50, max_unavailable=5)


def floor_above_healthy():
    check_plan(replace(PLAN, floor=10))


def lane_wider_than_eight():
    check_plan(replace(PLAN, nodes=tuple(replace(node, lane="l0") for node in NODES)))


def one_node_without_leave():
    check_plan(replace(PLAN, nodes=NODES[:1], floor=0))


def second_controller(ledger):
    ledger.acquire("product acme/web", "ana/4242", takeover=False)
    ledger.acquire("product acme/web", "ben/4343", takeover=False)


def stale_fence(ledger):
    old = ledger.acquire("product acme/web", "ana/4242", takeover=False)
    ledger.acquire("product acme/web", "ben/4343", takeover=True)
    ledger.append(old, "e1", expected_seq=0, events=[], rows=Rows())


def unfinished_epoch(ledger):
    lease = ledger.acquire("product acme/web", "ana/4242", takeover=False)
    started = [Started(plan="sha256:" + "a" * 64, fence=1)]
    ledger.append(lease, "e1", expected_seq=0, events=started, rows=Rows(opened=("n01", "n02")))
    ledger.append(lease, "e2", expected_seq=0, events=started, rows=Rows(opened=("n02", "n03")))


ARITHMETIC = (
    (window_above_ttl, "window-above-ttl", ExitCode.BUDGET_REFUSED),
    (credential_ends_inside, "credential-ends-inside", ExitCode.BUDGET_REFUSED),
    (credential_ends_first, "credential-ends-first", ExitCode.BUDGET_REFUSED),
    (floor_above_healthy, "floor-too-high", ExitCode.BUDGET_REFUSED),
    (lane_wider_than_eight, "lane-too-wide", ExitCode.BUDGET_REFUSED),
    (one_node_without_leave, "outage-not-allowed", ExitCode.BUDGET_REFUSED),
)
SHARED = (
    (second_controller, "lease-busy", ExitCode.BUSY),
    (stale_fence, "fence-stale", ExitCode.FENCED),
    (unfinished_epoch, "epoch-unfinished", ExitCode.UNFINISHED_EPOCH),
)


def refused(call, *arguments):
    with pytest.raises(Refused) as caught:
        call(*arguments)
    return caught.value


@pytest.mark.parametrize(("call", "error_id", "code"), ARITHMETIC)
def test_a_plan_that_can_not_hold_is_refused_with_its_code(call, error_id, code):
    error = refused(call)
    assert (error.error_id, error.exit_code) == (error_id, code)


@pytest.mark.parametrize(("call", "error_id", "code"), SHARED)
def test_every_ledger_refuses_with_the_same_text(tmp_path, call, error_id, code):
    error = refused(call, MemoryLedger(Clock()))
    assert (error.error_id, error.exit_code) == (error_id, code)
    with open_ledger(str(tmp_path / "ledger.db"), create=True) as ledger:
        ledger.add_nodes(["n01", "n02", "n03"])
        # A slow machine has spent a part of the lease by the time of the second call.
        told = re.sub(r"for \d+ s more", "for 30 s more", str(refused(call, ledger)))
    assert told == str(error)


def test_the_texts_are_those_that_an_operator_was_promised(golden):
    shown = [refused(call) for call, _, _ in ARITHMETIC]
    shown += [refused(call, MemoryLedger(Clock())) for call, _, _ in SHARED]
    golden(
        GOLDEN,
        "".join(f"exit code {int(error.exit_code)}\n{render(error)}\n\n" for error in shown),
    )


def test_a_fleet_that_is_down_needs_no_floor():
    down = tuple(replace(node, serving=False) for node in NODES)
    check_plan(replace(PLAN, nodes=down, floor=10))


def test_one_node_goes_with_leave_or_when_it_does_not_serve():
    one = replace(PLAN, nodes=NODES[:1], floor=0)
    check_plan(replace(one, allow_outage=True))
    check_plan(replace(one, nodes=(replace(NODES[0], serving=False),)))
