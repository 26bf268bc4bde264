"""The invariants hold over seeds; the long runs are `tests/sim/run.py`."""

import pytest

from sim.fleet import run_epoch
from sim.run import simulate


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


@pytest.mark.slow
def test_the_window_does_not_grow_with_the_fleet():
    windows = {nodes: run_epoch(3, nodes, "one_bad").window_ms_max for nodes in range(1, 501, 7)}
    # D1 by the slowest clock, and the longest restore: the same for every number of nodes.
    assert max(windows.values()) <= 1.01 * 120_000 + 30_000


def test_the_summary_counts_what_was_run():
    summary = simulate([(3, 8), (1, 9)], 0, 1)
    assert (summary["seeds"], summary["epochs"], summary["violations"]) == (4, 4, 0)
    assert summary["events"] > 100
