"""`capsule lane resume|skip`: what becomes of the untouched members of a held lane."""

from pathlib import Path

import click

from capsule.cli.rollout import decide_epoch
from capsule.cli.rollout_desk import epoch_option, open_desk, run_options
from capsule.rollout.decisions import Wish

__all__ = ["command"]


@click.group(
    "lane",
    epilog="Example: capsule lane resume a 2.capsule --policy trust.json "
    "--controller-key controller.key",
)
def command() -> None:
    """Decide about a lane that stopped because a member is held or unknown."""


def _decision(verb: str, text: str) -> click.Command:
    @click.command(
        verb,
        help=text,
        epilog=f"Example: capsule lane {verb} a 2.capsule --policy trust.json "
        "--controller-key controller.key",
    )
    @click.argument("lane")
    @click.argument("capsule", type=click.Path(exists=True, path_type=Path))
    @click.option("--reason", default="", help="Kept with the decision.")
    @epoch_option
    @run_options
    def decide(
        lane: str,
        capsule: Path,
        policy_path: Path,
        controller_key_path: Path,
        ledger: str | None,
        home_path: Path,
        epoch: str | None,
        reason: str,
        *,
        as_json: bool,
    ) -> int:
        wish = Wish(verb=f"lane-{verb}", subject=lane, reason=reason)
        with open_desk(policy_path, home_path, ledger, capsule=capsule) as desk:
            return decide_epoch(desk, epoch, wish, controller_key_path, as_json=as_json)

    return decide


command.add_command(_decision("resume", "Let the untouched members of a held lane go on."))
command.add_command(_decision("skip", "Leave the untouched members of a lane as they are."))
