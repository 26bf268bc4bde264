"""The window arithmetic: bounded, without a term in N, and refused with its numbers."""

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule.lane import budget
from capsule.lane.budget import (
    Budget,
    Liveness,
    Step,
    check_node,
    check_plan_length,
    estimate_length_ms,
    judge_node,
    restore_bound_ms,
    step_bound_ms,
)
from capsule_manifest.errors import ExitCode, Refused

MINUTE = 60_000
TIMES = st.integers(min_value=1, max_value=3_600_000)


def node(age_ms=0, credential_ms=None):
    return Liveness(node="n40", heartbeat_age_ms=age_ms, credential_ms=credential_ms)


def test_the_defaults_hang_together():
    defaults = Budget()
    assert (defaults.ttl_ms, defaults.d1_ms, defaults.d2_ms) == (
        30 * MINUTE,
        2 * MINUTE,
        2 * MINUTE,
    )
    check_node(defaults, node(age_ms=defaults.heartbeat_ms, credential_ms=60 * MINUTE))


def test_a_step_is_its_attempts_their_pauses_and_one_connect():
    step = Step(attempts=3, timeout_ms=30_000, backoff_ms=4_000, connect_ms=38_000)
    assert step_bound_ms(step) == 3 * 30_000 + 2 * 4_000 + 38_000


def test_the_restore_is_the_sum_of_its_parts():
    assert restore_bound_ms(kill_ms=1, stop_ms=20, reload_ms=300, start_ms=4_000) == 4_321


def test_the_window_is_the_longer_deadline_and_the_restore():
    limits = Budget(d1_ms=100, d2_ms=200, restore_ms=50)
    assert (limits.window_ms, limits.op_ms) == (250, 350)


def test_no_window_depends_on_the_size_of_a_fleet():
    # The simulator measures windows of real runs; this is why it finds what it finds.
    assert list(inspect.signature(judge_node).parameters) == ["budget", "liveness"]
    assert "nodes" not in Budget.__dataclass_fields__


def test_a_window_above_the_ttl_is_refused_with_its_arithmetic():
    with pytest.raises(Refused) as refusal:
        check_node(Budget(ttl_ms=300_000), node(age_ms=10_000))
    assert refusal.value.error_id == "window-above-ttl"
    assert refusal.value.exit_code is ExitCode.BUDGET_REFUSED
    assert refusal.value.where == "n40"
    for number in ("230 s", "5 s", "30 s", "299.5 s", "300 s - age 10 s", "290 s"):
        assert number in refusal.value.got


def test_a_window_may_be_exactly_as_long_as_the_node_lives():
    limits = Budget()
    need = -(-115 * limits.window_ms // 100) + limits.skew_ms + limits.heartbeat_ms
    oldest = limits.ttl_ms - need
    assert judge_node(limits, node(age_ms=oldest)).error_id == ""
    assert judge_node(limits, node(age_ms=oldest + 1)).error_id == "window-above-ttl"


def test_a_credential_that_ends_inside_is_refused_with_its_arithmetic():
    limits = Budget()
    need = -(-115 * limits.op_ms // 100) + limits.skew_ms + limits.heartbeat_ms
    least = need + limits.renew_lead_ms
    assert judge_node(limits, node(credential_ms=least)).error_id == ""
    with pytest.raises(Refused, match="credential-ends-inside") as refusal:
        check_node(limits, node(credential_ms=least - 1))
    assert "renewal 300 s" in refusal.value.got


@given(ttl=TIMES, age=TIMES, d1=TIMES, d2=TIMES, restore=TIMES)
def test_what_passes_outlives_its_window(ttl, age, d1, d2, restore):
    limits = Budget(ttl_ms=ttl, d1_ms=d1, d2_ms=d2, restore_ms=restore)
    if not judge_node(limits, node(age_ms=age)).error_id:
        assert age + max(d1, d2) + restore < ttl


@given(remaining=TIMES, d1=TIMES, d2=TIMES, restore=TIMES)
def test_what_passes_keeps_its_credential_to_the_end_of_the_op(remaining, d1, d2, restore):
    limits = Budget(ttl_ms=10**9, d1_ms=d1, d2_ms=d2, restore_ms=restore, renew_lead_ms=0)
    if not judge_node(limits, node(credential_ms=remaining)).error_id:
        assert d1 + d2 + restore < remaining


@pytest.mark.parametrize(
    ("nodes", "max_unavailable", "rounds"),
    [(1, 5, 1), (2, 5, 2), (3, 5, 2), (3, 1, 3), (4, 5, 3), (8, 5, 3), (9, 5, 4), (50, 5, 12)],
)
def test_an_epoch_is_one_canary_then_two_then_full_width(nodes, max_unavailable, rounds):
    one = Budget().drain_ms + Budget().op_ms
    length = estimate_length_ms(Budget(), nodes=nodes, max_unavailable=max_unavailable)
    assert length == rounds * one


def test_a_plan_longer_than_a_credential_lists_what_to_rotate_first():
    fleet = [
        node(),
        Liveness(node="n2", heartbeat_age_ms=0, credential_ms=2 * MINUTE),
        Liveness(node="n1", heartbeat_age_ms=0, credential_ms=MINUTE),
        Liveness(node="n3", heartbeat_age_ms=0, credential_ms=10**10),
    ]
    with pytest.raises(Refused, match="credential-ends-first") as refusal:
        check_plan_length(Budget(), fleet, nodes=4, max_unavailable=1)
    assert refusal.value.got == "n1 60 s, n2 120 s"
    assert refusal.value.where == "limiting node n1"


def test_a_plan_shorter_than_every_credential_passes():
    check_plan_length(Budget(), [node(), node(credential_ms=10**9)], nodes=4, max_unavailable=1)
    assert budget.MARGIN_PERCENT == 115


def test_a_drain_that_ate_the_ttl_is_noticed_at_the_second_gate():
    budget = Budget(ttl_ms=600_000)
    fresh = Liveness(node="n", heartbeat_age_ms=200_000, credential_ms=None)
    stale = Liveness(node="n", heartbeat_age_ms=400_000, credential_ms=None)
    assert judge_node(budget, fresh).error_id == ""
    assert judge_node(budget, stale).error_id == "window-above-ttl"
