"""`capsule receipts`: what hosts have signed, as the controller keeps it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

import click

from capsule.builder.keyfile import load_public_key, load_signer
from capsule.cli.controller import (
    controller_key_option,
    error_fields,
    fleet_option,
    home_option,
    lane_options,
)
from capsule.cli.output import duration_text, json_option, print_json, print_table
from capsule.durable import publish_once
from capsule.fleet_work import exit_code, for_each_node
from capsule.home import ProductHome
from capsule.inventory import Fleet, load_fleet
from capsule.receipts_compare import Comparison, compare_receipts, disagreement
from capsule.receipts_export import NodeChain, audit, export, open_export
from capsule.receipts_store import CheckedReceipt
from capsule.session import HostSession
from capsule.transport.connect import connect
from capsule_manifest.errors import CapsuleError, ExitCode, Refused, render
from capsule_manifest.keys import Signer

__all__ = ["command"]

Function = TypeVar("Function", bound=Callable[..., object])

_FILE = click.Path(dir_okay=False, path_type=Path)


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
    _print_receipts(kept)
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
    code 10; every receipt that differs is named.
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
        compared = {node: _compared_fields(node, result) for node, result in results.items()}
        print_json({"exit_code": int(code), "nodes": compared})
        return int(code)
    print_table(
        ("node", "state", "receipts"),
        [_compared_row(node, result) for node, result in results.items()],
        right=(2,),
    )
    for node, result in results.items():
        for text in _compared_problems(node, result):
            click.echo(text, err=True)
    return int(code)


@command.command(
    "export",
    epilog="Example: capsule receipts export --lane all --controller-key controller.key "
    "--output receipts.ndjson",
)
@lane_options
@fleet_option
@controller_key_option
@home_option
@click.option("-o", "--output", type=_FILE, required=True, help="The new file.")
@json_option
def export_receipts(
    lane: str | None,
    nodes: tuple[str, ...],
    fleet_path: Path,
    controller_key_path: Path,
    home_path: Path,
    output: Path,
    *,
    as_json: bool,
) -> int:
    """Write the controller's copies into one file for auditors, under the controller's signature.

    Asks no host: run `capsule receipts verify` first, so that the copies are complete.
    """
    fleet = load_fleet(fleet_path)
    home = ProductHome(home=home_path, product=fleet.product)
    signer = load_signer(controller_key_path)
    chains = {}
    for node in fleet.selected(lane=lane, nodes=nodes):
        key = home.node_key(node)
        if key is not None:
            chains[node] = NodeChain(
                key=key, copies=tuple(home.receipts(node, signer=signer).records(key))
            )
    if not publish_once(output, export(fleet.product, chains, signer), mode=0o644):
        raise Refused("file-exists", "an export is never overwritten", where=output)
    counts = {node: len(chain.copies) for node, chain in chains.items()}
    if as_json:
        print_json({"output": str(output), "nodes": counts})
        return int(ExitCode.DONE)
    print_table(("node", "receipts"), [(n, str(count)) for n, count in counts.items()], right=(1,))
    return int(ExitCode.DONE)


@command.command(
    "audit", epilog="Example: capsule receipts audit receipts.ndjson --key controller.key.pub"
)
@click.argument("file", type=_FILE)
@click.option("--key", "key_path", type=_FILE, required=True, help="The controller's public key.")
@json_option
def audit_receipts(file: Path, key_path: Path, *, as_json: bool) -> int:
    """Verify an exported file with nothing but the controller's public key.

    Every signature, link and count is checked; one line less, changed or moved is exit code 10.
    """
    key = load_public_key(key_path).key
    with open_export(file) as lines:
        audited = audit(lines, key, where=str(file))
    if as_json:
        nodes = {node: [_fields(item) for item in audited.nodes[node]] for node in audited.nodes}
        print_json({"product": audited.product, "nodes": nodes})
        return int(ExitCode.DONE)
    _print_receipts(audited.nodes)
    return int(ExitCode.DONE)


def _copies(home: ProductHome, node: str, signer: Signer) -> list[CheckedReceipt]:
    key = home.node_key(node)
    return [] if key is None else list(home.receipts(node, signer=signer).read_all(key))


def _compare(home: ProductHome, fleet: Fleet, node: str, signer: Signer) -> Comparison:
    """Return how far host and controller agree, after copying what is new.

    Raises: `node-unmet`, `record-chain-broken`, what reading copies and asking the host raise.
    """
    key = home.node_key(node)
    if key is None:
        raise Refused("node-unmet", "this controller has never met the node", where=node)
    copies = home.receipts(node, signer=signer)
    kept = list(copies.read_all(key))
    session = HostSession(connect(fleet.nodes[node].endpoint, node), node=node)
    told, error = session.told_receipts()
    compared = compare_receipts(kept, told, node=node, key=key)
    if error is not None and not compared.findings:
        # The host itself says that something is wrong which its receipts don't show.
        raise error
    for receipt in compared.new:
        copies.add(receipt, key)
    return compared


def _code(result: Comparison | CapsuleError) -> ExitCode:
    if isinstance(result, CapsuleError):
        return result.exit_code
    return ExitCode.INTEGRITY if result.findings else ExitCode.DONE


def _compared_fields(node: str, result: Comparison | CapsuleError) -> Mapping[str, object]:
    if isinstance(result, CapsuleError):
        return error_fields(result)
    if not result.findings:
        return {"receipts": result.agreed + len(result.new)}
    return {
        **error_fields(disagreement(result, node)),
        "findings": [asdict(finding) for finding in result.findings],
    }


def _compared_row(node: str, result: Comparison | CapsuleError) -> tuple[str, str, str]:
    if isinstance(result, CapsuleError):
        return node, result.error_id, ""
    if result.findings:
        return node, "differs", str(result.agreed)
    return node, "agrees", str(result.agreed + len(result.new))


def _compared_problems(node: str, result: Comparison | CapsuleError) -> list[str]:
    if isinstance(result, CapsuleError):
        return [render(result)]
    if not result.findings:
        return []
    each = [
        f"{node}: receipt {item.number} {item.what}; kept {item.kept}, told {item.told}"
        for item in result.findings
    ]
    return [*each, render(disagreement(result, node))]


def _print_receipts(kept: Mapping[str, Sequence[CheckedReceipt]]) -> None:
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
