"""The command line: a table of commands, each imported when it is asked for.

`capsule --help` and shell completion read the table only, so they start in the time that Python
itself needs; `capsule verify` never imports what `capsule lock` needs.
"""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Final, NamedTuple

import click
from click.shell_completion import CompletionItem

from capsule import __version__

__all__ = ["COMMANDS", "Command", "program"]


class Command(NamedTuple):
    """Where a command is, and the one line that `capsule --help` shows for it."""

    module: str
    attribute: str
    help: str
    section: str


_RELEASE = "A release"
_TRUST = "Keys and trust"
_BEFORE = "Before anything stops"
_LANES = "Roll out"
_AFTER = "Look and check"

COMMANDS: Final[Mapping[str, Command]] = MappingProxyType(
    {
        "init": Command("capsule.cli.init", "command", "Write a first release.toml.", _RELEASE),
        "lock": Command("capsule.cli.lock", "command", "Resolve every input to a pin.", _RELEASE),
        "build": Command("capsule.cli.build", "command", "Build a capsule from pins.", _RELEASE),
        "sign": Command("capsule.cli.sign", "command", "Add a signature to a capsule.", _RELEASE),
        "verify": Command("capsule.cli.verify", "command", "Check every byte.", _RELEASE),
        "inspect": Command("capsule.cli.inspect", "command", "Show what is in it.", _RELEASE),
        "diff": Command("capsule.cli.diff", "command", "Show what changed.", _RELEASE),
        "manifest": Command(
            "capsule.cli.manifest", "command", "Show what decides it, by digest.", _RELEASE
        ),
        "bootstrap": Command(
            "capsule.cli.bootstrap", "command", "Let a bare host verify it.", _RELEASE
        ),
        "key": Command("capsule.cli.key", "command", "Make a signing key.", _TRUST),
        "trust": Command("capsule.cli.trust", "command", "Make or change a trust policy.", _TRUST),
        "freeze": Command("capsule.cli.freeze", "command", "Sign the inventory.", _BEFORE),
        "route": Command("capsule.cli.route", "command", "Show or hand on the route.", _BEFORE),
        "stage": Command("capsule.cli.stage", "command", "Send a capsule to hosts.", _BEFORE),
        "preflight": Command(
            "capsule.cli.preflight", "command", "Ask hosts whether they can take it.", _BEFORE
        ),
        "rollout": Command("capsule.cli.rollout", "command", "Install it in lanes.", _LANES),
        "lane": Command("capsule.cli.lane", "command", "Resume or skip a held lane.", _LANES),
        "node": Command("capsule.cli.node", "command", "Hold, release or repair a node.", _LANES),
        "install": Command("capsule.cli.install", "command", "Install on named nodes.", _LANES),
        "status": Command("capsule.cli.status", "command", "Show what hosts run.", _AFTER),
        "receipts": Command("capsule.cli.receipts", "command", "Show what hosts did.", _AFTER),
        "gc": Command("capsule.cli.gc", "command", "Have hosts remove what is old.", _AFTER),
        "ledger": Command("capsule.cli.ledger", "command", "Check what was decided.", _AFTER),
        "demo": Command("capsule.cli.demo", "command", "Show it all on this machine.", _AFTER),
    }
)


class _Program(click.Group):
    """Find commands in a table instead of importing them all."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Return the names in the order of the work, which the help shows."""
        return list(COMMANDS)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        row = COMMANDS.get(cmd_name)
        if row is None:
            return None
        command = getattr(import_module(row.module), row.attribute)
        assert isinstance(command, click.Command), f"{row.module} offers no command"
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, under the name of the table and no other."""
        name, command, rest = super().resolve_command(ctx, args)
        return (args[0] if command is not None else name), command, rest

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by section."""
        for section in dict.fromkeys(row.section for row in COMMANDS.values()):
            with formatter.section(section):
                formatter.write_dl(
                    [(name, row.help) for name, row in COMMANDS.items() if row.section == section]
                )

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete names from the table; the base class would import every command."""
        names = [
            CompletionItem(name, help=row.help)
            for name, row in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return names + click.Command.shell_complete(self, ctx, incomplete)


@click.group(
    cls=_Program,
    name="capsule",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="\b\nExample: capsule init && capsule lock && capsule build --key release.key\n"
    "Every command has --help with an example, and --json for programs.",
)
@click.version_option(__version__, prog_name="capsule", message="%(prog)s %(version)s")
def program() -> None:
    """Build, stage and roll out releases that install without a network."""
