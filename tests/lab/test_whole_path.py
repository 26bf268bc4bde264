"""The whole path to a real host: first contact, enrolment, staging, rehearsal, orders, restores."""

import pytest

from capsule.stage import NodeStaged
from capsule_manifest.errors import CapsuleError, ExitCode
from support.lab.commands import wait_until
from support.lab.controller import BROKEN, UNIT, LabController

pytestmark = [pytest.mark.lab, pytest.mark.root, pytest.mark.network, pytest.mark.timeout(300)]


@pytest.fixture
def controller(host, tmp_path):
    return LabController(host, tmp_path)


def test_releases_reach_a_real_host_and_a_broken_one_is_restored(controller):
    first, result = controller.staged_and_installed(1)
    assert (result.result, result.exit_code) == ("committed", ExitCode.DONE)
    assert controller.serving() == first.generation
    hello = controller.session.hello()
    assert (hello.service_manager, hello.current) == ("systemd", first.generation)
    second, result = controller.staged_and_installed(2)
    assert result.result == "committed"
    _, result = controller.staged_and_installed(3, BROKEN)
    assert (result.result, result.exit_code) == ("restored", ExitCode.RESTORED)
    assert controller.serving() == second.generation
    again = controller.stage(second)
    assert isinstance(again, NodeStaged), again
    assert again.sent_bytes == 0


def test_a_host_that_went_down_in_the_middle_is_fixed_forward(controller):
    first, _ = controller.staged_and_installed(1)
    mini = controller.capsule(2)
    assert isinstance(controller.stage(mini), NodeStaged)
    controller.host.run(
        "systemd-run", "--on-active=1s", "--timer-property=AccuracySec=1ms", "systemctl", "reboot",
        "--force", "--force",
    )  # fmt: skip
    ended = None
    try:
        ended = controller.install(mini).result
    except CapsuleError as error:
        ended = error.error_id
    wait_until(lambda: controller.host.pid is None, timeout_s=20, what="the host went down")
    controller.host.boot()
    wait_until(controller.serving, timeout_s=20, what="a release serves")
    expected = mini if ended == "committed" else first
    assert controller.serving() == expected.generation
    third, result = controller.staged_and_installed(3)
    assert result.result == "committed"
    assert controller.serving() == third.generation


def test_a_unit_that_systemd_does_not_understand_is_refused_while_staging(controller):
    first, _ = controller.staged_and_installed(1)
    mini = controller.capsule(2, unit=UNIT.replace("TimeoutStopSec", "TimeoutStopSecs"))
    refused = controller.stage(mini)
    assert isinstance(refused, CapsuleError)
    assert refused.error_id == "rehearsal-failed"
    assert "TimeoutStopSecs" in str(refused)
    assert controller.serving() == first.generation
