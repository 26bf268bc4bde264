"""A staging that is stopped anywhere, with or without power, is finished by repeating it."""

import pytest

from crash.points import NEEDED, Half, Report
from crash.stage import ROOT, Said, StageDeed, enumerate_stage, find_need, stage_deeds
from support.deliveries import Receiver

# Enumerations are of fixed size; how long they take depends on the machine.
pytestmark = pytest.mark.timeout(600)

DEEDS = {deed.name: deed for deed in stage_deeds()}


@pytest.mark.parametrize("deed", DEEDS.values(), ids=DEEDS)
def test_a_stopped_staging_leaves_the_truth_and_can_be_repeated(deed: StageDeed):
    report = Report()
    enumerate_stage(deed, report, nested=False, every=11)
    assert report.points > 0
    assert report.labels <= set(NEEDED[Half.STAGE])


@pytest.mark.parametrize(("label", "name"), NEEDED[Half.STAGE].items())
def test_without_any_one_fsync_a_power_loss_is_not_survived(label, name):
    need = find_need(label, name)
    assert need is not None
    assert need.deed == name


def test_the_same_staging_again_changes_nothing():
    deed = DEEDS["the same staging again"]
    report = Report()
    enumerate_stage(deed, report, nested=False)
    # It only makes durable what it found, should whoever left it have been stopped.
    assert report.labels == {"found name"}
    after = deed.disk.copy()
    deed.act(Receiver(ROOT, disk=after, uid=0), Said())
    assert after.fingerprint() == deed.disk.fingerprint()
