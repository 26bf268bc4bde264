"""Installs on a real host: systemd, its timers, its boots; and what cuts them off."""

import signal
import time

import pytest

from support.lab.commands import wait_until
from support.lab.installs import InstallHost, op_id_of

pytestmark = [pytest.mark.lab, pytest.mark.root, pytest.mark.network, pytest.mark.timeout(300)]

ACCURACY_S = 0.6  # 50 ms of the timer, and what two busy cores need to restore
OPS = "/var/lib/capsule/state/ops"


@pytest.fixture
def installs(host):
    """A host with release 1 installed."""
    on = InstallHost(host=host)
    on.put_program()
    on.stage(1)
    assert on.install(1) == {"result": "committed", "reason": ""}
    return on


def op_has(on, counter, name):
    return on.host.path(f"{OPS}/{op_id_of(counter)}/{name}").exists()


def await_file(on, counter, name, *, timeout_s=40):
    wait_until(lambda: op_has(on, counter, name), timeout_s=timeout_s, what=f"{name} of {counter}")


def kill_supervisor(on, counter):
    on.host.signal_unit(f"capsule-{op_id_of(counter)}.service", signal.SIGKILL)


def await_serving(on, answer):
    wait_until(lambda: on.look()["answer"] == answer, timeout_s=30, what=f"{answer} serves")


def is_whole(on, counter, answer):
    """Check that one release is all there is, and that it serves."""
    seen = on.look()
    assert (seen["current"], seen["answer"], seen["held"]) == (str(counter), answer, False)
    assert on.unit("hello.service", "ActiveState") == "active"
    assert f"generations/{counter}-" in on.unit("hello.service", "ExecStart")
    assert on.unit("hello.service", "NeedDaemonReload") == "no"
    left = on.host.run("find", "/", "-xdev", "-name", ".*.capsule-*").stdout
    assert left == ""


def test_a_release_after_another_is_proved_and_survives_a_reboot(installs):
    installs.stage(2)
    assert installs.install(2) == {"result": "committed", "reason": ""}
    is_whole(installs, 2, "2")
    installs.host.reboot()
    await_serving(installs, "2")
    is_whole(installs, 2, "2")


def test_a_release_that_crashes_is_restored(installs):
    installs.stage(2, "crashing")
    ended = installs.install(2)
    assert ended["result"] == "restored"
    assert "proof-failed" in ended["reason"]
    is_whole(installs, 1, "1")


def test_a_release_that_never_serves_is_restored(installs):
    installs.stage(2, "never-ready")
    assert installs.install(2)["result"] == "restored"
    is_whole(installs, 1, "1")


def test_a_first_release_that_fails_leaves_an_absent_and_held_node_also_after_a_reboot(host):
    on = InstallHost(host=host)
    on.put_program()
    on.stage(1, "crashing")
    assert on.install(1)["result"] == "absent"
    host.reboot()
    seen = on.look()
    assert (seen["current"], seen["held"]) == ("absent", True)
    assert "hello.service" not in seen["units"]
    on.stage(2)
    assert on.install(2)["result"] == "committed"
    is_whole(on, 2, "2")


@pytest.mark.parametrize("way", ["kill", "power"])
@pytest.mark.parametrize("moment", ["stopping", "proof"])
def test_a_host_that_goes_down_in_the_middle_serves_the_old_release_when_it_is_back(
    installs, way, moment
):
    installs.stage(2, "slow-soak")
    installs.begin(2)
    await_file(installs, 2, moment)
    if moment == "stopping":
        wait_until(
            lambda: (
                installs.unit("hello.service", "ActiveState") == "active"
                and "generations/2-" in installs.unit("hello.service", "ExecStart")
            ),
            timeout_s=20,
            what="the new release runs",
        )
    if way == "power":
        installs.host.cut_power()
        installs.host.boot()
    else:
        installs.host.reboot()
    await_serving(installs, "1")
    is_whole(installs, 1, "1")
    starts = installs.host.run("journalctl", "-b", "-o", "cat", "-u", "hello.service").stdout
    assert starts.count("Started") == 1, starts
    boot, hello = (
        int(installs.unit(unit, "ActiveEnterTimestampMonotonic"))
        for unit in ("capsule-boot.service", "hello.service")
    )
    assert 0 < boot < hello
    # The next run of the program signs what rescue did.
    assert installs.drive("verb", "boot")["code"] == 0
    assert installs.drive("finish", "2")["result"] == "restored"


def test_the_first_deadline_restores_on_time_when_the_supervisor_is_dead(installs):
    installs.stage(2, "slow-soak")
    installs.begin(2, d1_ms=12_000)
    await_file(installs, 2, "stopping")
    stopped = time.monotonic()
    kill_supervisor(installs, 2)
    await_file(installs, 2, "result", timeout_s=30)
    took_s = time.monotonic() - stopped
    assert 11 < took_s < 12 + ACCURACY_S + 2, took_s
    fired = installs.host.run(
        "journalctl", "-b", "-o", "short-monotonic", "-u", f"capsule-{op_id_of(2)}-d1.service"
    ).stdout
    assert "restoring" in fired, fired
    is_whole(installs, 1, "1")


def test_the_second_deadline_restores_when_no_confirm_comes(installs):
    installs.stage(2)
    installs.begin(2, d2_ms=3_000)
    await_file(installs, 2, "proof")
    kill_supervisor(installs, 2)
    await_file(installs, 2, "result", timeout_s=30)
    is_whole(installs, 1, "1")


def test_rescue_restores_by_itself_on_a_host_whose_python_is_broken(installs):
    installs.stage(2, "slow-soak")
    installs.begin(2)
    await_file(installs, 2, "stopping")
    kill_supervisor(installs, 2)
    # The service needs an interpreter too: it loses its modules and keeps the program.
    installs.host.run("sh", "-c", "mv /usr/bin/python3 /usr/bin/python3.away")
    done = installs.host.run(
        "sh", "/var/lib/capsule/recovery/rescue.sh", "", op_id_of(2), "now", check=False
    )
    installs.host.run("sh", "-c", "mv /usr/bin/python3.away /usr/bin/python3")
    assert op_has(installs, 2, "result.failed"), done.stderr
    assert done.returncode == 61, "the old service could not start without its interpreter"
    assert installs.drive("verb", "boot")["code"] == 0
    is_whole(installs, 1, "1")


def test_rescue_restores_with_no_byte_and_no_inode_free(installs):
    installs.stage(2, "slow-soak")
    installs.begin(2)
    await_file(installs, 2, "stopping")
    kill_supervisor(installs, 2)
    installs.host.volume.fill(leave_bytes=0)
    program = ("sh", "/var/lib/capsule/recovery/rescue.sh", "", op_id_of(2), "now")
    done = installs.host.run(*program, check=False)
    assert done.returncode == 0, done.stderr
    installs.host.volume.empty()
    is_whole(installs, 1, "1")


def test_a_target_started_by_hand_in_the_middle_undoes_nothing(installs):
    installs.stage(2, "slow-soak")
    installs.begin(2)
    await_file(installs, 2, "stopping")
    installs.host.run("systemctl", "start", "capsule-boot.service", "multi-user.target")
    assert installs.drive("finish", "2")["result"] == "committed"
    is_whole(installs, 2, "2")


def test_the_end_of_the_connection_that_ordered_ends_nothing(installs):
    installs.stage(2, "slow-soak")
    installs.begin(2)
    await_file(installs, 2, "stopping")
    installs.host.run("systemctl", "restart", "ssh.service")
    assert installs.drive("finish", "2")["result"] == "committed"


def test_a_service_that_ignores_its_stop_is_killed_at_its_limit(installs):
    installs.stage(2, "stubborn")
    assert installs.install(2)["result"] == "committed"
    installs.stage(3)
    assert installs.install(3)["result"] == "committed"
    is_whole(installs, 3, "3")
    assert installs.host.run("pgrep", "-f", "sleep 1000", check=False).returncode == 1


def test_a_unit_that_was_started_too_often_is_started_again(installs):
    script = "/var/lib/capsule/recovery/service-systemd.sh"
    for _ in range(6):
        installs.host.run("systemctl", "restart", "hello.service", check=False)
    assert installs.unit("hello.service", "Result") == "start-limit-hit"
    installs.host.run("sh", script, "", "start", "hello.service", "5000")
    assert installs.unit("hello.service", "ActiveState") == "active"


def test_the_unit_set_belongs_to_the_release(installs):
    installs.stage(2, "two-units")
    assert installs.install(2)["result"] == "committed"
    other = "/usr/local/lib/systemd/system/multi-user.target.d/capsule-other.service.conf"
    assert installs.unit("other.service", "ActiveState") == "active"
    assert installs.host.path(other).exists()
    assert installs.drive("verb", "rollback")["code"] == 0
    is_whole(installs, 1, "1")
    assert installs.unit("other.service", "LoadState") == "not-found"
    assert installs.unit("other.service", "ActiveState") == "inactive"
    assert not installs.host.path(other).exists()


BROKEN_UNITS = {
    "an unknown setting": "[Service]\nExecStart=/bin/true\nRestrat=always\n",
    "a program that is not there": "[Service]\nExecStart=/opt/nowhere/serve\n",
    "nothing to start": "[Service]\nRestart=always\n",
    "processes that survive a stop": "[Service]\nExecStart=/bin/true\nKillMode=process\n",
    "a second name": "[Service]\nExecStart=/bin/true\n[Install]\nAlias=web.service\n",
}


def test_a_unit_that_can_not_run_is_found_at_rehearsal(installs):
    for defect, text in BROKEN_UNITS.items():
        problems = installs.drive("check", "bad.service", text)["problems"]
        assert problems, defect
        assert all("bad.service" in line for line in problems), problems


def test_a_unit_may_use_files_that_only_the_switch_brings(installs):
    text = "[Unit]\nDescription=x\n[Service]\nExecStart=/opt/capsule/current/none\n"
    assert installs.drive("check", "good.service", text)["problems"] == []
