"""What a laboratory run prints: one row a case, for people or, with `--json`, for programs."""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass

from support.lab.commands import LabError

__all__ = ["Row", "Rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What a case should end in, what it ended in, and whether the second is good enough."""

    case: str
    expected: str
    got: str
    ok: bool


class Rows:
    """Collect rows; people see each one as it comes, programs get all of them at the end."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._rows: list[Row] = []

    def add(self, case: str, *, expected: str, got: str, ok: bool | None = None) -> None:
        """Add a row; it is good when both are equal, unless the caller says otherwise."""
        row = Row(case=case, expected=expected, got=got, ok=expected == got if ok is None else ok)
        self._rows.append(row)
        word = "ok" if row.ok else "NOT"
        line = f"{word:4}{case}: {got}" + ("" if row.ok else f", expected {expected}")
        print(line, file=sys.stderr if self._as_json else sys.stdout, flush=True)

    def case(self, case: str, *, expected: str | Callable[[], str], run: Callable[[], str]) -> None:
        """Add the row of a case that says how it ended; that it broke is how it ended, too.

        `expected` is asked after the run where only the run shows what must come of it.
        """
        try:
            got = run()
        except (LabError, AssertionError, LookupError, OSError, ValueError) as error:
            got = f"broke: {type(error).__name__}: {error}"
        self.add(case, expected=expected if isinstance(expected, str) else expected(), got=got)

    def end(self) -> int:
        """Print the whole; return the exit code of the run."""
        if self._as_json:
            print(json.dumps({"rows": [asdict(row) for row in self._rows]}))
        bad = sum(not row.ok for row in self._rows)
        if not self._as_json:
            print(f"{len(self._rows) - bad} passed, {bad} failed")
        return 1 if bad or not self._rows else 0
