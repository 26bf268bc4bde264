"""`capsule rollout`: lanes that commit by themselves, and what an operator decides about them."""

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import click

from capsule.builder.keyfile import load_signer
from capsule.cli.controller import home_option, policy_option
from capsule.cli.output import json_option, print_json, print_pairs
from capsule.cli.rollout_desk import (
    Desk,
    carry_out,
    chosen_hook,
    epoch_option,
    fold_of,
    ledger_option,
    open_desk,
    run_options,
)
from capsule.cli.rollout_status import report, status, watch
from capsule.cli.rollout_watch import TerminalWatch
from capsule.clock import utc_now
from capsule.lane.budget import estimate_length_ms
from capsule.lane.driver import Patience
from capsule.lane.epoch import EpochState
from capsule.lane.plan import RolloutPlan, plan_digest
from capsule.rollout.decisions import Wish
from capsule.rollout.epoch import EpochRun
from capsule.rollout.planning import PlanChoices, epoch_name, make_plan
from capsule.rollout.preflight import Preflight, require_fresh
from capsule.rollout.quarantine import quarantine_unfit
from capsule.rollout.records import last_preflight
from capsule.rollout.shell import Interrupts
from capsule.transport.connect import connect
from capsule_manifest.errors import ExitCode, Refused

__all__ = ["command", "decide_epoch"]

_PREFLIGHT_MS_MAX: Final = 15 * 60 * 1000
_STALL_MARGIN_MS: Final = 30_000

Function = TypeVar("Function", bound=Callable[..., object])


@click.group("rollout", epilog="Example: capsule rollout status --policy trust.json")
def command() -> None:
    """Roll a staged capsule out, lane by lane, and decide about what is held."""


def plan_options(function: Function) -> Function:
    """Add what an operator decides about a plan."""
    for option in (
        click.option("--allow-outage", is_flag=True, help="The only node may be away."),
        click.option(
            "--without-unfit", is_flag=True, help="Leave out nodes that preflight found unfit."
        ),
        click.option(
            "--max-failed-lanes", type=click.IntRange(min=0), help="Stop all lanes after so many."
        ),
    ):
        function = option(function)
    return function


@command.command("plan", epilog="Example: capsule rollout plan 2.capsule --policy trust.json")
@click.argument("capsule", type=click.Path(exists=True, path_type=Path))
@plan_options
@policy_option
@ledger_option
@home_option
@json_option
def plan(
    capsule: Path,
    policy_path: Path,
    ledger: str | None,
    home_path: Path,
    max_failed_lanes: int | None,
    *,
    allow_outage: bool,
    without_unfit: bool,
    as_json: bool,
) -> int:
    """Show what a rollout of CAPSULE would do, and the digest that names it."""
    choices = PlanChoices(
        without_unfit=without_unfit, allow_outage=allow_outage, max_failed_lanes=max_failed_lanes
    )
    with open_desk(policy_path, home_path, ledger, capsule=capsule) as desk:
        made, _ = _make_plan(desk, choices)
    _print_plan(made, as_json=as_json)
    return int(ExitCode.DONE)


@command.command(
    "start",
    epilog="Example: capsule rollout start 2.capsule --policy trust.json "
    "--controller-key controller.key",
)
@click.argument("capsule", type=click.Path(exists=True, path_type=Path))
@plan_options
@click.option(
    "--plan-digest",
    "expected",
    metavar="DIGEST",
    help="Start only this plan: for unattended runs.",
)
@run_options
def start(
    capsule: Path,
    policy_path: Path,
    controller_key_path: Path,
    ledger: str | None,
    home_path: Path,
    max_failed_lanes: int | None,
    expected: str | None,
    *,
    allow_outage: bool,
    without_unfit: bool,
    as_json: bool,
) -> int:
    """Roll CAPSULE out to every fit node of the frozen route, from a fresh preflight.

    Ctrl-C pauses: what is under way ends, nothing new begins. A second Ctrl-C detaches.
    """
    choices = PlanChoices(
        without_unfit=without_unfit, allow_outage=allow_outage, max_failed_lanes=max_failed_lanes
    )
    with open_desk(policy_path, home_path, ledger, capsule=capsule, create=True) as desk:
        made, preflight = _make_plan(desk, choices)
        _check_digest(made, expected)
        _print_plan(made, as_json=False, err=True)
        desk.ledger.add_nodes(sorted(desk.route.route.nodes))
        for item in quarantine_unfit(desk.home, desk.ledger, preflight):
            click.echo(f"{item.node}: quarantined, {item.coherence}", err=True)
        highest = max(finding.fence for finding in preflight.nodes.values())
        return int(_run(desk, made, controller_key_path, as_json=as_json).start(highest))


@command.command(
    "adopt",
    epilog="Example: capsule rollout adopt 2.capsule --policy trust.json "
    "--controller-key controller.key",
)
@click.argument("capsule", type=click.Path(exists=True, path_type=Path))
@epoch_option
@click.option("--takeover", is_flag=True, help="Do not wait for the other controller's lease.")
@run_options
def adopt(
    capsule: Path,
    policy_path: Path,
    controller_key_path: Path,
    ledger: str | None,
    home_path: Path,
    epoch: str | None,
    *,
    takeover: bool,
    as_json: bool,
) -> int:
    """Take an unfinished rollout of CAPSULE over and go on with it."""
    with open_desk(policy_path, home_path, ledger, capsule=capsule) as desk:
        plan_of_epoch = desk.ledger.plan(desk.epoch(epoch))
        run = _run(desk, plan_of_epoch, controller_key_path, as_json=as_json)
        return int(run.adopt(takeover=takeover, decision=None))


def _decision(verb: str, text: str) -> click.Command:
    """Return the command of a decision about a whole epoch."""

    @click.command(
        verb,
        help=text,
        epilog=f"Example: capsule rollout {verb} 2.capsule --policy trust.json "
        "--controller-key controller.key --reason 'seen in the logs'",
    )
    @click.argument("capsule", type=click.Path(exists=True, path_type=Path))
    @click.option("--reason", default="", help="Kept with the decision.")
    @epoch_option
    @run_options
    def decide(
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
        wish = Wish(verb=verb, subject="", reason=reason)
        with open_desk(policy_path, home_path, ledger, capsule=capsule) as desk:
            return decide_epoch(desk, epoch, wish, controller_key_path, as_json=as_json)

    return decide


command.add_command(_decision("pause", "Take no new node; what is under way ends by itself."))
command.add_command(_decision("resume", "Go on after a pause or a failed canary."))
command.add_command(_decision("abort", "Never touch what was not touched yet."))
command.add_command(status)
command.add_command(watch)
command.add_command(report)


def decide_epoch(
    desk: Desk, epoch: str | None, wish: Wish, key_path: Path, *, as_json: bool
) -> int:
    """Carry a decision out: by the controller that runs the epoch, or by adopting it."""
    named = desk.epoch(epoch)
    if fold_of(desk.ledger, named).state.epoch is EpochState.ENDED:
        click.echo(f"epoch {named} has ended: there is nothing to decide", err=True)
    run = _run(desk, desk.ledger.plan(named), key_path, as_json=as_json)
    return int(carry_out(desk, run, wish, name=secrets.token_hex(8)))


def _run(desk: Desk, planned: RolloutPlan, key_path: Path, *, as_json: bool) -> EpochRun:
    return EpochRun(
        home=desk.home,
        ledger=desk.ledger,
        plan=planned,
        route=desk.route,
        payload=desk.payload,
        controller=load_signer(key_path),
        connect=connect,
        watch=TerminalWatch(desk.home, planned.epoch, as_json=as_json),
        interrupts=Interrupts(),
        hook=chosen_hook(),
        # Longer than any host takes to end what it began; then only a person can help.
        patience=Patience(stall_ms=planned.budget.op_ms + _STALL_MARGIN_MS),
    )


def _make_plan(desk: Desk, choices: PlanChoices) -> tuple[RolloutPlan, Preflight]:
    preflight = require_fresh(
        last_preflight(desk.home),
        route=desk.route.digest,
        capsule=desk.payload.capsule,
        now_ms=int(utc_now().timestamp() * 1000),
        age_ms_max=_PREFLIGHT_MS_MAX,
    )
    epoch = epoch_name(desk.payload.generation, desk.epochs())
    made = make_plan(desk.route, desk.payload, preflight, epoch=epoch, choices=choices)
    return made, preflight


def _check_digest(made: RolloutPlan, expected: str | None) -> None:
    digest = plan_digest(made)
    if expected is not None and digest != expected:
        raise Refused(
            "plan-changed",
            "the plan is another one than was looked at",
            expected=expected,
            got=digest,
            where=made.epoch,
        )


def _print_plan(made: RolloutPlan, *, as_json: bool, err: bool = False) -> None:
    lanes: dict[str, list[str]] = {}
    for node in made.nodes:
        lanes.setdefault(node.lane, []).append(node.name)
    length_ms = estimate_length_ms(
        made.budget, nodes=len(made.nodes), max_unavailable=made.max_unavailable
    )
    if as_json:
        print_json(
            {
                "plan": plan_digest(made),
                "epoch": made.epoch,
                "capsule": made.capsule,
                "route": made.route,
                "preflight": made.preflight,
                "lanes": lanes,
                "order": [node.name for node in made.nodes],
                "bystanders": made.bystanders,
                "max_unavailable": made.max_unavailable,
                "floor": made.floor,
                "window_ms": made.budget.window_ms,
                "length_ms_max": length_ms,
            }
        )
        return
    pairs = [
        ("plan", plan_digest(made)),
        ("epoch", made.epoch),
        ("nodes", f"{len(made.nodes)} in {len(lanes)} lanes, {made.bystanders} left as they are"),
        ("first", ", ".join(node.name for node in made.nodes[:3])),
        ("permits", f"at most {made.max_unavailable} out, floor {made.floor}"),
        ("window", f"at most {made.budget.window_ms / 1000:g} s a node"),
        ("length", f"at most {length_ms / 1000:g} s in all"),
    ]
    if err:
        click.echo("\n".join(f"{name}: {value}" for name, value in pairs), err=True)
    else:
        print_pairs(pairs)
