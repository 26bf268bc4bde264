"""What commands print: JSON or text on stdout, progress on stderr, colour on a terminal only.

Text from outside goes through `clean`, so that a file name can't move the cursor or forge a line.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

import click

from capsule_manifest.errors import clean

__all__ = [
    "JSON_SCHEMA",
    "Progress",
    "count_text",
    "duration_text",
    "json_option",
    "print_heading",
    "print_json",
    "print_pairs",
    "print_table",
    "size_text",
]

JSON_SCHEMA: Final = 1
"""The version of everything that `--json` prints; a field is added without raising it."""

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_UPDATE_INTERVAL_S: Final = 0.1

Function = TypeVar("Function", bound=Callable[..., object])


def json_option(function: Function) -> Function:
    """Add `--json` to a command; it arrives as the parameter `as_json`."""
    decorate: Callable[[Function], Function] = click.option(
        "--json", "as_json", is_flag=True, help="Print JSON for programs on stdout."
    )
    return decorate(function)


def print_json(fields: Mapping[str, object]) -> None:
    """Print one JSON object with its schema version."""
    click.echo(json.dumps({"schema": JSON_SCHEMA, **fields}, indent=2, ensure_ascii=False))


def print_heading(text: str) -> None:
    """Print the title of what follows."""
    click.echo()
    click.secho(clean(text), bold=True)


def print_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """Print names and values in two columns."""
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        click.echo(f"{clean(name):<{width}}  {clean(value)}")


def print_table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()
) -> None:
    """Print rows below headers; columns named in `right` are aligned to the right.

    On a terminal long cells wrap within its width. Elsewhere a row is one line, so that `grep` and
    `awk` work.
    """
    cells = [[clean(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _print_rich(headers, cells, right)
        return
    widths = [
        max([len(header), *(len(row[column]) for row in cells)])
        for column, header in enumerate(headers)
    ]
    for row in [[header.upper() for header in headers], *cells]:
        line = "  ".join(
            f"{cell:>{width}}" if column in right else f"{cell:<{width}}"
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        click.echo(line.rstrip())


def _print_rich(
    headers: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int]
) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for column, header in enumerate(headers):
        table.add_column(header, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        # Text, because a cell such as "[red]" is a name and no markup.
        table.add_row(*(Text(cell) for cell in row))
    Console(highlight=False).print(table)


def size_text(size_bytes: int) -> str:
    """Return a size for people, three digits: `0 B`, `12.3 MiB`."""
    size = float(size_bytes)
    for unit in _UNITS:
        if size < 1000 or unit == _UNITS[-1]:
            break
        size /= 1024
    else:
        raise AssertionError("the loop ends at the last unit")
    if unit == "B":
        return f"{size_bytes} B"
    return f"{size:.0f} {unit}" if size >= 100 else f"{size:.1f} {unit}"


def count_text(count: int, one: str, many: str | None = None) -> str:
    """Return `1 file`, `2 files`, `12,345 files`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def duration_text(took_ms: int) -> str:
    """Return a duration for people: `85 ms`, `1.2 s`, `3 min 5 s`."""
    if took_ms < 1000:
        return f"{took_ms} ms"
    if took_ms < 60_000:
        return f"{took_ms / 1000:.1f} s"
    minutes, rest_ms = divmod(took_ms, 60_000)
    return f"{minutes} min {rest_ms // 1000} s"


class Progress:
    """Tell a person on stderr what is going on: a moving line on a terminal, else lines only."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._is_open = False
        self._updated = 0.0

    def line(self, text: str) -> None:
        """Print a line that stays."""
        self._clear()
        click.echo(clean(text), err=True)

    def update(self, text: str) -> None:
        """Show what is being done right now; drawn on a terminal only, ten times a second."""
        now = time.monotonic()
        if self._is_terminal and now - self._updated >= _UPDATE_INTERVAL_S:
            self._updated = now
            self._is_open = True
            click.echo(f"\r\x1b[K{clean(text)}", nl=False, err=True)

    def end(self) -> None:
        """Remove the moving line."""
        self._clear()

    def _clear(self) -> None:
        if self._is_open:
            self._is_open = False
            click.echo("\r\x1b[K", nl=False, err=True)
