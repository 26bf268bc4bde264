"""An op that is stopped anywhere leaves the old generation or the new one, whole.

Here only some writes are stopped; `python tests/crash/run.py` stops all, and recovery as well.
"""

import pytest

from crash.install import Deed, Report, deeds, enumerate_deed, find_need

DEEDS = {deed.name: deed for deed in deeds()}
# Each fsync of an op or a collection. The test below fails for one that nothing needs.
NEEDED = (
    "hold's name",
    "hold's removal",
    "intent's name",
    "new folder's name",
    "new units' names",
    "op file's data",
    "prepared op files' names",
    "published file's name",
    "removed markers",
    "removed names",
    "removed ops' names",
    "replaced file's name",
    "restored names",
    "result's name",
    "switched names",
    "temporary file's data",
    "waiting and kept names",
    "waiting file's data",
)


@pytest.mark.parametrize("deed", DEEDS.values(), ids=DEEDS)
def test_an_op_stopped_at_some_writes_leaves_one_whole_generation(deed: Deed):
    report = Report()
    enumerate_deed(deed, report, every=31, nested=False)
    assert report.points > 3
    assert report.labels <= set(NEEDED)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("deed", DEEDS.values(), ids=DEEDS)
def test_an_op_stopped_at_every_write_and_again_in_its_recovery(deed: Deed):
    report = Report()
    enumerate_deed(deed, report)
    assert report.points > 30


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("label", NEEDED)
def test_without_any_one_fsync_a_power_loss_is_not_survived(label: str):
    assert find_need(label)
