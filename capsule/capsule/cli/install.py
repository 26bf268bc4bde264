"""`capsule install`: order a staged capsule on hosts, and see each through to its outcome."""

import secrets
from collections.abc import Mapping
from pathlib import Path

import click

from capsule.builder.keyfile import load_signer
from capsule.cli.controller import (
    NodeLines,
    controller_key_option,
    error_fields,
    home_option,
    policy_option,
    read_policy,
)
from capsule.cli.output import duration_text, json_option, print_json, print_table
from capsule.fleet_work import exit_code
from capsule.home import ProductHome
from capsule.install import Installer, NodeInstalled, install_on
from capsule.payload import open_payload
from capsule.transport.connect import connect
from capsule_manifest.errors import CapsuleError, ExitCode, render
from capsule_manifest.orders import Order
from capsule_manifest.records import Proof

__all__ = ["command"]


@click.command(
    "install",
    epilog=(
        "Example: capsule install hello-1-0a1b2c3d.capsule --node n1 --node n2 --policy "
        "trust.json --controller-key controller.key"
    ),
)
@click.argument("capsule", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--node", "nodes", multiple=True, required=True, metavar="NODE", help="May be repeated."
)
@policy_option
@controller_key_option
@home_option
@json_option
def command(
    capsule: Path,
    nodes: tuple[str, ...],
    policy_path: Path,
    controller_key_path: Path,
    home_path: Path,
    *,
    as_json: bool,
) -> int:
    """Install CAPSULE on hosts on which it is staged, under the route that was frozen last.

    At most `max_unavailable` nodes at once. After a node that did not commit, no further node is
    ordered. A host that can't prove the new release restores the old one by itself: exit code 60.
    """
    policy = read_policy(policy_path)
    home = ProductHome(home=home_path, product=policy.product)
    watch = _Watch(NodeLines())
    installer = Installer(
        home=home,
        route=home.latest_route(policy),
        payload=open_payload(capsule, policy),
        controller=load_signer(controller_key_path),
        connect=connect,
        new_op_id=lambda: secrets.token_hex(16),
        watch=watch,
    )
    results = install_on(installer, tuple(dict.fromkeys(nodes)))
    code = exit_code(_code(result) for result in results.values())
    if as_json:
        print_json(
            {
                "capsule": installer.payload.capsule,
                "generation": installer.payload.generation,
                "route": installer.route.digest,
                "exit_code": int(code),
                "nodes": {node: _fields(result) for node, result in results.items()},
            }
        )
    else:
        _print_results(results)
    return int(code)


class _Watch:
    """Tell a person how an installation goes, one line a change."""

    def __init__(self, lines: NodeLines) -> None:
        self.lines = lines

    def ordered(self, node: str, order: Order) -> None:
        """Print that the host has taken the order."""
        self.lines.line(node, f"ordered {order.generation} over {order.prior}, op {order.op_id}")

    def step(self, node: str, *, name: str, state: str, took_ms: int | None, why: str) -> None:
        """Print one step on the host when it has ended; its begin is shown on a terminal only."""
        if state in {"started", "deadline"}:
            self.lines.update(node, name)
            return
        took = "" if took_ms is None else f" in {duration_text(took_ms)}"
        self.lines.line(node, f"{name} {state}{took}" + (f": {why}" if why else ""))

    def confirmed(self, node: str, proof: Proof) -> None:
        """Print what was proved."""
        units = ", ".join(f"{unit.unit} as {unit.pid}" for unit in proof.units)
        self.lines.line(node, f"proof accepted and confirmed: {units}")

    def ended(self, node: str, result: NodeInstalled | CapsuleError) -> None:
        """Print how it ended."""
        if isinstance(result, CapsuleError):
            self.lines.line(node, f"failed, {result.error_id}")
            return
        why = result.receipt.receipt.reason if result.receipt is not None else ""
        took = duration_text(int(result.took_s * 1000))
        self.lines.line(node, f"{result.result} in {took}" + (f": {why}" if why else ""))


def _code(result: NodeInstalled | CapsuleError) -> ExitCode:
    return result.exit_code


def _fields(result: NodeInstalled | CapsuleError) -> Mapping[str, object]:
    if isinstance(result, CapsuleError):
        return {"state": "failed", **error_fields(result)}
    fields: dict[str, object] = {
        "state": result.result,
        "generation": result.generation,
        "took_ms": int(result.took_s * 1000),
    }
    if result.receipt is not None:
        receipt = result.receipt.receipt
        fields |= {
            "op_id": receipt.op_id,
            "receipt": result.receipt.digest,
            "reason": receipt.reason,
            "guard": receipt.guard,
            "steps": [
                {"name": step.name, "took_ms": step.took_ms, "limit_ms": step.limit_ms}
                for step in receipt.steps
            ],
        }
    return fields


def _print_results(results: Mapping[str, NodeInstalled | CapsuleError]) -> None:
    rows = []
    for node, result in results.items():
        if isinstance(result, CapsuleError):
            rows.append((node, "failed", result.error_id, ""))
            continue
        guard = result.receipt.receipt.guard if result.receipt is not None else ""
        rows.append((node, result.result, result.generation, guard))
    print_table(("node", "state", "ordered", "guard"), rows)
    for result in results.values():
        if isinstance(result, CapsuleError):
            click.echo(render(result), err=True)
