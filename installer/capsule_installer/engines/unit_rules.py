"""Refuse rendered units that would pull an image, or whose containers would outlive them.

The builder refuses the same in the text that its author wrote; this is the text as it will run, of
a release that another builder may have made.

Source: systemd.syntax(7), systemd.service(5).
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Final

from capsule_manifest.engine_units import command_problems

__all__ = ["engine_problems"]

_COMMAND: Final = re.compile(r"^[ \t]*Exec[A-Za-z]+[ \t]*=(.*)$", re.MULTILINE)


def engine_problems(units: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with units that run containers, one line each."""
    for name, text in sorted(units.items()):
        for match in _COMMAND.finditer(text.replace("\\\n", " ")):
            for problem in command_problems(_words(match[1])):
                yield f"{name}: {problem}"


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:
        # A quote that is not closed: systemd refuses the line, in words of its own.
        return command.split()
