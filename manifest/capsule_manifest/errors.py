"""One error root for every distribution: a stable id, an exit code, and what to do next.

An error is raised with an *id* of `error_table.ROWS`. The table fixes the exit code and the advice,
so that the same failure ends with the same code and the same words whichever program met it.

Two kinds exist besides bugs. `Refused`: the input or a policy says no, trying again changes
nothing. `Failed`: the world did not cooperate; `retryable` says whether trying again can help. A
broken invariant of our own is an `AssertionError` and ends as exit code 1.
"""

from collections.abc import Iterator

from capsule_manifest.error_table import ROWS
from capsule_manifest.exit_codes import ExitCode

__all__ = ["CapsuleError", "ExitCode", "Failed", "Refused", "render"]

_FIELD_CHARACTERS_MAX = 400


class CapsuleError(Exception):
    """Report one failure by its stable id.

    `what` says what failed, lower case, without its cause, which is chained with `raise … from`.
    `expected` and `got` give both sides, `where` the place (a path in a document, a file, a host).
    Text from outside is cut and cleaned of control characters by `render`, so it may be passed raw.
    """

    def __init__(
        self,
        error_id: str,
        what: str,
        *,
        expected: object = "",
        got: object = "",
        where: object = "",
    ) -> None:
        super().__init__(error_id, what)
        self.error_id = error_id
        self.what = what
        self.expected = str(expected)
        self.got = str(got)
        self.where = str(where)

    @property
    def exit_code(self) -> ExitCode:
        """Return the exit code that the table gives this id."""
        return ROWS[self.error_id][0]

    @property
    def advice(self) -> str:
        """Return what the operator does next, as the table says it."""
        return ROWS[self.error_id][1]

    @property
    def retryable(self) -> bool:
        """Say whether the same call can succeed later with unchanged input."""
        return False

    def __str__(self) -> str:
        """Return one line: id, what failed, both sides, and where."""
        parts = [f"{self.error_id}: {clean(self.what)}"]
        if self.expected:
            parts.append(f"expected {clean(self.expected)}")
        if self.got:
            parts.append(f"got {clean(self.got)}")
        text = ", ".join(parts)
        return f"{text} ({clean(self.where)})" if self.where else text

    def as_record(self) -> dict[str, str | int]:
        """Return the error as a JSON object for `--json` and for host records."""
        return {
            "error": self.error_id,
            "exit_code": int(self.exit_code),
            "what": clean(self.what),
            "expected": clean(self.expected),
            "got": clean(self.got),
            "where": clean(self.where),
            "next": self.advice,
        }


class Refused(CapsuleError):
    """The input or a policy says no; nothing was changed by the refused step."""


class Failed(CapsuleError):
    """The world did not cooperate: a disk, a process, a peer."""

    def __init__(
        self,
        error_id: str,
        what: str,
        *,
        expected: object = "",
        got: object = "",
        where: object = "",
        retryable: bool = False,
    ) -> None:
        super().__init__(error_id, what, expected=expected, got=got, where=where)
        self._retryable = retryable

    @property
    def retryable(self) -> bool:
        """Say whether the same call can succeed later with unchanged input."""
        return self._retryable


def clean(text: str) -> str:
    """Cut `text` and escape what could move a terminal's cursor or forge a line of a log."""
    shown = text if len(text) <= _FIELD_CHARACTERS_MAX else text[:_FIELD_CHARACTERS_MAX] + "…"
    return "".join(
        character if character.isprintable() else ascii(character)[1:-1] for character in shown
    )


def render(error: CapsuleError) -> str:
    """Return the text for a person: the failure, its causes once each, and what to do next."""
    lines = [f"error: {error}"]
    lines += [f"  because: {clean(str(cause))}" for cause in _causes(error)]
    lines.append(f"  next: {error.advice}")
    return "\n".join(lines)


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause = error.__cause__
    while cause is not None:
        yield cause
        cause = cause.__cause__
