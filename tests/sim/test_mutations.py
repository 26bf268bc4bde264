"""Each forgotten rule is noticed by the simulator's invariants."""

import pytest

from sim.mutations import MUTATIONS, Mutation, build_mutant, hunt


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutant_is_caught_within_its_seeds(mutation, tmp_path):
    build_mutant(mutation, tmp_path)
    summary = hunt(tmp_path, kind=mutation.kind, seeds_max=mutation.seeds_max, nodes=16)
    assert summary["violations"], f"{mutation.name}: survived {summary['seeds']} seeds"


def test_a_copy_without_a_mutation_breaks_nothing(tmp_path):
    build_mutant(Mutation(name="none", edits=()), tmp_path)
    summary = hunt(tmp_path, kind="usual", seeds_max=40, nodes=16)
    assert (summary["violations"], summary["seeds"]) == (0, 40)


def test_every_mutation_still_fits_the_text_it_changes(tmp_path):
    for number, mutation in enumerate(MUTATIONS):
        build_mutant(mutation, tmp_path / str(number))
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS) >= 10
