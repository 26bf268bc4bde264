"""The screen of an epoch at every stage: what fifty nodes look like, word for word.

After a change that is meant: `PYTHONPATH=tests python tests/support/frames.py`, and read the diff.
"""

import re

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


@pytest.mark.parametrize("stage", STAGES)
def test_every_node_that_is_waited_for_shows_for_how_long_and_its_limit(stage):
    for line in FRAMES[stage].splitlines():
        signs = re.match(r"lane \S+ +\w+ +(\S+)", line)
        if signs is None:
            continue
        at_work = sum(sign in "hdov^pr?" for sign in signs[1])
        told = re.search(r"worker-\d\d \w+ \d+/\d+ s(?:.*, and (\d+) more)?", line)
        assert bool(told) == bool(at_work), line
        if told:
            assert 1 + int(told[1] or 0) == at_work, line
            if re.search("stopped|proved", line):
                assert re.search(r"D[12] in \d+ s", line), line


@pytest.mark.parametrize("stage", STAGES)
def test_every_permit_that_is_out_is_named(stage):
    frame = FRAMES[stage]
    out = int(re.search(r"(\d+) out$", frame, re.MULTILINE)[1])
    named = re.search(r"^permits out: (.*)$", frame, re.MULTILINE)
    assert len(named[1].split(", ") if named else []) == out


@pytest.mark.parametrize("stage", STAGES)
def test_whatever_is_held_or_unknown_has_its_evidence_and_the_next_command(stage):
    lines = FRAMES[stage].splitlines()
    held = [i for i, line in enumerate(lines) if re.match(r"\S+: (held|unknown), ", line)]
    counts = re.search(r"(\d+) held, \d+ skipped, (\d+) unknown", FRAMES[stage])
    more = re.search(r"next: .*\n  and (\d+) more: --json names all", FRAMES[stage])
    assert len(held) + int(more[1] if more else 0) == int(counts[1]) + int(counts[2])
    for index in held:
        assert re.fullmatch(r"\S+: \w+, [\w ]+: .+", lines[index])
        assert lines[index + 1].startswith("  next: ")


def test_the_node_with_the_least_time_left_comes_first():
    [line] = [line for line in FRAMES["full-width"].splitlines() if line.startswith("tightest")]
    left = [int(seconds) for seconds in re.findall(r"(\d+) s", line)]
    assert left == sorted(left)
    assert len(left) == 3


def test_the_first_deadline_runs_on_while_a_service_is_switched_and_started():
    line = next(
        line for line in FRAMES["full-width"].splitlines() if line.startswith("lane rack-0")
    )
    assert "worker-07 stopped 5/120 s, D1 in 115 s" in line


def test_no_decision_is_asked_for_about_an_epoch_that_has_ended():
    assert "capsule lane" not in FRAMES["ended"]
    assert "capsule lane resume rack-5" in FRAMES["parked"]
