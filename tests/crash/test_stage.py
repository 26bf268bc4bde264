"""A staging that is stopped anywhere, with or without power, is finished by repeating it."""

import pytest

from crash.install import Report, Violation
from crash.stage import StageDeed, enumerate_stage, stage_deeds

DEEDS = {deed.name: deed for deed in stage_deeds()}
# Each fsync of a staging, and a deed that goes wrong without it.
NEEDED = {
    "new folder's name": "enrolment",
    "published file's name": "enrolment",
    "replaced file's name": "first staging",
    "staged content": "first staging",
    "temporary file's data": "enrolment",
    "withdrawn marker's name": "staging with another value",
}


@pytest.mark.parametrize("deed", DEEDS.values(), ids=DEEDS)
def test_a_stopped_staging_leaves_the_truth_and_can_be_repeated(deed: StageDeed):
    report = Report()
    enumerate_stage(deed, report, nested=False, every=11)
    assert report.points > 0
    assert report.labels <= set(NEEDED)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("deed", DEEDS.values(), ids=DEEDS)
def test_a_staging_stopped_at_every_write_and_again_in_its_repetition(deed: StageDeed):
    report = Report()
    enumerate_stage(deed, report)
    assert report.points > 0


@pytest.mark.parametrize(("label", "name"), NEEDED.items())
def test_without_any_one_fsync_a_power_loss_is_not_survived(label, name):
    with pytest.raises(Violation):
        enumerate_stage(DEEDS[name], Report(), skip=label, nested=False)


def test_the_same_staging_again_writes_nothing():
    report = Report()
    enumerate_stage(DEEDS["the same staging again"], report)
    assert report.points == 1
    assert report.labels == set()
