"""Services of a real host: systemd, reached through `systemctl`.

A stop or a start is one `systemctl`, since every program more makes the outage longer. What does
not end well so, and reloads, are `service-systemd.sh`'s, which `rescue.sh` needs as well. Units are
never enabled, disabled or masked: each of these reloads systemd, which costs ten times what a whole
stop and start may. What a unit's [Install] section asks for becomes a drop-in beside the units, of
the target that wants it; it comes and goes with the names of a release.

Source: systemd.unit(5), systemctl(1), systemd-analyze(1); `docs/explanation/install.md`.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from capsule_installer.host.layout import Layout
from capsule_installer.services.base import UnitState
from capsule_installer.system.disk import Disk
from capsule_installer.system.fsops import make_dirs, remove_tree
from capsule_installer.system.processes import CLEAN_ENVIRONMENT, Completed, Processes
from capsule_manifest.errors import Failed, Refused

__all__ = ["SystemdServices", "wanted_by"]

_SCRIPT_MARGIN_MS: Final = 20_000
_ASK_MS: Final = 5_000
_VERIFY_MS: Final = 30_000
_NO_WAIT_MS: Final = 1  # a stop had its time already
_START_LIMIT: Final = "start-limit-hit"
_PROPERTIES: Final = (
    "ActiveState", "FragmentPath", "InvocationID", "LoadState", "MainPID", "NRestarts",
    "NeedDaemonReload", "Result",
)  # fmt: skip
_TARGET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9:_.@\\-]*\.[a-z]+")
_WISHES: Final = {"WantedBy": "Wants", "RequiredBy": "Requires"}
# Others name more than one unit file and would need links of their own.
_NO_WISHES: Final = frozenset({"Alias", "Also", "DefaultInstance", "UpheldBy"})
# What survives a stop would run the old release beside the new one.
_KILL_MODES: Final = frozenset({"control-group", "mixed"})


def wanted_by(unit: str, text: str) -> dict[str, list[str]]:
    """Return which of `Wants` and `Requires` each target gets, as [Install] asks for.

    Raises:
        Refused: `unit-unsupported`.
    """
    found: dict[str, list[str]] = {}
    for section, key, value in _settings(text):
        if section != "Install":
            continue
        if key in _NO_WISHES:
            raise _unsupported(unit, f"{key}= needs links that a restore could not undo", value)
        for target in value.split() if key in _WISHES else ():
            if not _TARGET.fullmatch(target):
                raise _unsupported(unit, f"{key}= names no unit", target)
            found.setdefault(target, []).append(_WISHES[key])
    return found


class SystemdServices:
    """A `ServiceManager` whose units are those of this machine's systemd."""

    def __init__(self, *, disk: Disk, layout: Layout, processes: Processes, script: str) -> None:
        self._disk = disk
        self._layout = layout
        self._processes = processes
        self._script = script

    @property
    def name(self) -> str:
        """Return `systemd`."""
        return "systemd"

    def companions(self, unit: str, text: str) -> dict[str, bytes]:
        """Return one drop-in for each target that wants the unit.

        Raises:
            Refused: `unit-unsupported`.
        """
        return {
            f"{target}.d/capsule-{unit}.conf": "".join(
                ["[Unit]\n", *(f"{wish}={unit}\n" for wish in wishes)]
            ).encode()
            for target, wishes in wanted_by(unit, text).items()
        }

    def check(self, units: Mapping[str, str]) -> list[str]:
        """Let systemd read the units; return what it finds wrong, one line each.

        Raises:
            Failed: `process-timeout`, `process-not-started`, `disk-*`.
        """
        problems = []
        for unit, text in sorted(units.items()):
            try:
                wanted_by(unit, text)
                _check_kill_mode(unit, text)
            except Refused as refusal:
                problems.append(str(refusal))
        return [*problems, *self._verify(units)] if units else problems

    def reload(self, deadline_ms: int) -> None:
        """Let systemd read changed unit files. Source: `ServiceManager.reload`."""
        self._call("reload", "-", deadline_ms, "systemd did not reload")

    def stop(self, unit: str, deadline_ms: int) -> None:
        """Stop a unit, by force at its deadline. Source: `ServiceManager.stop`."""
        if self._ask("stop", unit, deadline_ms).exit_code != 0:
            # The script takes an unknown unit for a stopped one, and kills any other.
            self._call("stop", unit, _NO_WAIT_MS, "a unit did not stop")

    def start(self, unit: str, deadline_ms: int) -> None:
        """Start a unit. Source: `ServiceManager.start`."""
        asked = self._ask("start", unit, deadline_ms)
        if asked.exit_code == 0:
            return
        what = "a unit could not be started"
        if _START_LIMIT not in self.state(unit).result:
            raise Failed("service-failed", what, got=asked.output.strip(), where=unit)
        # Starts of another release count against the limit of this one; the script resets it.
        self._call("start", unit, deadline_ms, what)

    def state(self, unit: str) -> UnitState:
        """Ask systemd about a unit; a condition that holds it back shows in `result`.

        Raises:
            Failed: `service-failed` when systemd does not answer.
        """
        argv = ["systemctl", "show", f"--property={','.join(_PROPERTIES)}", "--", unit]
        completed = self._processes.run(argv, timeout_ms=_ASK_MS)
        pairs = (line.partition("=") for line in completed.output.splitlines())
        said = {name: value for name, _, value in pairs}
        if completed.exit_code != 0 or not set(_PROPERTIES) <= said.keys():
            raise Failed(
                "service-failed", "systemd does not say how a unit is",
                got=completed.output.strip(), where=unit,
            )  # fmt: skip
        active = said["ActiveState"] == "active"
        return UnitState(
            active=active,
            pid=int(said["MainPID"]) if active else 0,
            invocation_id=said["InvocationID"] if active else "",
            restarts=int(said["NRestarts"]) if said["NRestarts"].isdigit() else 0,
            result=f"{said['ActiveState']}, {said['Result']}, {said['LoadState']}",
            fragment=said["FragmentPath"],
            is_stale=said["NeedDaemonReload"] == "yes",
        )

    def _ask(self, verb: str, unit: str, deadline_ms: int) -> Completed:
        argv = ["systemctl", "--no-ask-password", "--quiet", verb, "--", unit]
        try:
            return self._processes.run(argv, timeout_ms=deadline_ms, own_group=False)
        except Failed as error:
            if error.error_id != "process-timeout":
                raise
            return Completed(exit_code=1, output=str(error))

    def _call(self, verb: str, unit: str, deadline_ms: int, what: str) -> None:
        argv = ["sh", self._script, self._layout.root, verb, unit, str(deadline_ms)]
        # In our group: a `stop` that outlived a killed supervisor could stop what rescue started.
        completed = self._processes.run(
            argv, timeout_ms=deadline_ms + _SCRIPT_MARGIN_MS, own_group=False
        )
        if completed.exit_code != 0:
            raise Failed("service-failed", what, got=completed.output.strip(), where=unit)

    def _verify(self, units: Mapping[str, str]) -> list[str]:
        folder = f"{self._layout.run}/rehearsal"
        # Left by a rehearsal that was killed.
        remove_tree(self._disk, folder)
        make_dirs(self._disk, folder, 0o700)
        try:
            for unit, text in units.items():
                with self._disk.create(f"{folder}/{unit}", 0o644) as writer:
                    writer.write(text.encode())
            # Before all other places, so that the units find each other and not their predecessors.
            environment = {**CLEAN_ENVIRONMENT, "SYSTEMD_UNIT_PATH": f"{folder}:"}
            argv = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no"]
            completed = self._processes.run(
                [*argv, *(f"{folder}/{unit}" for unit in sorted(units))],
                timeout_ms=_VERIFY_MS,
                environment=environment,
            )
        finally:
            remove_tree(self._disk, folder)
        if completed.exit_code == 0:
            return []
        lines = [line.replace(f"{folder}/", "") for line in completed.output.splitlines()]
        # `current` leads to this generation only after the switch.
        later = f"{self._layout.current}/"
        return [line for line in lines if _is_about(line, units) and later not in line]


def _settings(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield section, key and value of every setting. Source: systemd.syntax(7)."""
    section = ""
    for raw in text.replace("\\\n", " ").splitlines():
        line = raw.strip()
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
        elif line and line[0] not in "#;":
            key, _, value = line.partition("=")
            yield section, key.strip(), value.strip()


def _check_kill_mode(unit: str, text: str) -> None:
    for section, key, value in _settings(text):
        if section == "Service" and key == "KillMode" and value not in _KILL_MODES:
            raise _unsupported(unit, "KillMode= lets processes survive a stop", value)


def _is_about(line: str, units: Mapping[str, str]) -> bool:
    return any(line.startswith((f"{unit}:", f"Unit {unit} ", f"{unit} ")) for unit in units)


def _unsupported(unit: str, what: str, got: object) -> Refused:
    return Refused("unit-unsupported", what, got=got, where=unit)
