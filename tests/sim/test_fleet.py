"""The invariants hold over seeds; the long runs are `tests/sim/run.py`."""

import pytest

from capsule.lane.budget import Liveness, judge_node
from sim.fleet import Simulation, run_epoch
from sim.run import measure_windows, simulate


@pytest.mark.parametrize("seed", range(40))
def test_no_invariant_breaks_in_a_fleet_of_sixteen(seed):
    result = run_epoch(seed, 16)
    assert result.violations == (), f"repeat with --seed {seed} --epochs 1 --nodes 16"


def test_the_same_seed_gives_the_same_run():
    assert run_epoch(7, 20) == run_epoch(7, 20)


def test_another_seed_gives_another_run():
    assert run_epoch(7, 20) != run_epoch(8, 20)


@pytest.mark.parametrize("kind", ["calm_fresh", "calm_down"])
def test_a_fleet_without_a_healthy_node_is_installed_and_fixed_forward(kind):
    for seed in range(5):
        result = run_epoch(seed, 12, kind)
        assert (result.violations, result.committed) == ((), 12)


def test_for_every_number_of_nodes_the_gate_asks_for_the_same_window():
    told = set()
    for nodes in range(1, 501):
        plan = Simulation(nodes, nodes).plan
        assert len(plan.nodes) == nodes
        liveness = Liveness(node="any", heartbeat_age_ms=0, credential_ms=3_600_000)
        told.add((plan.budget.window_ms, judge_node(plan.budget, liveness)))
    # One window and one verdict, in 500 plans of other shapes.
    assert len(told) == 1


@pytest.mark.parametrize("nodes", [1, 2, 3, 5, 8, 13, 50, 120])
def test_the_measured_window_does_not_grow_with_the_fleet(nodes):
    result = run_epoch(3, nodes, "one_bad")
    assert result.violations == ()
    # D1 by the slowest clock, and the longest restore: the same for every number of nodes.
    assert result.window_ms_max <= 1.01 * 120_000 + 30_000


def test_windows_of_several_sizes_are_measured_in_one_run():
    summary = measure_windows(range(1, 12), 0, 1)
    assert (summary["epochs"], summary["violations"]) == (11, 0)
    assert len(summary["window_ms_max_by_nodes"]) == 11
    assert len(summary["window_bounds_ms"]) == 1


def test_the_summary_counts_what_was_run():
    summary = simulate([(3, 8), (1, 9)], 0, 1)
    assert (summary["seeds"], summary["epochs"], summary["violations"]) == (4, 4, 0)
    assert summary["events"] > 100
