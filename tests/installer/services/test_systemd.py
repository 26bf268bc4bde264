"""What is asked of systemd, and how its answers are read; the lab asks a real one."""

import pytest

from capsule_installer.host.layout import make_layout
from capsule_installer.services.choice import (
    make_services,
    make_supervisors,
    make_timers,
    manager_name,
)
from capsule_installer.services.detached import SystemdSupervisors, SystemdTimers
from capsule_installer.services.systemd import SystemdServices, wanted_by
from capsule_installer.services.timers import TimerKind
from capsule_installer.system.disk import RealDisk
from capsule_installer.system.processes import CLEAN_ENVIRONMENT, Completed, ProcessFacts
from capsule_manifest.errors import Failed, Refused

OP = "0" * 31 + "7"
SHOWN = {
    "ActiveState": "active",
    "FragmentPath": "/usr/local/lib/systemd/system/x.service",
    "NeedDaemonReload": "no",
    "InvocationID": "abc",
    "LoadState": "loaded",
    "MainPID": "70",
    "NRestarts": "2",
    "Result": "success",
}


class Scripted:
    """Processes that end as told, and remember what was asked of them."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    def run(self, argv, *, timeout_ms, folder="/", environment=CLEAN_ENVIRONMENT, on_start=None,
            own_group=True):  # fmt: skip
        self.asked.append(list(argv))
        answer = self.answers.pop(0) if self.answers else (0, "")
        if isinstance(answer, Failed):
            raise answer
        exit_code, output = answer
        return Completed(exit_code=exit_code, output=output)

    def start_detached(self, argv, *, log):
        raise AssertionError(argv)

    def facts(self, pid):
        return ProcessFacts(
            pid=pid, started_ticks=5, cwd="/", arguments=(), environment={}, files=frozenset()
        )

    def all_pids(self):
        return []


class StoppedClock:
    def boot_ms(self):
        return 10_000

    def boot_id(self):
        return "b"

    def sleep_ms(self, duration_ms):
        raise AssertionError(duration_ms)


def services(processes, root="/nowhere"):
    layout = make_layout(root)
    return SystemdServices(disk=RealDisk(), layout=layout, processes=processes, script="s.sh")


def shown(**changes):
    return 0, "".join(f"{name}={value}\n" for name, value in (SHOWN | changes).items())


@pytest.mark.parametrize(
    ("text", "wishes"),
    [
        ("[Service]\nExecStart=/bin/true\n", {}),
        ("[Install]\nWantedBy=multi-user.target\n", {"multi-user.target": ["Wants"]}),
        ("[Install]\nWantedBy=a.target b.target\n", {"a.target": ["Wants"], "b.target": ["Wants"]}),
        (
            "[Install]\nRequiredBy=a.target\nWantedBy=a.target\n",
            {"a.target": ["Requires", "Wants"]},
        ),
        ("[Install]\nWantedBy=\\\na.target\n", {"a.target": ["Wants"]}),
        ("[Unit]\nWantedBy=a.target\n", {}),
        ("[Install]\n# WantedBy=a.target\n", {}),
    ],
)
def test_the_install_section_says_which_targets_want_a_unit(text, wishes):
    assert wanted_by("x.service", text) == wishes


@pytest.mark.parametrize(
    "line", ["Alias=y.service", "Also=y.socket", "WantedBy=../y.target", "WantedBy=a/b.target"]
)
def test_an_install_section_that_names_other_files_is_refused(line):
    with pytest.raises(Refused) as refusal:
        wanted_by("x.service", f"[Install]\n{line}\n")
    assert refusal.value.error_id == "unit-unsupported"


def test_what_wants_a_unit_becomes_a_drop_in_of_the_target():
    text = "[Install]\nWantedBy=multi-user.target\n"
    assert services(Scripted()).companions("x.service", text) == {
        "multi-user.target.d/capsule-x.service.conf": b"[Unit]\nWants=x.service\n"
    }


def test_an_active_unit_shows_its_process_and_restarts():
    state = services(Scripted(shown())).state("x.service")
    assert (state.active, state.pid, state.invocation_id, state.restarts) == (True, 70, "abc", 2)


@pytest.mark.parametrize("word", ["inactive", "failed", "activating", "deactivating"])
def test_a_unit_that_is_not_active_shows_no_process(word):
    state = services(Scripted(shown(ActiveState=word))).state("x.service")
    assert (state.active, state.pid, state.invocation_id) == (False, 0, "")
    assert state.result.startswith(word)


@pytest.mark.parametrize("answer", [(1, "no bus"), (0, ""), (0, "ActiveState=active\n")])
def test_a_systemd_that_does_not_answer_is_an_error_and_not_an_inactive_unit(answer):
    with pytest.raises(Failed) as failure:
        services(Scripted(answer)).state("x.service")
    assert failure.value.error_id == "service-failed"


SYSTEMCTL = ["systemctl", "--no-ask-password", "--quiet"]


@pytest.mark.parametrize("verb", ["start", "stop"])
def test_a_start_or_a_stop_that_ends_well_is_one_program(verb):
    processes = Scripted()
    getattr(services(processes), verb)("x.service", 1_500)
    assert processes.asked == [[*SYSTEMCTL, verb, "--", "x.service"]]


TOO_LATE = Failed("process-timeout", "a program did not end in time")


@pytest.mark.parametrize("first", [(1, "no"), (5, "not loaded"), TOO_LATE])
def test_a_stop_that_fails_is_left_at_once_to_the_program_that_rescue_uses(first):
    processes = Scripted(first, (1, "still there"))
    with pytest.raises(Failed, match="still there"):
        services(processes).stop("x.service", 1_500)
    assert processes.asked[1:] == [["sh", "s.sh", "/nowhere", "stop", "x.service", "1"]]
    processes = Scripted(first)
    services(processes).stop("x.service", 1_500)
    assert len(processes.asked) == 2


@pytest.mark.parametrize("first", [(1, "no"), TOO_LATE])
def test_a_start_that_fails_is_not_tried_again(first):
    processes = Scripted(first, shown(ActiveState="failed", Result="exit-code"))
    with pytest.raises(Failed) as failure:
        services(processes).start("x.service", 1_500)
    assert failure.value.error_id == "service-failed"
    assert [argv[0] for argv in processes.asked] == ["systemctl", "systemctl"]


def test_a_start_at_its_limit_is_left_to_the_program_that_rescue_uses():
    limit = shown(ActiveState="failed", Result="start-limit-hit")
    processes = Scripted((1, "too often"), limit)
    services(processes).start("x.service", 1_500)
    assert processes.asked[2:] == [["sh", "s.sh", "/nowhere", "start", "x.service", "1500"]]


def test_a_program_that_can_not_be_started_is_no_failed_stop():
    missing = Failed("process-not-started", "a program could not be started")
    processes = Scripted(missing)
    with pytest.raises(Failed) as failure:
        services(processes).stop("x.service", 1_500)
    assert failure.value.error_id == "process-not-started"


def test_only_lines_about_the_units_that_are_checked_count(tmp_path):
    output = (
        f"{tmp_path}/run/capsule/rehearsal/x.service:3: Unknown key name\n"
        "/lib/systemd/system/other.service:1: something\n"
        f"x.service: Command {tmp_path}/opt/capsule/current/app is not executable\n"
    )
    (tmp_path / "run/capsule").mkdir(parents=True)
    processes = Scripted((1, output))
    problems = services(processes, str(tmp_path)).check({"x.service": "[Service]\n"})
    assert problems == ["x.service:3: Unknown key name"]
    assert processes.asked[0][:2] == ["systemd-analyze", "verify"]
    assert list((tmp_path / "run/capsule").iterdir()) == []


def test_a_timer_is_a_transient_unit_accurate_to_fifty_milliseconds():
    processes = Scripted()
    timers = SystemdTimers(layout=make_layout("/"), processes=processes, clock=StoppedClock())
    timers.start(OP, TimerKind.D1, 12_500)
    [argv] = processes.asked
    assert argv[0] == "systemd-run"
    assert {"--on-active=2500ms", "--timer-property=AccuracySec=50ms"} <= set(argv)
    assert f"--unit=capsule-{OP}-d1" in argv
    assert argv[-6:] == ["/bin/sh", "/var/lib/capsule/recovery/rescue.sh", "", OP, "d1", "12500"]


def test_a_deadline_that_is_past_fires_at_once():
    processes = Scripted()
    timers = SystemdTimers(layout=make_layout("/"), processes=processes, clock=StoppedClock())
    timers.start(OP, TimerKind.ARM, 1)
    assert "--on-active=1ms" in processes.asked[0]


def test_a_timer_that_systemd_refuses_is_an_error():
    processes = Scripted((1, "exists already"))
    timers = SystemdTimers(layout=make_layout("/"), processes=processes, clock=StoppedClock())
    with pytest.raises(Failed) as failure:
        timers.start(OP, TimerKind.ARM, 1)
    assert failure.value.error_id == "process-not-started"


def test_a_supervisor_is_a_unit_named_after_its_op():
    processes = Scripted((0, ""), shown())
    supervisors = SystemdSupervisors(services=services(processes), processes=processes)
    assert supervisors.start(OP, ["python3", "x"]).pid == 70
    assert f"--unit=capsule-{OP}.service" in processes.asked[0]


def test_a_supervisor_that_ends_at_once_is_an_error():
    processes = Scripted((0, ""), shown(ActiveState="inactive"))
    supervisors = SystemdSupervisors(services=services(processes), processes=processes)
    with pytest.raises(Failed) as failure:
        supervisors.start(OP, ["python3", "x"])
    assert failure.value.error_id == "process-not-started"


def test_a_folder_host_has_processes_whatever_runs_this_machine(tmp_path):
    layout, processes, disk = make_layout(str(tmp_path)), Scripted(), RealDisk()
    chosen = make_services(disk, layout, processes)
    assert manager_name(disk, layout) == chosen.name == "process"
    assert type(make_supervisors(layout, processes, chosen)).__name__ == "ProcessSupervisors"
    timers = make_timers(layout, processes, chosen, StoppedClock())
    assert type(timers).__name__ == "ProcessTimers"
