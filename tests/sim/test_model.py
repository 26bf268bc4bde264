"""The five rules of adoption are enough, and none of them can be left out."""

from dataclasses import replace
from functools import cache

import pytest

from sim.model import RULES, Rules, Size, explore

FLEET = Size(nodes=3, floor=1, max_unavailable=2, fences=2)
THREE_CONTROLLERS = Size(nodes=2, floor=1, max_unavailable=1, fences=3)
STATES_MAX = 100_000


@cache
def explored(size, removed):
    """Explore once what several tests look at."""
    rules = replace(Rules(), **{removed: False}) if removed else Rules()
    return explore(rules, size, states_max=30_000 if removed else STATES_MAX)


@pytest.mark.parametrize("size", [FLEET, THREE_CONTROLLERS])
def test_with_all_rules_no_reachable_state_is_a_violation(size):
    found = explored(size, None)
    assert found.is_complete
    assert found.violations == {}


@pytest.mark.parametrize("size", [FLEET, THREE_CONTROLLERS])
def test_every_reachable_state_can_still_end(size):
    found = explored(size, None)
    assert found.is_complete
    assert found.stuck == 0


@pytest.mark.parametrize("rule", RULES)
def test_a_removed_rule_is_found_out(rule):
    found = explored(FLEET, rule)
    assert "below the floor" in found.violations, found


def test_there_are_five_rules():
    assert len(RULES) == 5


@pytest.mark.parametrize(
    ("rule", "violation", "history"),
    [
        (
            "unresolved_fenced_on_adopt",
            "stopped while skipped",
            "intend@1 order@1 adopt@2 void@2 stop-by-order@1",
        ),
        (
            "fence_at_the_node",
            "stopped while skipped",
            "intend@1 order@1 adopt@2 fence@2 void@2 stop-by-order@1",
        ),
        (
            "intent_before_effect",
            "stopped while skipped",
            "order-unrecorded@1 abort@1 stop-by-order@1",
        ),
        (
            "op_receipts",
            "stopped while held",
            "intend@1 order@1 stop-by-order@1 dead-man hold@1 stop-by-order@1",
        ),
    ],
)
def test_the_shortest_history_names_what_went_wrong(rule, violation, history):
    found = explored(FLEET, rule)
    assert found.violations[violation] == tuple(history.split())
