"""What every rollout command opens first: policy, route, capsule, ledger, and which epoch."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import click

from capsule.cli.controller import controller_key_option, home_option, policy_option, read_policy
from capsule.cli.output import json_option
from capsule.freeze import FrozenRoute
from capsule.home import ProductHome
from capsule.lane.epoch import EpochState
from capsule.ledger.fold import Fold, fold_epochs
from capsule.ledger.opening import open_ledger
from capsule.ledger.store import SqlLedger
from capsule.payload import Payload, open_payload
from capsule.rollout.decisions import Inbox, Wish, check_wish, decision_of
from capsule.rollout.epoch import EpochRun, epoch_folder
from capsule.rollout.hooks import CommandHook, Hook, HttpHook
from capsule_manifest.errors import CapsuleError, ExitCode, Failed, Refused

__all__ = [
    "Desk",
    "carry_out",
    "chosen_hook",
    "epoch_option",
    "fold_of",
    "ledger_option",
    "open_desk",
    "run_options",
]

_ANSWER_S: Final = 10.0
_POLL_S: Final = 0.1
_HOOK: Final = "capsule.hook"

Function = TypeVar("Function", bound=Callable[..., object])


def ledger_option(function: Function) -> Function:
    """Add `--ledger`."""
    return click.option(
        "--ledger",
        envvar="CAPSULE_LEDGER",
        show_envvar=True,
        metavar="ADDRESS",
        help="A path, or postgresql://USER@HOST/DATABASE; by default in the controller's folder.",
    )(function)


def epoch_option(function: Function) -> Function:
    """Add `--epoch`."""
    return click.option("--epoch", metavar="EPOCH", help="By default the newest.")(function)


def run_options(function: Function) -> Function:
    """Add the options of commands that may run an epoch."""
    for add in (
        json_option,
        home_option,
        hook_options,
        ledger_option,
        controller_key_option,
        policy_option,
    ):
        function = add(function)
    return function


def hook_options(function: Function) -> Function:
    """Add `--hook-command` and `--hook-url`; they arrive as one parameter of the context."""
    function = click.option(
        "--hook-url",
        metavar="URL",
        expose_value=False,
        callback=_keep_url,
        help="POST hold, drained and resume below this address.",
    )(function)
    return click.option(
        "--hook-command",
        metavar="PROGRAM",
        expose_value=False,
        callback=_keep_command,
        help="Run PROGRAM hold|drained|resume NODE.",
    )(function)


def chosen_hook() -> Hook | None:
    """Return the hook that the command line names, None for the ledger's own holds."""
    hook: Hook | None = click.get_current_context().meta.get(_HOOK)
    return hook


def _keep_url(context: click.Context, _: click.Parameter, url: str | None) -> None:
    if url is None:
        return
    if not url.startswith(("http://", "https://")):
        raise click.BadParameter("expected an address that begins with http:// or https://")
    _keep(context, HttpHook(url=url))


def _keep_command(context: click.Context, _: click.Parameter, program: str | None) -> None:
    if program is not None:
        _keep(context, CommandHook(program=program))


def _keep(context: click.Context, hook: Hook) -> None:
    if _HOOK in context.meta:
        raise click.UsageError("give either --hook-command or --hook-url")
    context.meta[_HOOK] = hook


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """An open ledger with what belongs to it. `payload` is there where a capsule was named."""

    home: ProductHome
    route: FrozenRoute
    ledger: SqlLedger
    opened: Payload | None

    @property
    def payload(self) -> Payload:
        """Return the capsule."""
        assert self.opened is not None, "this command names no capsule"
        return self.opened

    def epochs(self) -> list[str]:
        """Return every epoch of the ledger."""
        return [fold.stream for fold in fold_epochs(self.ledger.engine)]

    def epoch(self, named: str | None) -> str:
        """Return the named epoch, or the newest one that is not over, or the newest.

        Raises:
            Refused: `epoch-unknown`.
        """
        return fold_of(self.ledger, named).stream


def fold_of(ledger: SqlLedger, named: str | None) -> Fold:
    """Return the state of an epoch; without a name of the newest, unfinished ones first.

    Raises:
        Refused: `epoch-unknown`.
    """
    folds = fold_epochs(ledger.engine)
    found = [fold for fold in folds if named in {None, fold.stream}]
    if not found:
        raise Refused(
            "epoch-unknown",
            "the ledger has no such epoch",
            expected=", ".join(fold.stream for fold in folds) or "an epoch that was started",
            got=named or "none",
        )
    return max(found, key=lambda f: (f.state.epoch is not EpochState.ENDED, f.state.fence))


@contextmanager
def open_desk(
    policy_path: Path,
    home_path: Path,
    ledger: str | None,
    *,
    capsule: Path | None = None,
    create: bool = False,
) -> Iterator[Desk]:
    """Open everything that a rollout command works with.

    A plan is made before the first epoch, so a ledger in the controller's own folder is made when
    it is not there.

    Raises:
        CapsuleError: what reading the policy, the route, the capsule and the ledger raise.
    """
    policy = read_policy(policy_path)
    home = ProductHome(home=home_path, product=policy.product)
    route = home.latest_route(policy)
    payload = None if capsule is None else open_payload(capsule, policy)
    address = str(home.ledger_path) if ledger is None else ledger
    with open_ledger(address, create=create or ledger is None) as opened:
        yield Desk(home=home, route=route, ledger=opened, opened=payload)


def carry_out(desk: Desk, run: EpochRun, wish: Wish, *, name: str) -> ExitCode:
    """Carry a decision out, by adopting the epoch or through the controller that runs it.

    Raises:
        Refused: `node-unknown`, and those of adopting but `lease-busy`.
        Failed: `decision-waiting` when the controller that has the lease did not take it up.
    """
    check_wish(fold_of(desk.ledger, run.plan.epoch).state, wish)
    try:
        return run.adopt(takeover=False, decision=decision_of(wish))
    except CapsuleError as error:
        if error.error_id != "lease-busy":
            raise
        holder = error.got
    inbox = Inbox(folder=epoch_folder(desk.home, run.plan.epoch) / "inbox")
    path = inbox.put(wish, name)
    end = time.monotonic() + _ANSWER_S
    while path.exists():
        if time.monotonic() > end:
            path.unlink(missing_ok=True)
            raise Failed(
                "decision-waiting",
                "the controller of the epoch did not take the decision up",
                expected=f"within {_ANSWER_S:g} s",
                got=f"its lease: {holder}",
                where=run.plan.epoch,
            )
        time.sleep(_POLL_S)
    return ExitCode.DONE
