"""What `capsule stage` does once its connections have begun, and what it tells of it."""

from collections.abc import Callable, Mapping
from pathlib import Path

import click

from capsule.builder.keyfile import load_signer
from capsule.cli.controller import NodeLines, error_fields, read_policy
from capsule.cli.output import count_text, duration_text, print_json, print_table, size_text
from capsule.durable import read_bounded
from capsule.first_contact import RuntimeSource
from capsule.fleet_status import ask_hosts, highest_fence
from capsule.fleet_work import exit_code
from capsule.home import ProductHome
from capsule.inventory import load_fleet
from capsule.payload import open_payload
from capsule.stage import NodeStaged, StageCost, Stager
from capsule.transport.base import Transport
from capsule_manifest.errors import CapsuleError, ExitCode, render
from capsule_manifest.policy_update import UPDATE_LIMITS
from capsule_manifest.route import Endpoint

__all__ = ["run"]


def run(
    capsule: Path,
    *,
    lane: str | None,
    nodes: tuple[str, ...],
    fleet_path: Path,
    policy_path: Path,
    route_key_path: Path,
    controller_key_path: Path,
    home_path: Path,
    take_over: bool,
    as_json: bool,
    connect: Callable[[Endpoint, str], Transport],
) -> int:
    """Stage a capsule on the selected nodes and return the exit code.

    Raises:
        CapsuleError: what concerns all nodes.
    """
    fleet = load_fleet(fleet_path)
    policy = read_policy(policy_path)
    selected = fleet.selected(lane=lane, nodes=nodes)
    watch = _Watch(NodeLines())
    home = ProductHome(home=home_path, product=policy.product)
    if take_over:
        endpoints = {node: fleet.nodes[node].endpoint for node in selected}
        home.raise_fence(highest_fence(ask_hosts(endpoints, connect).values()))
    payload = open_payload(capsule, policy)
    stager = Stager(
        home=home,
        fleet=fleet,
        payload=payload,
        runtimes=RuntimeSource(payload),
        policy=policy,
        route_signer=load_signer(route_key_path),
        controller=load_signer(controller_key_path),
        connect=connect,
        watch=watch,
        # `trust update` writes both files side by side; hosts take what the signatures lead to.
        policy_update=read_bounded(
            policy_path.with_name("policy-update.json"), UPDATE_LIMITS.size_bytes_max
        ),
    )
    if not as_json:
        _print_cost([stager.cost(node) for node in selected])
    route, results = stager.run(selected)
    watch.lines.end()
    code = exit_code(_code(result) for result in results.values())
    if as_json:
        print_json(
            {
                "capsule": stager.payload.capsule,
                "generation": stager.payload.generation,
                "route": route.digest,
                "exit_code": int(code),
                "nodes": {node: _fields(result) for node, result in results.items()},
            }
        )
    else:
        _print_results(results)
    return int(code)


class _Watch:
    """Tell a person how staging goes, one line a change."""

    def __init__(self, lines: NodeLines) -> None:
        self.lines = lines

    def met(self, node: str, *, what: str) -> None:
        """Print what was done at first contact."""
        self.lines.line(node, what)

    def planned(self, node: str, cost: StageCost) -> None:
        """Print what the node will cost at most."""
        if cost.send_bytes:
            self.lines.line(
                node,
                f"sending up to {size_text(cost.send_bytes)}, {size_text(cost.disk_bytes)} on "
                f"its disk, about {duration_text(int(cost.estimate_s * 1000))}",
            )

    def moved(self, node: str, *, sent_bytes: int, of_bytes: int) -> None:
        """Show how far the stream is."""
        self.lines.update(node, f"{size_text(sent_bytes)} of {size_text(of_bytes)}")

    def ended(self, node: str, result: NodeStaged | CapsuleError) -> None:
        """Print how it ended."""
        if isinstance(result, NodeStaged):
            took = duration_text(int(result.took_s * 1000))
            self.lines.line(
                node, f"staged {result.generation}, {size_text(result.sent_bytes)} in {took}"
            )
        else:
            self.lines.line(node, f"failed, {result.error_id}")


def _print_cost(costs: list[StageCost]) -> None:
    send_bytes = sum(cost.send_bytes for cost in costs)
    disk_bytes = sum(cost.disk_bytes for cost in costs)
    slowest_s = max(cost.estimate_s for cost in costs)
    click.echo(
        f"staging on {count_text(len(costs), 'host')}: at most {size_text(send_bytes)} to send, "
        f"{size_text(disk_bytes)} of disk, about {duration_text(int(slowest_s * 1000))}",
        err=True,
    )


def _code(result: NodeStaged | CapsuleError) -> ExitCode:
    return ExitCode.DONE if isinstance(result, NodeStaged) else result.exit_code


def _fields(result: NodeStaged | CapsuleError) -> Mapping[str, object]:
    if isinstance(result, CapsuleError):
        return {"state": "failed", **error_fields(result)}
    return {
        "state": "staged",
        "generation": result.generation,
        "sent_bytes": result.sent_bytes,
        "took_ms": int(result.took_s * 1000),
        "receipt": result.receipt.digest,
    }


def _print_results(results: Mapping[str, NodeStaged | CapsuleError]) -> None:
    rows = [
        (node, "staged", result.generation, size_text(result.sent_bytes))
        if isinstance(result, NodeStaged)
        else (node, "failed", result.error_id, "")
        for node, result in results.items()
    ]
    print_table(("node", "state", "generation", "sent"), rows, right=(3,))
    for result in results.values():
        if isinstance(result, CapsuleError):
            click.echo(render(result), err=True)
