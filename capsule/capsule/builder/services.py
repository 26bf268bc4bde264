"""Service components: unit files that are allowed on hosts, and what they cost.

A unit is refused here, where its author reads the message, rather than on a host at night: lines
that run before or after the main process must be declared as guarded steps, nothing may be fetched
at start, and the times to stop, start and soak must fit into the first deadline.

Source: design, sections 9 and 11.
"""

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Final

from capsule.builder.committed import CommittedFiles
from capsule.builder.config import ServiceSource, UnitSource
from capsule.builder.model import ComponentInput, InputEntry
from capsule.builder.unit_file import Setting, UnitFile, parse_duration_ms, parse_unit
from capsule_manifest.engine_units import command_problems, engine_of
from capsule_manifest.errors import Refused
from capsule_manifest.release import UNIT_NAME, Budgets, Component, ComponentKind, Unit
from capsule_manifest.template import placeholders

__all__ = [
    "RESERVE_MS",
    "check_budget",
    "check_images",
    "check_unit_names",
    "images_named",
    "service_input",
]

RESERVE_MS: Final = 10_000
"""What the first deadline keeps for everything that is not stop, start and soak."""

_TYPES: Final = ("simple", "exec", "notify", "notify-reload", "forking", "oneshot", "dbus", "idle")
_SIDE_STEPS: Final = (
    "ExecStartPre", "ExecStartPost", "ExecCondition", "ExecStopPost", "ExecReload",
)  # fmt: skip
_ENGINES = re.compile(r"(?:^|/)(podman|docker|nerdctl|ctr)$")
_FETCHERS = re.compile(r"(?:^|/)(curl|wget|pip3?|uv|npm|npx|git|apt-get|apt|dnf|skopeo)$")
_ADDRESS = re.compile(r"(?:https?|ftp|git\+[a-z]+|oci|docker)://(?!(?:127\.|localhost|\[::1\]))")
_SHELLS = re.compile(r"(?:^|/)(?:ba|da|a|z)?sh$")
_RUNNERS = re.compile(r"(?:^|/)(?:env|exec|nice|ionice|setpriv|python[0-9.]*)$")
_SEPARATORS = re.compile(r"[\s\"'`;|&()$]+")
_PREFIXES: Final = "@-:+!|"  # before a program, systemd reads these as its own
_BY_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}|(?<!@)@\{image\.[a-z0-9._-]+\}")
_IMAGE: Final = "image."
# Of these podman is not the main process, but what it starts.
_MAIN_IS_ANOTHER: Final = frozenset({"forking", "notify", "notify-reload", "dbus"})


def service_input(
    source: ServiceSource, files: CommittedFiles
) -> tuple[ComponentInput, tuple[Unit, ...]]:
    """Read and check the units of a component.

    Raises:
        Refused: `unit-invalid`, `unit-not-allowed`, `template-invalid`, `input-missing`.
    """
    entries: list[InputEntry] = []
    units: list[Unit] = []
    for item in source.units:
        name = PurePosixPath(item.file).name
        if not UNIT_NAME.fullmatch(name):
            raise Refused("unit-invalid", "a file's name is no unit name", got=name)
        text = files.text(item.file)
        placeholders(text, where=item.file)
        if item.probe:
            placeholders(item.probe.http, where=f"probe of {item.file}")
        if not name.endswith(".service"):
            raise Refused(
                "unit-not-allowed",
                "only a service has a process that can be proved",
                expected="a unit named NAME.service",
                got=name,
                where=source.name,
            )
        parsed = parse_unit(text, where=item.file)
        _check(parsed, source, item.file)
        units.append(_unit(name, item, parsed))
        entries.append(files.file(item.file, name, mode=0o644))
    component = ComponentInput(
        name=source.name,
        kind=source.kind,
        platforms=tuple(sorted(source.platforms)),
        entries=tuple(sorted(entries, key=lambda entry: entry.path)),
        external=(),
    )
    return component, tuple(sorted(units, key=lambda unit: unit.name))


def images_named(source: ServiceSource, files: CommittedFiles) -> frozenset[str]:
    """Return the components whose images the units of a component run, `@{image.NAME}`.

    Raises:
        Refused: `template-invalid`, `input-missing`.
    """
    names = {
        name for item in source.units for name in placeholders(files.text(item.file),
                                                               where=item.file)
    }  # fmt: skip
    return frozenset(name.removeprefix(_IMAGE) for name in names if name.startswith(_IMAGE))


def check_images(
    role: str, selected: Iterable[Component], named: Mapping[str, frozenset[str]]
) -> None:
    """Check that a role's nodes get every image that units of its services run.

    `named` is what `images_named` returned for each service.

    Raises:
        Refused: `unit-not-allowed`.
    """
    chosen = tuple(selected)
    images = {item.name for item in chosen if item.kind is ComponentKind.IMAGE}
    for component in chosen:
        missing = named.get(component.name, frozenset()) - images
        if missing:
            raise Refused(
                "unit-not-allowed",
                "a unit runs an image that its node would not have",
                expected=f"an image component of role {role} and its platforms",
                got=", ".join(f"@{{image.{name}}}" for name in sorted(missing)),
                where=component.name,
            )


def check_unit_names(role: str, units: tuple[Unit, ...]) -> None:
    """Check that no two components of a role bring a unit of one name.

    Raises:
        Refused: `unit-not-allowed`.
    """
    names = sorted(unit.name for unit in units)
    for name, following in pairwise(names):
        if name == following:
            raise Refused(
                "unit-not-allowed",
                "two components bring a unit of one name",
                expected="every name once",
                got=name,
                where=f"role {role}",
            )


def check_budget(role: str, units: tuple[Unit, ...], budgets: Budgets) -> None:
    """Check that the units of a role, one after the other, fit into the first deadline.

    Raises:
        Refused: `budget-exceeded` with the arithmetic.
    """
    stop = sum(unit.stop_timeout_ms for unit in units)
    start = sum(unit.start_timeout_ms for unit in units)
    soak = max((unit.soak_ms for unit in units), default=0)
    needed = stop + start + soak + RESERVE_MS
    if needed > budgets.d1_ms:
        raise Refused(
            "budget-exceeded",
            "units may need longer than the first deadline",
            expected=f"at most d1 = {budgets.d1_ms / 1000:g} s",
            got=f"stop {stop / 1000:g} + start {start / 1000:g} + soak {soak / 1000:g} + "
            f"{RESERVE_MS / 1000:g} s = {needed / 1000:g} s",
            where=f"role {role}: {', '.join(unit.name for unit in units)}",
        )


def _unit(name: str, item: UnitSource, parsed: UnitFile) -> Unit:
    return Unit(
        name=name,
        file=name,
        start_timeout_ms=_timeout(parsed, "TimeoutStartSec", item.file),
        stop_timeout_ms=_timeout(parsed, "TimeoutStopSec", item.file),
        soak_ms=item.soak_ms,
        probe=item.probe,
    )


def _timeout(parsed: UnitFile, key: str, where: str) -> int:
    setting = parsed.last("Service", key, "TimeoutSec")
    if setting is None:
        # systemd's default of 90 s each way would not fit into any sensible deadline.
        raise Refused(
            "unit-invalid", f"a unit has no {key}", expected=f"{key}= with a bound", where=where
        )
    return parse_duration_ms(setting.value, where=f"{where}:{setting.line}")


def _check(parsed: UnitFile, source: ServiceSource, where: str) -> None:
    kind = parsed.last("Service", "Type")
    if kind is not None and kind.value not in _TYPES:
        raise _refused(kind, where, "an unknown type", ", ".join(_TYPES))
    # An empty value takes back the ones before it.
    start = parsed.last("Service", "ExecStart")
    if start is None or not start.value:
        raise Refused("unit-invalid", "a service starts nothing", where=where)
    for setting in parsed.settings:
        if not setting.key.startswith("Exec"):
            continue
        argv = tuple(setting.value.lstrip(_PREFIXES).split())
        if setting.key in _SIDE_STEPS and argv and argv not in source.guarded_steps:
            raise _refused(
                setting,
                where,
                f"{setting.key}= runs outside of the guard",
                "the same argument list in guarded_steps, or no such line",
            )
        _check_fetches(setting, argv, where)
        _check_engine(setting, argv, kind, where)


def _check_fetches(setting: Setting, argv: tuple[str, ...], where: str) -> None:
    if _ADDRESS.search(setting.value):
        raise _refused(setting, where, "an address is fetched at start", "content of the capsule")
    programs = _programs(setting.value)
    if any(_FETCHERS.search(word) for word in programs):
        raise _refused(setting, where, "a program that fetches runs", "content of the capsule")
    if any(_ENGINES.search(word) for word in programs) and "run" in argv:
        pinned = _BY_DIGEST.search(setting.value) is not None
        if not pinned or "--pull=never" not in argv:
            raise _refused(
                setting,
                where,
                "an image may be pulled at start",
                "an image by @sha256:… and --pull=never",
            )


def _check_engine(
    setting: Setting, argv: tuple[str, ...], kind: Setting | None, where: str
) -> None:
    for problem in command_problems(argv):
        what, _, expected = problem.partition("; ")
        raise _refused(setting, where, what, expected or "a container with a process of its unit")
    is_main = setting.key == "ExecStart" and engine_of(argv) is not None
    if is_main and kind is not None and kind.value in _MAIN_IS_ANOTHER:
        raise _refused(
            kind,
            where,
            "the main process would not be the engine, and could not be proved",
            "Type=exec, or none",
        )


def _programs(value: str) -> list[str]:
    """Return the words that name a program: the first, those behind `env`, a shell's whole script.

    A rule of thumb that catches what people write; the guard and the host's own network rules are
    what stops the rest.
    """
    words = [word for word in _SEPARATORS.split(value.lstrip(_PREFIXES)) if word]
    programs: list[str] = []
    for word in words:
        if word.startswith("-") or "=" in word:
            continue
        programs.append(word)
        if _SHELLS.search(word):
            return words
        if not _RUNNERS.search(word):
            break
    return programs


def _refused(setting: Setting, where: str, what: str, expected: str) -> Refused:
    return Refused(
        "unit-not-allowed",
        what,
        expected=expected,
        got=f"{setting.key}={setting.value}",
        where=f"{where}:{setting.line}",
    )
