"""Reference pages that are written from the code; a tidy test compares them with docs/."""

from collections.abc import Iterator, Mapping
from typing import Final

import click

from capsule.cli import program
from capsule_manifest.error_table import ROWS
from capsule_manifest.errors import ExitCode

__all__ = ["commands_page", "errors_page", "exit_codes_page"]

_MEANINGS: Final[Mapping[ExitCode, str]] = {
    ExitCode.DONE: "done, or nothing to do",
    ExitCode.INTERNAL: "an error of the program itself",
    ExitCode.USAGE: "wrong usage",
    ExitCode.PREFLIGHT_REFUSED: "the preflight refused; nothing was stopped",
    ExitCode.BUDGET_REFUSED: "a budget or the floor refused; nothing was stopped",
    ExitCode.NODES_HELD: "ended with nodes held, all of them serving",
    ExitCode.NOT_SERVING: "a node does not serve, or its state is unknown",
    ExitCode.FENCED: "a newer controller has taken over",
    ExitCode.BUSY: "another one holds the lease or the lock",
    ExitCode.UNFINISHED_EPOCH: "an epoch is unfinished: adopt or abort it",
    ExitCode.INTEGRITY: "integrity or trust",
    ExitCode.TIME: "time or expiry",
    ExitCode.DENIED: "a downgrade, or denied by the policy",
    ExitCode.SPACE: "no space",
    ExitCode.INCOMPATIBLE: "the host is incompatible",
    ExitCode.TRANSFER_INCOMPLETE: "the transfer is incomplete: run the same command again",
    ExitCode.ROUTE_MISMATCH: "the route or the order does not match",
    ExitCode.NETWORK_VIOLATION: "something used the network after the barrier",
    ExitCode.GUARD_NOT_ARMED: "the network guard could not be armed; nothing was stopped",
    ExitCode.RESTORED: "restored to the release before",
    ExitCode.RESTORE_FAILED: "the restore failed: a person is needed",
    ExitCode.INTERRUPTED: "interrupted",
}
_HELP_WIDTH: Final = 88
_WRITTEN = "This page is written from the code by `./dev docs`."


def errors_page() -> str:
    """Return docs/reference/errors.md: one row for each error id, alphabetically."""
    rows = "".join(
        f"| `{error_id}` | [{int(code)}](exit-codes.md) | {_cell(advice)} |\n"
        for error_id, (code, advice) in sorted(ROWS.items())
    )
    return (
        "# Errors\n\n"
        f"{_WRITTEN}\n"
        "Every refusal and failure has a stable id, which `--json` prints as `error`.\n"
        "An id keeps its meaning for good; the words beside it may change.\n\n"
        "| id | exit code | what to do next |\n|---|---|---|\n" + rows
    )


def exit_codes_page() -> str:
    """Return docs/reference/exit-codes.md: one row for each exit code, with the ids behind it."""
    rows = "".join(
        f"| {int(code)} | {_MEANINGS[code]} | {_ids(code)} |\n" for code in sorted(ExitCode)
    )
    return (
        "# Exit codes\n\n"
        f"{_WRITTEN}\n"
        "Every command, on the controller and on a host, ends with one of these.\n"
        "When several apply, the first of 10, 7, 6, 61, 5 is taken.\n"
        "The [errors](errors.md) say what to do next.\n\n"
        "| code | meaning | error ids |\n|---|---|---|\n" + rows
    )


def commands_page() -> str:
    """Return docs/reference/cli.md: what every command says with --help."""
    helps = "".join(
        f"\n## `{context.command_path}`\n\n```text\n{context.get_help()}\n```\n"
        for context in _contexts(_context(program, "capsule", None))
    )
    return (
        "# The command line\n\n"
        f"{_WRITTEN}\n"
        "With `--json` a command prints one object with `schema` on stdout and nothing else there; "
        "what is for people goes to stderr.\n"
        "An error is then an object too, with the fields `error`, `exit_code`, `what`, `expected`, "
        "`got`, `where` and `next`.\n"
        "Every command ends with one of the [exit codes](exit-codes.md).\n"
        "What runs on a host is described in [wire](wire.md).\n" + helps
    )


def _contexts(context: click.Context) -> Iterator[click.Context]:
    """Yield the context of a command and of all below it, in the order of the help."""
    yield context
    command = context.command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None, "a listed command exists"
            yield from _contexts(_context(child, name, context))


def _context(command: click.Command, name: str, parent: click.Context | None) -> click.Context:
    # A width of its own, because the page must not depend on anybody's terminal.
    return click.Context(
        command, info_name=name, parent=parent, terminal_width=_HELP_WIDTH,
        **command.context_settings,
    )  # fmt: skip


def _ids(code: ExitCode) -> str:
    return " ".join(f"`{name}`" for name, (row_code, _) in sorted(ROWS.items()) if row_code == code)


def _cell(text: str) -> str:
    # A bar inside a table ends the cell even within backticks.
    return text.replace("|", "\\|")
