"""Programs of an op that outlive whoever started them: its supervisor and its timers.

On a folder host they are processes in sessions of their own. On a real host they are transient
units of systemd: the end of an SSH session, or of the service that started them, must not end them.

Source: systemd-run(1), systemd.timer(5); `docs/explanation/install.md`.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from capsule_installer.host.layout import Layout
from capsule_installer.services.base import ServiceManager
from capsule_installer.services.timers import TimerKind
from capsule_installer.system.clock import Clock
from capsule_installer.system.processes import CLEAN_ENVIRONMENT, Processes, ProcessFacts
from capsule_manifest.errors import Failed

__all__ = ["ProcessSupervisors", "Supervisors", "SystemdSupervisors", "SystemdTimers"]

_RUN_MS: Final = 10_000
_ACCURACY: Final = "50ms"


class Supervisors(Protocol):
    """Start supervisors."""

    def start(self, op_id: str, argv: Sequence[str]) -> ProcessFacts:
        """Start the supervisor of an op, the leader of a process group, and return what it is.

        Raises:
            Failed: `process-not-started`.
        """
        ...


class ProcessSupervisors:
    """Supervisors of a folder host."""

    def __init__(self, *, layout: Layout, processes: Processes) -> None:
        self._log = f"{layout.run}/supervisor.log"
        self._processes = processes

    def start(self, op_id: str, argv: Sequence[str]) -> ProcessFacts:
        """Start a process in a session of its own. Source: `Supervisors.start`."""
        del op_id
        return self._processes.start_detached(argv, log=self._log)


class SystemdSupervisors:
    """Supervisors of a real host: units `capsule-OP_ID.service`, which log to the journal."""

    def __init__(self, *, services: ServiceManager, processes: Processes) -> None:
        self._services = services
        self._processes = processes

    def start(self, op_id: str, argv: Sequence[str]) -> ProcessFacts:
        """Start a transient unit. Source: `Supervisors.start`."""
        unit = f"capsule-{op_id}.service"
        options = ["--service-type=exec", f"--description=capsule op {op_id}"]
        _run(self._processes, unit, options, argv)
        state = self._services.state(unit)
        facts = self._processes.facts(state.pid) if state.pid else None
        if facts is None:
            raise Failed(
                "process-not-started", "a supervisor ended at once", got=state.result, where=unit
            )
        return facts


class SystemdTimers:
    """Timers of a real host: units `capsule-OP_ID-KIND`, accurate to 50 ms; a reboot ends them.

    With systemd's own accuracy of a minute a deadline of two seconds came after 38.
    """

    def __init__(self, *, layout: Layout, processes: Processes, clock: Clock) -> None:
        self._layout = layout
        self._processes = processes
        self._clock = clock

    def start(self, op_id: str, kind: TimerKind, at_ms: int) -> None:
        """Start a transient timer. Source: `Timers.start`."""
        after_ms = max(1, at_ms - self._clock.boot_ms())
        options = [
            f"--on-active={after_ms}ms",
            f"--timer-property=AccuracySec={_ACCURACY}",
            "--timer-property=RemainAfterElapse=no",
            f"--description=capsule op {op_id}: restore unless it is past {kind}",
        ]
        program = f"{self._layout.recovery}/rescue.sh"
        argv = ["/bin/sh", program, self._layout.root, op_id, kind, str(at_ms)]
        _run(self._processes, f"capsule-{op_id}-{kind}", options, argv)


def _run(processes: Processes, unit: str, options: Sequence[str], argv: Sequence[str]) -> None:
    fixed = [f"--setenv={name}={value}" for name, value in CLEAN_ENVIRONMENT.items()]
    # Isolating a target would otherwise end what has to outlive everything.
    fixed.append("--property=IgnoreOnIsolate=yes")
    command = ["systemd-run", "--quiet", "--collect", "--no-ask-password", f"--unit={unit}"]
    completed = processes.run([*command, *fixed, *options, "--", *argv], timeout_ms=_RUN_MS)
    if completed.exit_code != 0:
        raise Failed(
            "process-not-started", "systemd did not start a program",
            got=completed.output.strip(), where=unit,
        )  # fmt: skip
