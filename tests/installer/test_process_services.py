"""Units as plain processes: what is read from a unit, and what the runner does."""

import os
import signal
import time
from pathlib import Path

import pytest

from capsule_installer.services.process import run_script, unit_settings
from capsule_installer.system.processes import RealProcesses
from capsule_manifest.errors import Refused
from support.staged_host import await_true

GOOD = """\
# a comment
[Unit]
Description=hello
ConditionPathExists=!/var/lib/capsule/hold
[Service]
Environment=A=1 "B=two words" 'C=%%d'
Environment=D=x\\
 E=y
ExecStart=/usr/bin/python3 -c "print('a b')" $$HOME 100%%
WorkingDirectory=/srv
Restart=on-failure
RestartSec=2min
KillSignal=SIGINT
User=hello
ProtectSystem=strict
"""


def unit(*lines):
    return "[Service]\n" + "\n".join(lines) + "\n"


def test_a_unit_is_read_as_systemd_reads_it():
    settings = unit_settings("a.service", GOOD)
    assert settings.argv == ("/usr/bin/python3", "-c", "print('a b')", "$HOME", "100%")
    assert settings.environment == {"A": "1", "B": "two words", "C": "%d", "D": "x", "E": "y"}
    assert (settings.folder, settings.restart, settings.restart_s) == (
        "/srv", "on-failure", "120.000",
    )  # fmt: skip
    assert (settings.kill_signal, settings.absent) == ("INT", ("/var/lib/capsule/hold",))


def test_an_empty_assignment_resets_a_list():
    text = unit("ExecStart=/bin/a", "ExecStart=", "ExecStart=/bin/b")
    assert unit_settings("a.service", text).argv == ("/bin/b",)


@pytest.mark.parametrize(
    "line",
    [
        "ExecStartPre=/bin/true",
        "ExecStop=/bin/true",
        "EnvironmentFile=/etc/default/x",
        "Type=forking",
        "Type=oneshot",
        "Restart=on-watchdog",
        "RestartSec=1h 2min",
        "Environment=1A=x",
        "ExecStart=/bin/second",
        "nonsense",
    ],
)
def test_what_a_folder_host_cannot_run_as_it_stands_is_refused(line):
    with pytest.raises(Refused, match="unit-unsupported"):
        unit_settings("a.service", unit("ExecStart=/bin/a", line))


@pytest.mark.parametrize(
    "command", ["sleep 1", "/bin/a %i", "/bin/a ${X}", "/bin/a $X", '/bin/a "x', "/bin/a \\q"]
)
def test_a_command_that_would_mean_something_else_is_refused(command):
    with pytest.raises(Refused, match="unit-unsupported"):
        unit_settings("a.service", unit(f"ExecStart={command}"))


@pytest.fixture
def service(host):
    """Install one unit; return the services of the host and the unit's folder below run."""

    def make(command, *more, root=host.root):
        text = unit(f"ExecStart={command}", *more).replace("@root@", root)
        script = run_script("t.service", unit_settings("t.service", text))
        Path(host.layout.units, "t.service.run").write_bytes(script)
        return host.effects().services, Path(host.layout.run, "services", "t.service")

    return make


def test_a_unit_that_is_absent_stops_without_an_error(host):
    host.effects().services.stop("nobody.service", 1_000)
    assert not host.effects().services.state("nobody.service").active


def test_quotes_spaces_and_dollars_reach_the_program_as_they_stand(service, tmp_path):
    target = tmp_path / "said"
    services, _ = service(
        f"""/bin/sh -c 'printf "%%s|" "$$0" "$$V" > {target}; exec sleep 60' "a b'c" """.replace(
            '"a b\'c"', '"a b"'
        ),
        'Environment="V=$x `id` \\"q\\""',
    )
    services.start("t.service", 2_000)
    await_true(target.exists)
    await_true(lambda: target.read_text().count("|") == 2)
    assert target.read_text() == 'a b|$x `id` "q"|'
    services.stop("t.service", 1_000)


def test_a_process_that_dies_is_restarted_and_counted_under_a_new_invocation(service):
    services, _ = service("/bin/sleep 60", "Restart=always", "RestartSec=50ms")
    services.start("t.service", 2_000)
    first = services.state("t.service")
    os.kill(first.pid, signal.SIGKILL)
    await_true(lambda: services.state("t.service").pid not in {0, first.pid})
    again = services.state("t.service")
    assert (first.restarts, again.restarts) == (0, 1)
    assert first.invocation_id != again.invocation_id
    services.stop("t.service", 1_000)


def test_the_hold_file_stops_an_automatic_restart(service, host):
    services, _ = service("/bin/sleep 60", "Restart=always", "RestartSec=50ms")
    hold = Path(host.layout.hold)
    script = Path(host.layout.units, "t.service.run")
    script.write_text(script.read_text().replace("    return 0\n", f"    [ ! -e {hold} ]\n"))
    services.start("t.service", 2_000)
    hold.write_text("by a test\n")
    os.kill(services.state("t.service").pid, signal.SIGKILL)
    await_true(lambda: services.state("t.service").result == "condition")
    assert not services.state("t.service").active


def test_a_process_that_ignores_the_signal_is_killed_at_the_deadline_with_its_children(service):
    services, _ = service("""/bin/sh -c 'trap "" TERM; sleep 61 & sleep 62; sleep 63' """.strip())
    services.start("t.service", 2_000)
    pid = services.state("t.service").pid
    time.sleep(0.1)
    began = time.monotonic()
    services.stop("t.service", 300)
    assert 0.2 < time.monotonic() - began < 2
    group = [
        path for path in Path("/proc").glob("[0-9]*/cmdline")
        if path.read_bytes() in {b"sleep\x0061\x00", b"sleep\x0062\x00"}
    ]  # fmt: skip
    assert (group, services.state("t.service").pid) == ([], 0)
    assert RealProcesses().facts(pid) is None


def test_a_reused_pid_is_never_killed(service):
    services, folder = service("/bin/sleep 60")
    services.start("t.service", 2_000)
    pid = services.state("t.service").pid
    ticks = (folder / "runner").read_text().split()[1]
    (folder / "runner").write_text(f"{os.getpid()} {int(ticks) + 1}\n")
    assert services.state("t.service").pid == 0
    # The runner can't be found under its name; the group of the main process can.
    services.stop("t.service", 1_000)
    assert RealProcesses().facts(pid) is None
