"""A node that would not outlive its own window is refused, with the arithmetic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def liveness(age_s=0, credential_s=None, node="n17"):
    credential_ms = None if credential_s is None else 1000 * credential_s
    return Liveness(node=node, heartbeat_age_ms=1000 * age_s, credential_ms=credential_ms)


def test_the_defaults_hang_together():
    budget = Budget()
    assert (budget.ttl_ms, budget.d1_ms, budget.d2_ms) == (1_800_000, 120_000, 120_000)
    # Also for a node whose heartbeat is a whole drain and three intervals old.
    late = budget.drain_ms + 3 * budget.heartbeat_ms
    assert judge_node(budget, liveness(late // 1000)).error_id == ""
    assert budget.restore_ms <= budget.d1_ms


def test_a_window_above_the_ttl_is_refused_with_its_arithmetic():
    with pytest.raises(Refused) as refused:
        check_node(Budget(ttl_ms=300_000), liveness(5))
    assert refused.value.error_id == "window-above-ttl"
    assert refused.value.exit_code is ExitCode.BUDGET_REFUSED
    assert refused.value.got == (
        "1.15 x 230 s + skew 5 s + heartbeat 30 s = 299.5 s against TTL 300 s - age 5 s = 295 s"
    )
    assert refused.value.where == "n17"


def test_a_drain_that_ate_the_ttl_is_noticed_at_the_second_gate():
    budget = Budget(ttl_ms=600_000)
    assert judge_node(budget, liveness(200)).error_id == ""
    assert judge_node(budget, liveness(400)).error_id == "window-above-ttl"


def test_a_credential_that_ends_inside_the_window_is_refused():
    with pytest.raises(Refused) as refused:
        check_node(Budget(), liveness(credential_s=600))
    assert refused.value.error_id == "credential-ends-inside"


def test_credentials_that_end_before_the_epoch_are_listed_soonest_first():
    nodes = [
        liveness(credential_s=9_000, node="b"),
        liveness(credential_s=4_000, node="a"),
        liveness(credential_s=10**7, node="c"),
    ]
    with pytest.raises(Refused) as refused:
        check_plan_length(Budget(), nodes, nodes=50, max_unavailable=4)
    assert refused.value.error_id == "credential-ends-first"
    assert refused.value.got == "a 4000 s, b 9000 s"
    assert refused.value.where == "limiting node a"


def test_credentials_that_outlive_the_epoch_pass():
    assert estimate_length_ms(Budget(), nodes=3, max_unavailable=1) < 9_000_000
    check_plan_length(Budget(), [liveness(credential_s=10**6)], nodes=50, max_unavailable=4)


def test_a_step_counts_its_attempts_pauses_and_connects():
    step = Step(attempts=3, timeout_ms=10_000, backoff_ms=4_000, connect_ms=38_000)
    assert step_bound_ms(step) == 3 * 10_000 + 2 * 4_000 + 38_000


def test_a_restore_is_bounded_by_the_sum_of_its_parts():
    assert restore_bound_ms(kill_ms=1, stop_ms=2, reload_ms=4, start_ms=8) == 15


@given(st.integers(1, 10_000), st.integers(1, 64))
def test_the_window_has_no_term_in_the_number_of_nodes(nodes, max_unavailable):
    budget = Budget()
    assert budget.window_ms == 230_000
    rounds = estimate_length_ms(budget, nodes=nodes, max_unavailable=max_unavailable)
    assert rounds >= nodes / max(max_unavailable, 2) * (budget.drain_ms + budget.op_ms) * 0.5


@given(st.integers(0, 2_000), st.integers(0, 4_000))
def test_an_older_heartbeat_never_turns_a_refusal_into_a_pass(age_s, more_s):
    if judge_node(Budget(), liveness(age_s)).error_id:
        assert judge_node(Budget(), liveness(age_s + more_s)).error_id
