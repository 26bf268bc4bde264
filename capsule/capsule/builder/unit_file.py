"""Unit files as values: sections, keys and values in the order in which they stand.

Strict where systemd is lenient: a line that systemd would skip with a warning is refused here,
because what a warning hides on one host is missing on all of them.

Source: systemd.syntax(7).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from capsule_manifest.errors import Refused

__all__ = ["Setting", "UnitFile", "parse_duration_ms", "parse_unit"]

_SECTION = re.compile(r"\[([A-Za-z0-9-]+)\]")
_SETTING = re.compile(r"([A-Za-z][A-Za-z0-9-]*)\s*=\s*(.*)")
_SIZE_CHARACTERS_MAX: Final = 64 * 1024
_UNIT_MS: Final = {
    "us": 0.001, "ms": 1, "s": 1000, "sec": 1000, "m": 60_000, "min": 60_000,
    "h": 3_600_000, "hr": 3_600_000, "d": 86_400_000, "": 1000,
}  # fmt: skip
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One assignment. `line` is where it begins, from 1."""

    section: str
    key: str
    value: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitFile:
    """A parsed unit file."""

    settings: tuple[Setting, ...]

    def last(self, section: str, *keys: str) -> Setting | None:
        """Return the assignment that counts for one value that any of these keys sets."""
        return next(
            (
                item
                for item in reversed(self.settings)
                if item.section == section and item.key in keys
            ),
            None,
        )


def parse_unit(text: str, *, where: str) -> UnitFile:
    """Read a unit file.

    Raises:
        Refused: `unit-invalid`, with the line.
    """
    if len(text) > _SIZE_CHARACTERS_MAX:
        raise _invalid("a unit file is too large", where, f"{len(text)} characters")
    settings: list[Setting] = []
    section = ""
    for number, line in _logical_lines(text, where):
        header = _SECTION.fullmatch(line)
        if header:
            section = header[1]
            continue
        setting = _SETTING.fullmatch(line)
        if not setting or not section:
            raise _invalid(
                "a line is neither a section nor a setting within one", f"{where}:{number}", line
            )
        settings.append(
            Setting(section=section, key=setting[1], value=setting[2].strip(), line=number)
        )
    return UnitFile(settings=tuple(settings))


def parse_duration_ms(text: str, *, where: str) -> int:
    """Return a time span in milliseconds. Source: systemd.time(7), "Parsing Time Spans".

    Raises:
        Refused: `unit-invalid` for what is no span or has no end.
    """
    total, end = 0.0, 0
    for match in _DURATION.finditer(text):
        if match.start() != end or match[2] not in _UNIT_MS:
            break
        total += float(match[1]) * _UNIT_MS[match[2]]
        end = match.end()
    if not text or end != len(text) or total < 1:
        raise _invalid("a time span has no bound that can be read", where, text or "nothing")
    return int(total)


def _logical_lines(text: str, where: str) -> Iterator[tuple[int, str]]:
    """Yield lines with their continuations joined, as systemd's `config_parse` joins them."""
    pending, first = "", 0
    for number, raw in enumerate(text.split("\n"), 1):
        # Other readers end a line at some of these, or pass over them: nobody may see two units.
        if not raw.replace("\t", " ").isprintable():
            raise _invalid("a line holds a control character", f"{where}:{number}", raw)
        line = raw.lstrip(" \t")
        # A comment inside a continued line is skipped by systemd, not joined.
        if line.startswith(("#", ";")) or (not line and not pending):
            continue
        first = first if pending else number
        # A backslash before a space, or before another backslash, continues nothing.
        if (len(line) - len(line.rstrip("\\"))) % 2:
            pending += line[:-1] + " "
            continue
        yield first, (pending + line).strip()
        pending = ""
    if pending:
        yield first, pending.strip()


def _invalid(what: str, where: str, got: str) -> Refused:
    return Refused("unit-invalid", what, got=got, where=where)
