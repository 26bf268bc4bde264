"""`capsule rollout status|watch|report`: what an epoch's events say, as a screen or as JSON."""

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

from capsule.cli.controller import home_option, policy_option
from capsule.cli.output import json_option, print_json
from capsule.cli.rollout_desk import Desk, epoch_option, fold_of, ledger_option, open_desk
from capsule.cli.rollout_watch import event_text
from capsule.clock import utc_now
from capsule.lane.epoch import EpochState, Tenure
from capsule.lane.proposals import result_of
from capsule.lane.state import RolloutState
from capsule.rollout.epoch import epoch_folder
from capsule.rollout.frame import begins_a_clock, evidence_of, render_frame
from capsule.rollout.kept import kept_events, kept_reasons
from capsule.rollout.records import event_line
from capsule_manifest.errors import ExitCode, clean

__all__ = ["report", "status", "watch"]

_POLL_S: Final = 0.5


@click.command("status", epilog="Example: capsule rollout status --policy trust.json")
@epoch_option
@policy_option
@ledger_option
@home_option
@json_option
def status(
    policy_path: Path, ledger: str | None, home_path: Path, epoch: str | None, *, as_json: bool
) -> int:
    """Show one screen about an epoch: what is down now, lanes, what is held and what to do."""
    with open_desk(policy_path, home_path, ledger) as desk:
        state = fold_of(desk.ledger, epoch).state
        if as_json:
            print_json(state_fields(state, _reasons(desk, state.plan.epoch)))
        else:
            _show(desk, state)
    return int(_code(state))


@click.command("report", epilog="Example: capsule rollout report --policy trust.json --json")
@epoch_option
@policy_option
@ledger_option
@home_option
@json_option
def report(
    policy_path: Path, ledger: str | None, home_path: Path, epoch: str | None, *, as_json: bool
) -> int:
    """Show what an epoch came to, node by node; the exit code is that of the epoch."""
    with open_desk(policy_path, home_path, ledger) as desk:
        state = fold_of(desk.ledger, epoch).state
        reasons = _reasons(desk, state.plan.epoch)
    if as_json:
        print_json(state_fields(state, reasons))
    else:
        for member in state.members.values():
            why = evidence_of(member, reasons)
            click.echo(clean(f"{member.name}  {member.state}{f': {why}' if why else ''}"))
    return int(_code(state))


@click.command("watch", epilog="Example: capsule rollout watch --policy trust.json --json")
@epoch_option
@policy_option
@ledger_option
@home_option
@json_option
def watch(
    policy_path: Path, ledger: str | None, home_path: Path, epoch: str | None, *, as_json: bool
) -> int:
    """Follow an epoch until it ends or parks: a screen, renewed as time goes by.

    Where there is no screen, one line a change; with --json, one event a line, as the ledger has
    them.
    """
    screen = sys.stdout.isatty() and not as_json
    with open_desk(policy_path, home_path, ledger) as desk:
        stream = desk.epoch(epoch)
        seen = 0
        while True:
            fold = fold_of(desk.ledger, stream)
            if screen:
                # Also without a change: its clocks go on.
                click.clear()
                _show(desk, fold.state)
            elif fold.length > seen:
                _tell(desk, stream, after=seen, as_json=as_json)
            seen = fold.length
            state = fold.state
            if state.epoch is EpochState.ENDED or state.tenure is Tenure.PARKED:
                return int(_code(state))
            time.sleep(_POLL_S)


def _tell(desk: Desk, stream: str, *, after: int, as_json: bool) -> None:
    """Print what came after, an event a line."""
    kept = kept_events(epoch_folder(desk.home, stream))
    known = {item["seq"]: item["at_ms"] for item in kept}
    for item in desk.ledger.read(stream, after=after):
        if as_json:
            # The ledger has no times; an epoch of another machine is told when it is seen here.
            at_ms = known.get(item.seq, _now_ms())
            click.echo(event_line(stream, item.seq, item.event, at_ms=at_ms))
        else:
            click.echo(clean(f"{item.seq:>5} {event_text(item.event)}"))


def state_fields(state: RolloutState, reasons: Mapping[str, str]) -> Mapping[str, object]:
    """Return a state as `--json` shows it. `reasons` has what hosts say of their ops, by op id."""
    return {
        "epoch": state.plan.epoch,
        "capsule": state.plan.capsule,
        "route": state.plan.route,
        "preflight": state.plan.preflight,
        "state": str(state.epoch),
        "tenure": str(state.tenure),
        "fence": state.fence,
        "exit_code": int(_code(state)),
        "committed": state.tally.committed,
        "held": state.tally.held,
        "unknown": state.tally.unknown,
        "permits_out": state.tally.outstanding,
        "proved_healthy": state.tally.healthy + state.plan.bystanders,
        "floor": state.plan.floor,
        "budget": {
            "window_ms": state.plan.budget.window_ms,
            "d1_ms": state.plan.budget.d1_ms,
            "d2_ms": state.plan.budget.d2_ms,
            "restore_ms": state.plan.budget.restore_ms,
            "ttl_ms": state.plan.budget.ttl_ms,
        },
        "lanes": {lane: str(value) for lane, value in sorted(state.lanes.items())},
        "nodes": {
            member.name: {
                "lane": member.lane,
                "state": str(member.state),
                "serving": member.serving,
                "hold": str(member.hold),
                "attempts": member.attempts,
                "op_id": member.op_id,
                "reason": member.reason,
                "evidence": reasons.get(member.op_id, ""),
            }
            for member in state.members.values()
        },
    }


def _code(state: RolloutState) -> ExitCode:
    running = state.epoch is not EpochState.ENDED and state.tenure is not Tenure.PARKED
    return ExitCode.DONE if running else result_of(state)


def _show(desk: Desk, state: RolloutState) -> None:
    epoch = state.plan.epoch
    frame = render_frame(state, _since(desk, epoch), _now_ms(), _reasons(desk, epoch))
    click.echo("\n".join(clean(line) for line in frame.splitlines()))


def _reasons(desk: Desk, epoch: str) -> Mapping[str, str]:
    return kept_reasons(epoch_folder(desk.home, epoch))


def _since(desk: Desk, epoch: str) -> dict[str, int]:
    """Return when each node's clock began, as far as this controller's folder knows."""
    return {
        item["node"]: item["at_ms"]
        for item in kept_events(epoch_folder(desk.home, epoch))
        if "node" in item and begins_a_clock(item["event"])
    }


def _now_ms() -> int:
    return int(utc_now().timestamp() * 1000)
