"""The host program's command line: one table of verbs, loaded when called, and one process edge.

Verbs for a controller answer in framed records; verbs for a person print text, or records with
`--json`. However a verb ends, the exit code is that of the one table, and a failure is also the
last record.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Final

import click

from capsule_installer.edge import exit_code_of
from capsule_installer.host.host import Host
from capsule_installer.host.layout import make_layout
from capsule_installer.system.clock import BootClock
from capsule_installer.system.disk import RealDisk
from capsule_installer.system.facts import RealMachine
from capsule_installer.system.report import standard_reporter
from capsule_manifest.errors import ExitCode

__all__ = ["VERBS", "main", "program"]

VERBS: Final[Mapping[str, tuple[str, str, str]]] = {
    "boot": ("verbs.ops", "boot", "Undo at boot what was open when the host went down."),
    "confirm": ("verbs.ops", "confirm", "Accept a controller's confirm of a proved op."),
    "enrol": ("host.enrol", "command", "Give this host its node key, name and first policy."),
    "files": (
        "verbs.files",
        "command",
        "Show managed files, and set aside those that were changed.",
    ),
    "follow": ("verbs.ops", "follow", "Tell how an op goes until it ends."),
    "gc": ("care.collect", "command", "Remove generations and objects that nothing needs."),
    "hello": ("verbs.hello", "command", "Say who and how this host is."),
    "install": ("verbs.ops", "install", "Take a signed order and carry it out."),
    "query": ("op.query", "command", "Record a controller's fence and say what is known of an op."),
    "receipts": ("verbs.receipts", "command", "List and verify what this host did."),
    "receive": ("verbs.receive", "command", "Take a capsule and stage it."),
    "repair": (
        "care.repair",
        "command",
        "Write the installed marker anew where all evidence agrees.",
    ),
    "rollback": ("verbs.ops", "rollback", "Return to the previous generation."),
    "status": ("care.status", "command", "Show what is installed, staged, held and open."),
    "survey": ("verbs.survey", "command", "Say everything that says what this host runs."),
    "supervise": ("verbs.ops", "supervise_verb", ""),
    "trust": ("verbs.trust", "command", "Show what this host trusts, or take the next policy."),
    "verify": ("care.verify_host", "command", "Hash everything again against what was signed."),
}
"""Verb to module of this package, click command in it, and one line of help; "" hides a verb."""


class _Verbs(click.Group):
    """Load a verb's module when it is called: importing all of them costs more than a hello."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        row = VERBS.get(cmd_name)
        if row is None:
            return None
        command = getattr(import_module(f"capsule_installer.{row[0]}"), row[1])
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Verbs"):
            formatter.write_dl([(name, row[2]) for name, row in VERBS.items() if row[2]])


@click.group(
    name="capsule",
    cls=_Verbs,
    epilog="Example: capsule status --json",
    context_settings={"help_option_names": ["--help"]},
)
@click.option(
    "--root",
    default="/",
    metavar="DIR",
    help="Act on the host below this folder instead of on this machine.",
)
@click.pass_context
def program(ctx: click.Context, root: str) -> None:
    """Verify, stage and install releases on this host, offline."""
    ctx.obj = Host(
        disk=RealDisk(),
        layout=make_layout(root),
        clock=BootClock(),
        machine=RealMachine(),
        reporter=standard_reporter(),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code. The process edge: nothing is raised from here."""
    reporter = standard_reporter()
    given = None if arguments is None else list(arguments)
    try:
        return exit_code_of(
            reporter,
            lambda: program.main(args=given, prog_name="capsule", standalone_mode=False),
        )
    except click.ClickException as error:
        error.show()
        return int(ExitCode.USAGE)
    except click.Abort:
        return int(ExitCode.INTERRUPTED)
