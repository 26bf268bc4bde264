"""The screen of an epoch at every stage: what fifty nodes look like, word for word.

After a change that is meant: `PYTHONPATH=tests python tests/support/frames.py`, and read the diff.
"""

import pytest

from support.frames import FOLDER, STAGES, frames

FRAMES = dict(frames())


@pytest.mark.parametrize("stage", STAGES)
def test_the_screen_of_a_stage_is_the_one_that_was_read(stage):
    assert FRAMES[stage] == (FOLDER / f"{stage}.txt").read_text(encoding="utf-8")


def test_every_stage_is_shown_and_every_file_is_a_stage():
    assert tuple(FRAMES) == STAGES
    assert {path.stem for path in FOLDER.iterdir()} == set(STAGES)


@pytest.mark.parametrize("stage", STAGES)
def test_fifty_nodes_fit_on_one_screen(stage):
    lines = FRAMES[stage].splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100


def test_what_is_down_comes_before_everything_that_is_not():
    lines = FRAMES["full-width"].splitlines()
    down = next(index for index, line in enumerate(lines) if line.startswith("DOWN NOW"))
    lane = next(index for index, line in enumerate(lines) if line.startswith("lane "))
    assert down < lane
