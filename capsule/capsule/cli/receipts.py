"""`capsule receipts`: what hosts have signed, as the controller keeps it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import click

from capsule.builder.keyfile import load_signer
from capsule.cli.controller import (
    controller_key_option,
    error_fields,
    fleet_option,
    home_option,
    lane_options,
)
from capsule.cli.output import duration_text, json_option, print_json, print_table
from capsule.fleet_work import connect, exit_code, for_each_node
from capsule.home import ProductHome
from capsule.inventory import Fleet, load_fleet
from capsule.receipts_store import CheckedReceipt, check_receipt
from capsule.session import HostSession
from capsule_manifest.errors import CapsuleError, ExitCode, Refused, render
from capsule_manifest.keys import Signer

__all__ = ["command"]

Function = TypeVar("Function", bound=Callable[..., object])


@click.group(
    "receipts", epilog="Example: capsule receipts verify --lane all --controller-key controller.key"
)
def command() -> None:
    """Show and check the receipts that hosts have signed."""


@command.command(
    "list", epilog="Example: capsule receipts list --node n1 --controller-key controller.key"
)
@lane_options
@fleet_option
@controller_key_option
@home_option
@json_option
def list_receipts(
    lane: str | None,
    nodes: tuple[str, ...],
    fleet_path: Path,
    controller_key_path: Path,
    home_path: Path,
    *,
    as_json: bool,
) -> int:
    """Show the controller's copies, after checking their signatures and chain."""
    fleet = load_fleet(fleet_path)
    home = ProductHome(home=home_path, product=fleet.product)
    signer = load_signer(controller_key_path)
    kept = {node: _copies(home, node, signer) for node in fleet.selected(lane=lane, nodes=nodes)}
    if as_json:
        print_json({"nodes": {node: [_fields(item) for item in kept[node]] for node in kept}})
        return int(ExitCode.DONE)
    rows = [
        (
            node,
            str(item.receipt.sequence),
            item.receipt.kind,
            item.receipt.result,
            item.receipt.source,
            item.receipt.target,
            duration_text(sum(step.took_ms for step in item.receipt.steps)),
            item.receipt.guard,
        )
        for node, items in kept.items()
        for item in items
    ]
    print_table(("node", "no", "kind", "result", "from", "to", "took", "guard"), rows, right=(1, 6))
    return int(ExitCode.DONE)


@command.command(
    "verify", epilog="Example: capsule receipts verify --lane all --controller-key controller.key"
)
@lane_options
@fleet_option
@controller_key_option
@home_option
@json_option
def verify_receipts(
    lane: str | None,
    nodes: tuple[str, ...],
    fleet_path: Path,
    controller_key_path: Path,
    home_path: Path,
    *,
    as_json: bool,
) -> int:
    """Fetch every host's receipts and compare them with the copies, one by one.

    A host that tells its past differently than it did before, or has lost a part of it, is exit
    code 10.
    """
    fleet = load_fleet(fleet_path)
    home = ProductHome(home=home_path, product=fleet.product)
    signer = load_signer(controller_key_path)
    results = for_each_node(
        fleet.selected(lane=lane, nodes=nodes),
        lambda node: _compare(home, fleet, node, signer),
    )
    code = exit_code(_code(result) for result in results.values())
    if as_json:
        print_json(
            {
                "exit_code": int(code),
                "nodes": {
                    node: error_fields(result)
                    if isinstance(result, CapsuleError)
                    else {"receipts": result}
                    for node, result in results.items()
                },
            }
        )
        return int(code)
    print_table(
        ("node", "state", "receipts"),
        [
            (node, result.error_id, "")
            if isinstance(result, CapsuleError)
            else (node, "agrees", str(result))
            for node, result in results.items()
        ],
        right=(2,),
    )
    for result in results.values():
        if isinstance(result, CapsuleError):
            click.echo(render(result), err=True)
    return int(code)


def _copies(home: ProductHome, node: str, signer: Signer) -> list[CheckedReceipt]:
    key = home.node_key(node)
    return [] if key is None else list(home.receipts(node, signer=signer).read_all(key))


def _compare(home: ProductHome, fleet: Fleet, node: str, signer: Signer) -> int:
    """Return how many receipts host and controller agree on, after copying new ones."""
    key = home.node_key(node)
    if key is None:
        raise Refused("node-unmet", "this controller has never met the node", where=node)
    copies = home.receipts(node, signer=signer)
    kept = sum(1 for _ in copies.read_all(key))
    session = HostSession(connect(fleet.nodes[node].endpoint, node), node=node)
    told = [check_receipt(record, node=node, key=key) for record in session.receipts()]
    for receipt in told:
        copies.add(receipt, key)
    if len(told) < kept:
        raise Refused(
            "record-chain-broken",
            "a host has lost receipts",
            expected=f"at least {kept}",
            got=len(told),
            where=node,
        )
    return len(told)


def _code(result: int | CapsuleError) -> ExitCode:
    return result.exit_code if isinstance(result, CapsuleError) else ExitCode.DONE


def _fields(item: CheckedReceipt) -> Mapping[str, object]:
    receipt = item.receipt
    return {
        "digest": item.digest,
        "sequence": receipt.sequence,
        "kind": receipt.kind,
        "result": receipt.result,
        "reason": receipt.reason,
        "op_id": receipt.op_id,
        "fence": receipt.fence,
        "route": receipt.route,
        "capsule": receipt.capsule,
        "from": receipt.source,
        "to": receipt.target,
        "guard": receipt.guard,
        "violations": list(receipt.violations),
        "steps": [
            {"name": step.name, "took_ms": step.took_ms, "limit_ms": step.limit_ms}
            for step in receipt.steps
        ],
    }
