"""A machine with a wrong clock: installs don't notice, updates of trust say both times.

Controller and host see the wrong time in every process: it is set below Python.
"""

import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from capsule_manifest.errors import ExitCode
from support.trust_site import Site
from support.wrong_clock import WrongClock

pytestmark = pytest.mark.timeout(180)

OLD, FAR = datetime(1970, 1, 1, tzinfo=UTC), datetime(2099, 1, 1, tzinfo=UTC)
UNIT = """\
[Unit]
Description=Sleeps
[Service]
Type=simple
WorkingDirectory=@{generation}/app
ExecStart=/bin/sh main.sh
"""


@pytest.fixture
def site(tmp_path, capsys):
    clock = WrongClock(tmp_path / "clock")
    made = Site(tmp_path, capsys, clock=clock, surround=clock.runtime)
    yield made
    made.stop()


def text(moment):
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")


@pytest.mark.parametrize("moment", [OLD, FAR])
def test_a_process_really_sees_the_wrong_time(tmp_path, moment):
    clock = WrongClock(tmp_path)
    clock.set(moment)
    code = "import time, datetime; print(int(time.time()), datetime.datetime.now().year)"
    seen = subprocess.check_output([sys.executable, "-c", code], env=clock.environment, text=True)
    assert seen.split() == [str(int(moment.timestamp())), str(moment.year)]


@pytest.mark.parametrize(
    ("staged", "installed"),
    [
        pytest.param(FAR, OLD, id="back by 129 years"),
        pytest.param(OLD, FAR, id="on by 129 years", marks=pytest.mark.slow),
        pytest.param(OLD, OLD, id="1970", marks=pytest.mark.slow),
        pytest.param(FAR, FAR, id="2099", marks=pytest.mark.slow),
    ],
)
def test_a_release_is_staged_installed_and_checked_whatever_the_clock_says(site, staged, installed):
    policy = site.folder / "trust.json"
    components = {"app": {"main.sh": b"exec sleep 1000\n"}}
    made = site.capsule(7, components=components, unit=UNIT)
    site.clock.set(staged)
    code, answer = site.stage(made, policy)
    assert code == 0, answer
    site.clock.set(installed)
    code, answer = site.install(made, policy)
    assert code == 0, answer
    code, _ = site.on_host("verify", "--json")
    assert code == 0


def test_an_update_of_trust_is_refused_under_a_wrong_clock_and_the_host_still_installs(site):
    """1970 and a clock set back are behind what was accepted; 2099 is past the medium's end."""
    site.export(2, "--floor", "7")
    now = datetime.now(tz=UTC).replace(microsecond=0)
    site.clock.set(now)
    assert site.update()[0] == 0
    held = (site.trust / "policy.json").read_bytes()
    ends = datetime.fromisoformat(site.export(3, "--floor", "8")["expires"])
    for wrong, error_id, limit in (
        (OLD, "trust-clock-behind", now),
        (now - timedelta(hours=1), "trust-clock-behind", now),
        (FAR, "trust-expired", ends),
    ):
        site.clock.set(wrong)
        code, answer = site.update()
        assert (code, answer["error"]) == (ExitCode.TIME, error_id), answer
        assert text(limit) in answer["expected"]
        assert answer["got"] == text(wrong)
        assert (site.trust / "policy.json").read_bytes() == held
    made = site.capsule(7, components={"app": {"main.sh": b"exec sleep 1000\n"}}, unit=UNIT)
    code, answer = site.stage(made, site.trust / "policy.json")
    assert code == 0, answer
    assert site.host_policy["version"] == 2
    code, answer = site.install(made, site.trust / "policy.json")
    assert code == 0, answer
