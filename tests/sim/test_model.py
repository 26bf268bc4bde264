"""Five rules keep late messages harmless, and each of them is needed."""

import pytest

from sim.model import Model, Rules, explore


def test_with_all_rules_no_reachable_state_is_bad():
    finding = explore(Model(rules=Rules()))
    assert finding.is_exhaustive
    assert finding.states > 1_000
    assert finding.counterexamples == {}


@pytest.mark.slow
def test_with_all_rules_three_nodes_are_safe_as_well():
    finding = explore(Model(rules=Rules(), nodes=3, controllers=2), states_max=3_000_000)
    assert finding.is_exhaustive
    assert finding.counterexamples == {}


WITHOUT = {
    "intent_before_effect": "aborted node stopped",
    "fence_in_append": "aborted node stopped",
    "fence_at_node": "aborted node stopped",
    "fence_on_adoption": "aborted node stopped",
    "op_receipts": "held node stopped",
}


def test_every_rule_has_its_counterexample_below():
    assert set(WITHOUT) == set(Rules.__dataclass_fields__)


@pytest.mark.parametrize("rule", WITHOUT)
def test_without_one_rule_a_short_way_leads_to_a_bad_state(rule):
    finding = explore(Model(rules=Rules(**{rule: False})), states_max=200_000)
    assert WITHOUT[rule] in finding.counterexamples
    assert min(len(way) for way in finding.counterexamples.values()) <= 12
