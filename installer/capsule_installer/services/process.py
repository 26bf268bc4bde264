"""Services of a folder host as plain processes: what systemd would do, as far as a folder can.

A rendered unit becomes `UNIT.run`, a shell fragment beside it that `service-process.sh` reads.
What runs is taken from the unit or refused; what only confines it (users, sandboxes, limits) is
left out: a folder host is for trying things and isolates nothing.

Source: systemd.service(5), systemd.exec(5), systemd.syntax(7).
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from capsule_installer.host.layout import Layout
from capsule_installer.services.base import UnitState
from capsule_installer.system.disk import Disk
from capsule_installer.system.processes import Processes
from capsule_manifest.errors import Failed, Refused

__all__ = ["ProcessServices", "Settings", "run_script", "unit_settings"]

_TYPES: Final = ("simple", "exec", "notify")
_RESTARTS: Final = ("no", "on-failure", "always")
# Each would change what runs, and a folder host can't do it.
_REFUSED: Final = (
    "BusName", "EnvironmentFile", "ExecCondition", "ExecReload", "ExecStartPost", "ExecStartPre",
    "ExecStop", "ExecStopPost", "PIDFile", "RootDirectory", "RootImage", "Sockets",
)  # fmt: skip
_SCRIPT_MARGIN_MS: Final = 5_000
_STATE_BYTES_MAX: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a unit says about how it is run. `absent` and `present`: its path conditions."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str
    restart: str
    restart_s: str
    kill_signal: str
    absent: tuple[str, ...]
    present: tuple[str, ...]


def unit_settings(unit: str, text: str) -> Settings:
    """Read the settings of a rendered unit.

    Raises:
        Refused: `unit-unsupported` for what a folder host can't run as it stands.
    """
    unit_section, service = _sections(unit, text)
    for key in _REFUSED:
        if service.get(key):
            raise _unsupported(unit, f"{key}= needs systemd", service[key][-1])
    kind = _last(service, "Type", "simple")
    if kind not in _TYPES:
        raise _unsupported(unit, f"Type= is none of {', '.join(_TYPES)}", kind)
    restart = _last(service, "Restart", "no")
    if restart not in _RESTARTS:
        raise _unsupported(unit, f"Restart= is none of {', '.join(_RESTARTS)}", restart)
    lines = service.get("ExecStart", [])
    if len(lines) != 1:
        raise _unsupported(unit, "there must be one ExecStart=", len(lines))
    argv = _words(unit, lines[0], expands=True)
    if not argv or not argv[0].startswith("/"):
        raise _unsupported(unit, "ExecStart= must name a program by its whole path", lines[0])
    conditions = unit_section.get("ConditionPathExists", [])
    return Settings(
        argv=tuple(argv),
        environment=_environment(unit, service.get("Environment", [])),
        folder=_last(service, "WorkingDirectory", "/"),
        restart=restart,
        restart_s=_seconds(unit, _last(service, "RestartSec", "100ms")),
        kill_signal=_last(service, "KillSignal", "SIGTERM").removeprefix("SIG"),
        absent=tuple(path[1:] for path in conditions if path.startswith("!")),
        present=tuple(path for path in conditions if not path.startswith("!")),
    )


def run_script(unit: str, settings: Settings) -> bytes:
    """Return `UNIT.run`: settings for the runner, and with `exec` the start of the program."""
    quote = shlex.quote
    tests = [f"[ ! -e {quote(path)} ] || return 1" for path in settings.absent]
    tests += [f"[ -e {quote(path)} ] || return 1" for path in settings.present]
    exports = [f"export {name}={quote(value)}" for name, value in settings.environment.items()]
    lines = [
        f"# Made from {unit} when it was copied; read by service-process.sh.",
        f"restart={quote(settings.restart)}",
        f"restart_s={quote(settings.restart_s)}",
        f"kill_signal={quote(settings.kill_signal)}",
        "conditions() {",
        *(f"    {test}" for test in tests),
        "    return 0",
        "}",
        'if [ "${1-}" = exec ]; then',
        *(f"    {line}" for line in exports),
        f"    cd {quote(settings.folder)} || exit 200",
        f"    exec {shlex.join(settings.argv)}",
        "fi",
    ]
    return ("\n".join(lines) + "\n").encode()


class ProcessServices:
    """A `ServiceManager` whose units are processes below one root."""

    def __init__(self, *, disk: Disk, layout: Layout, processes: Processes, script: str) -> None:
        self._disk = disk
        self._layout = layout
        self._processes = processes
        self._script = script

    @property
    def name(self) -> str:
        """Return `process`."""
        return "process"

    def companions(self, unit: str, text: str) -> dict[str, bytes]:
        """Return `UNIT.run`.

        Raises:
            Refused: `unit-unsupported`.
        """
        return {f"{unit}.run": run_script(unit, unit_settings(unit, text))}

    def check(self, units: Mapping[str, str]) -> list[str]:
        """Return one line for each unit that a folder host can't run."""
        problems = []
        for unit, text in sorted(units.items()):
            try:
                unit_settings(unit, text)
            except Refused as refusal:
                problems.append(str(refusal))
        return problems

    def reload(self, deadline_ms: int) -> None:
        """Do nothing: a unit is read when it is started."""

    def stop(self, unit: str, deadline_ms: int) -> None:
        """Stop a unit. Source: `ServiceManager.stop`."""
        self._call("stop", unit, deadline_ms)

    def start(self, unit: str, deadline_ms: int) -> None:
        """Start a unit. Source: `ServiceManager.start`."""
        self._call("start", unit, deadline_ms)

    def state(self, unit: str) -> UnitState:
        """Read what the runner wrote and ask `/proc` whether it is still true."""
        pid = self._live(unit, "main") if self._live(unit, "runner") else 0
        restarts = self._read(unit, "restarts")
        return UnitState(
            active=pid != 0,
            pid=pid,
            invocation_id=self._read(unit, "invocation") if pid else "",
            restarts=int(restarts) if restarts.isdigit() else 0,
            result=self._read(unit, "result"),
        )

    def _call(self, verb: str, unit: str, deadline_ms: int) -> None:
        argv = ["sh", self._script, self._layout.root, verb, unit, str(deadline_ms)]
        # In our group: rescue kills the supervisor's group, and a `stop` that outlived it would
        # take the processes that rescue's own start has just recorded out of the books.
        completed = self._processes.run(
            argv, timeout_ms=deadline_ms + _SCRIPT_MARGIN_MS, own_group=False
        )
        if completed.exit_code != 0:
            raise Failed(
                "service-failed",
                f"a unit could not be {verb}ed" if verb == "start" else "a unit did not stop",
                got=completed.output.strip(),
                where=unit,
            )

    def _live(self, unit: str, name: str) -> int:
        pid, _, ticks = self._read(unit, name).partition(" ")
        if not (pid.isdigit() and ticks.isdigit()):
            return 0
        facts = self._processes.facts(int(pid))
        return int(pid) if facts is not None and facts.started_ticks == int(ticks) else 0

    def _read(self, unit: str, name: str) -> str:
        path = f"{self._layout.run}/services/{unit}/{name}"
        if self._disk.stat(path) is None:
            return ""
        return self._disk.read(path, _STATE_BYTES_MAX).decode("utf-8", "replace").strip()


def _sections(unit: str, text: str) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    sections: dict[str, dict[str, list[str]]] = {"Unit": {}, "Service": {}}
    current: dict[str, list[str]] = {}
    for line in text.replace("\\\n", " ").splitlines():
        line = line.strip()
        if not line or line[0] in "#;":
            continue
        if line.startswith("[") and line.endswith("]"):
            current = sections.setdefault(line[1:-1], {})
            continue
        key, equals, value = line.partition("=")
        if not equals:
            raise _unsupported(unit, "a line is no setting", line)
        value = value.strip()
        if value:
            current.setdefault(key.strip(), []).append(value)
        else:
            # An empty assignment resets a list. Source: systemd.syntax(7).
            current[key.strip()] = []
    return sections["Unit"], sections["Service"]


def _last(section: Mapping[str, list[str]], key: str, default: str) -> str:
    return (section.get(key) or [default])[-1]


def _environment(unit: str, lines: list[str]) -> dict[str, str]:
    result = {}
    for line in lines:
        for word in _words(unit, line, expands=False):
            name, equals, value = word.partition("=")
            if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                raise _unsupported(unit, "Environment= must be NAME=value", word)
            result[name] = value
    return result


_WORD = re.compile(
    r"""\s*((?:[^\s"'\\]|\\.)(?:[^\s\\]|\\.)*|"(?:[^"\\]|\\.)*"(?=\s|$)|'(?:[^'\\]|\\.)*'(?=\s|$))"""
)
_ESCAPES = {"n": "\n", "t": "\t", "s": " ", "\\": "\\", '"': '"', "'": "'"}


def _words(unit: str, line: str, *, expands: bool) -> list[str]:
    words, position = [], 0
    line = line.rstrip()
    while position < len(line):
        match = _WORD.match(line, position)
        if match is None:
            raise _unsupported(unit, "a line is not quoted as systemd reads it", line)
        position = match.end()
        word = match.group(1)
        if word[0] in "\"'":
            word = word[1:-1]
        words.append(_unescape(unit, word, expands=expands))
    return words


def _unescape(unit: str, word: str, *, expands: bool) -> str:
    def escape(match: re.Match[str]) -> str:
        character = match.group(1)
        if character not in _ESCAPES:
            raise _unsupported(unit, "an unknown escape", match.group())
        return _ESCAPES[character]

    if re.search(r"%(?!%)", word.replace("%%", "")):
        raise _unsupported(unit, "a % specifier needs systemd", word)
    word = word.replace("%%", "%")
    if expands:
        # Only commands expand variables. Source: systemd.service(5), "Command lines".
        if "$" in word.replace("$$", ""):
            raise _unsupported(unit, "a $ variable needs systemd", word)
        word = word.replace("$$", "$")
    return re.sub(r"\\(.)", escape, word)


_UNITS_MS = {"": 1000, "s": 1000, "sec": 1000, "ms": 1, "min": 60_000}


def _seconds(unit: str, text: str) -> str:
    match = re.fullmatch(r"([0-9]{1,6})\s*(|s|sec|ms|min)", text)
    if match is None:
        raise _unsupported(unit, "a time span is not a number with a unit", text)
    milliseconds = int(match[1]) * _UNITS_MS[match[2]]
    return f"{milliseconds // 1000}.{milliseconds % 1000:03}"


def _unsupported(unit: str, what: str, got: object) -> Refused:
    return Refused("unit-unsupported", what, got=got, where=unit)
