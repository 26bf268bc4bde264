"""`capsule ledger`: look at the controller's database, check it, and make a lost one again."""

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import click

from capsule.builder.keyfile import load_signer
from capsule.cli.controller import (
    NodeLines,
    controller_key_option,
    error_fields,
    fleet_option,
    home_option,
)
from capsule.cli.output import count_text, json_option, print_json, print_pairs, print_table
from capsule.fleet_work import exit_code, for_each_node
from capsule.home import ProductHome
from capsule.inventory import load_fleet
from capsule.ledger.audit import audit_ledger
from capsule.ledger.fold import Fold, check_states
from capsule.ledger.opening import open_ledger
from capsule.ledger.overview import Overview, read_events, read_overview
from capsule.ledger.rebuild import rebuild
from capsule.past import NodePast, read_past
from capsule.rollout.epoch import scope_of
from capsule.transport.connect import connect
from capsule_manifest.errors import CapsuleError, ExitCode, render

__all__ = ["command"]

Function = TypeVar("Function", bound=Callable[..., object])


def ledger_option(function: Function) -> Function:
    """Add `--ledger`, whose default is the file of the inventory's product."""
    return click.option(
        "--ledger",
        "address",
        envvar="CAPSULE_LEDGER",
        show_envvar=True,
        metavar="ADDRESS",
        help="A path, or postgresql://…; the default is the file of the fleet's product.",
    )(function)


@click.group("ledger", epilog="Example: capsule ledger verify")
def command() -> None:
    """Look at the controller's database, check it, and make a lost one again."""


@command.command("verify", epilog="Example: capsule ledger verify --json")
@ledger_option
@fleet_option
@home_option
@json_option
def verify(address: str | None, fleet_path: Path, home_path: Path, *, as_json: bool) -> int:
    """Walk every chain of events, recompute every state, and compare the tables with it.

    The first event or row that is wrong is named, and the exit code is 10. Nothing is changed, but
    that an older ledger is first brought to this version's schema.
    """
    with open_ledger(_address(address, fleet_path, home_path), create=False) as ledger:
        audit = audit_ledger(ledger.engine)
        folds = check_states(ledger.engine)
    nodes = sum(len(fold.state.members) for fold in folds)
    lanes = sum(len(fold.state.lanes) for fold in folds)
    if as_json:
        print_json(
            {
                "streams": audit.streams,
                "events": audit.events,
                "epochs": len(folds),
                "lanes": lanes,
                "nodes": nodes,
                "violations": 0,
            }
        )
        return int(ExitCode.DONE)
    click.echo(
        f"whole: {count_text(audit.events, 'event')} in {count_text(audit.streams, 'stream')}; "
        f"recomputed {count_text(len(folds), 'epoch')}, {count_text(lanes, 'lane')}, "
        f"{count_text(nodes, 'node')}"
    )
    return int(ExitCode.DONE)


@command.command("show", epilog="Example: capsule ledger show 7-0a1b2c3d.1")
@click.argument("epoch", required=False)
@ledger_option
@fleet_option
@home_option
@json_option
def show(
    epoch: str | None, address: str | None, fleet_path: Path, home_path: Path, *, as_json: bool
) -> int:
    """Show the epochs, leases and holds, or with EPOCH all its events in order."""
    with open_ledger(_address(address, fleet_path, home_path), create=False) as ledger:
        if epoch is None:
            _show_all(read_overview(ledger.engine), as_json=as_json)
            return int(ExitCode.DONE)
        found = read_events(ledger.engine, epoch)
    if as_json:
        print_json({"epoch": epoch, "events": [dict(item) for item in found]})
        return int(ExitCode.DONE)
    rows = [
        (
            str(item["seq"]),
            str(item["fence"]),
            str(item["event"]),
            ", ".join(
                f"{name} {value}"
                for name, value in item.items()
                if name not in {"seq", "fence", "event", "digest"}
            ),
        )
        for item in found
    ]
    print_table(("no", "fence", "event", "what"), rows, right=(0, 1))
    return int(ExitCode.DONE)


@command.command(
    "rebuild",
    epilog="Example: capsule ledger rebuild --from-hosts --controller-key controller.key",
)
@click.option("--from-hosts", is_flag=True, required=True, help="Ask all hosts of the inventory.")
@ledger_option
@fleet_option
@controller_key_option
@home_option
@json_option
def rebuild_ledger(
    address: str | None,
    fleet_path: Path,
    controller_key_path: Path,
    home_path: Path,
    *,
    from_hosts: bool,
    as_json: bool,
) -> int:
    """Make a lost ledger again from the hosts' signed receipts.

    Only an empty ledger takes them. Every node must be accounted for: by its host, or by this
    controller's copies of its receipts. A node that is in the middle of something, or did not
    answer, is held until a person has looked at it.
    """
    assert from_hosts, "the option is required: there may be other sources one day"
    fleet = load_fleet(fleet_path)
    home = ProductHome(home=home_path, product=fleet.product)
    signer = load_signer(controller_key_path)
    results = for_each_node(
        fleet.nodes,
        lambda node: read_past(
            home, node, fleet.nodes[node].endpoint, signer=signer, connect=connect
        ),
    )
    failed = {node: item for node, item in results.items() if isinstance(item, CapsuleError)}
    if failed:
        return _tell_failed(failed, as_json=as_json)
    pasts = {node: item for node, item in results.items() if isinstance(item, NodePast)}
    with open_ledger(_address(address, fleet_path, home_path), create=True) as ledger:
        fence = rebuild(
            ledger,
            [pasts[node].event for node in sorted(pasts)],
            held=[node for node, past in pasts.items() if past.is_held],
            scope=scope_of(fleet.product),
            holder="rebuild",
        )
    _tell_rebuilt(pasts, fence, as_json=as_json)
    return int(ExitCode.DONE)


def _address(address: str | None, fleet_path: Path, home_path: Path) -> str:
    if address is not None:
        return address
    product = load_fleet(fleet_path).product
    return str(ProductHome(home=home_path, product=product).ledger_path)


def _show_all(overview: Overview, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "epochs": [_fold_fields(fold) for fold in overview.folds],
                "leases": [dict(row) for row in overview.leases],
                "holds": [dict(row) for row in overview.holds],
                "nodes": [dict(row) for row in overview.nodes],
            }
        )
        return
    print_pairs(
        [
            ("nodes", str(len(overview.nodes))),
            *(
                (f"lease of {row['scope']}", f"fence {row['fence']}, last {row['holder']}")
                for row in overview.leases
            ),
            *((f"hold on {row['node']}", str(row["owner"])) for row in overview.holds),
        ]
    )
    if overview.folds:
        click.echo()
        rows = [
            (
                fold.stream,
                str(fold.state.epoch),
                str(fold.state.tenure),
                str(fold.length),
                ", ".join(f"{count} {state}" for state, count in _counts(fold).items()),
            )
            for fold in overview.folds
        ]
        print_table(("epoch", "state", "tenure", "events", "nodes"), rows, right=(3,))


def _counts(fold: Fold) -> Mapping[str, int]:
    return dict(sorted(Counter(str(m.state) for m in fold.state.members.values()).items()))


def _fold_fields(fold: Fold) -> Mapping[str, object]:
    state = fold.state
    return {
        "epoch": fold.stream,
        "state": str(state.epoch),
        "tenure": str(state.tenure),
        "fence": state.fence,
        "events": fold.length,
        "lanes": {name: str(lane) for name, lane in state.lanes.items()},
        "nodes": {
            member.name: {"state": str(member.state), "hold": str(member.hold)}
            for member in state.members.values()
        },
    }


def _tell_failed(failed: Mapping[str, CapsuleError], *, as_json: bool) -> int:
    code = exit_code(error.exit_code for error in failed.values())
    if as_json:
        nodes = {node: error_fields(error) for node, error in failed.items()}
        print_json({"exit_code": int(code), "nodes": nodes})
    for error in failed.values():
        click.echo(render(error), err=True)
    click.echo("nothing was rebuilt: every node must be accounted for", err=True)
    return int(code)


def _tell_rebuilt(pasts: Mapping[str, NodePast], fence: int, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "fence": fence,
                "nodes": {
                    node: {
                        "node_key": past.event.node_key,
                        "generation": past.event.generation,
                        "fence": past.event.fence,
                        "receipts": past.event.receipts,
                        "source": past.event.source,
                        "held": past.is_held,
                    }
                    for node, past in pasts.items()
                },
            }
        )
        return
    lines = NodeLines()
    for node, past in pasts.items():
        if past.is_held:
            lines.line(node, "is held: look at it with `capsule status`")
    rows = [
        (node, past.event.generation, str(past.event.fence), str(past.event.receipts),
         past.event.source, "held" if past.is_held else "")
        for node, past in pasts.items()
    ]  # fmt: skip
    print_table(("node", "generation", "fence", "receipts", "source", ""), rows, right=(2, 3))
    click.echo(f"rebuilt {count_text(len(pasts), 'node')}; the next fence is above {fence}")
