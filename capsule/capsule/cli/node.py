"""`capsule node`: hold, release and repair single nodes, their files, and one that is lost."""

import secrets
from pathlib import Path

import click

from capsule.builder.keyfile import load_signer
from capsule.cli.controller import (
    controller_key_option,
    home_option,
    policy_option,
    read_policy,
)
from capsule.cli.output import json_option, print_json, print_table
from capsule.cli.rollout import decide_epoch
from capsule.cli.rollout_desk import Desk, epoch_option, ledger_option, open_desk, run_options
from capsule.home import ProductHome
from capsule.rollout.decisions import Wish
from capsule.rollout.managed import node_files
from capsule.rollout.quarantine import QUARANTINE, check_release
from capsule.rollout.records import last_preflight
from capsule.rollout.repair import repair_node
from capsule.session import HostSession
from capsule.transport.connect import connect
from capsule_manifest.errors import ExitCode, Refused

__all__ = ["command"]

_OPERATOR = "operator"
_AS_RELEASED = "same"


@click.group("node", epilog="Example: capsule node hold n1 --policy trust.json")
def command() -> None:
    """Hold, release and repair single nodes."""


@command.command("hold", epilog="Example: capsule node hold n1 --policy trust.json")
@click.argument("node")
@policy_option
@ledger_option
@home_option
@json_option
def hold(
    node: str, policy_path: Path, ledger: str | None, home_path: Path, *, as_json: bool
) -> int:
    """Keep every rollout away from NODE until it is released; it has no time limit."""
    with open_desk(policy_path, home_path, ledger) as desk:
        _check_known(desk, node)
        desk.ledger.add_nodes([node])
        desk.ledger.place_hold(node, _OPERATOR)
    _say(node, "held", as_json=as_json)
    return int(ExitCode.DONE)


@command.command("release", epilog="Example: capsule node release n1 --policy trust.json")
@click.argument("node")
@policy_option
@ledger_option
@home_option
@json_option
def release(
    node: str, policy_path: Path, ledger: str | None, home_path: Path, *, as_json: bool
) -> int:
    """End an operator's hold of NODE, and its quarantine if the last preflight finds it whole.

    The hold of a rollout is never ended here.
    """
    with open_desk(policy_path, home_path, ledger) as desk:
        _check_known(desk, node)
        desk.ledger.remove_hold(node, _OPERATOR)
        if node in desk.ledger.foreign_holds(""):
            preflight = last_preflight(desk.home)
            check_release(node, preflight.nodes.get(node) if preflight else None)
            desk.ledger.remove_hold(node, QUARANTINE)
    _say(node, "released", as_json=as_json)
    return int(ExitCode.DONE)


@command.command(
    "repair",
    epilog="Example: capsule node repair n1 --policy trust.json --controller-key controller.key",
)
@click.argument("node")
@policy_option
@controller_key_option
@home_option
@json_option
def repair(
    node: str, policy_path: Path, controller_key_path: Path, home_path: Path, *, as_json: bool
) -> int:
    """Have NODE write its missing marker, if everything else on it proves the marker's value."""
    policy = read_policy(policy_path)
    home = ProductHome(home=home_path, product=policy.product)
    receipt = repair_node(
        node,
        home=home,
        route=home.latest_route(policy),
        controller=load_signer(controller_key_path),
        connect=connect,
        new_op_id=lambda: secrets.token_hex(16),
    )
    if as_json:
        print_json({"node": node, "state": "repaired", "receipt": receipt.digest})
    else:
        click.echo(f"{node}: repaired, receipt {receipt.receipt.sequence} {receipt.digest}")
    return int(ExitCode.DONE)


@command.command(
    "files",
    epilog="Example: capsule node files n1 --set-aside --policy trust.json "
    "--controller-key controller.key",
)
@click.argument("node")
@policy_option
@controller_key_option
@click.option("--generation", default="", help="Look at what is new in this staged generation.")
@click.option(
    "--set-aside", is_flag=True, help="Keep what differs on the host and put the release's back."
)
@home_option
@json_option
def files(
    node: str,
    policy_path: Path,
    controller_key_path: Path,
    generation: str,
    home_path: Path,
    *,
    set_aside: bool,
    as_json: bool,
) -> int:
    """Show NODE's managed files, and set aside those that somebody changed.

    What is set aside keeps its bytes, owner and mode below the host's quarantine folder, and the
    host signs where. Exit code 3 while a file differs.
    """
    policy = read_policy(policy_path)
    home = ProductHome(home=home_path, product=policy.product)
    route, key = home.latest_route(policy), home.node_key(node)
    entry = route.route.nodes.get(node)
    if entry is None or key is None:
        raise Refused(
            "node-unknown",
            "the frozen route has no such node, or it was never met",
            expected=", ".join(sorted(route.route.nodes)),
            got=node,
        )
    found = node_files(
        HostSession(connect(entry.endpoint, node), node=node),
        home=home,
        key=key,
        controller=load_signer(controller_key_path),
        set_aside=set_aside,
        generation=generation,
    )
    if as_json:
        print_json({"node": node, "files": dict(found.files), "kept": dict(found.kept)})
    else:
        print_table(("file", "state"), sorted(found.files.items()))
        for target, path in sorted(found.kept.items()):
            click.echo(f"{node}: what was {target} is kept as {path}", err=True)
    is_same = set(found.files.values()) <= {_AS_RELEASED}
    return int(ExitCode.DONE if is_same else ExitCode.PREFLIGHT_REFUSED)


@command.command(
    "assume-down",
    epilog="Example: capsule node assume-down n1 2.capsule --policy trust.json "
    "--controller-key controller.key",
)
@click.argument("node")
@click.argument("capsule", type=click.Path(exists=True, path_type=Path))
@click.option("--reason", default="", help="Kept with the decision.")
@epoch_option
@run_options
def assume_down(
    node: str,
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
    """Decide that NODE, of which nothing is heard, counts as down from now on."""
    wish = Wish(verb="assume-down", subject=node, reason=reason)
    with open_desk(policy_path, home_path, ledger, capsule=capsule) as desk:
        return decide_epoch(desk, epoch, wish, controller_key_path, as_json=as_json)


def _check_known(desk: Desk, node: str) -> None:
    if node not in desk.route.route.nodes:
        raise Refused(
            "node-unknown",
            "the frozen route has no such node",
            expected=", ".join(sorted(desk.route.route.nodes)),
            got=node,
        )


def _say(node: str, state: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"node": node, "state": state})
    else:
        click.echo(f"{node}: {state}")
