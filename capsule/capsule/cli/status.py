"""`capsule status`: what every host of the inventory says of itself, now."""

from collections.abc import Mapping
from pathlib import Path

import click

from capsule.cli.controller import error_fields, fleet_option
from capsule.cli.output import json_option, print_json, print_table
from capsule.fleet_status import ask_hosts, node_state, state_code
from capsule.fleet_work import exit_code
from capsule.host_records import Hello
from capsule.inventory import load_fleet
from capsule.transport.connect import connect
from capsule_manifest.errors import CapsuleError, render

__all__ = ["command"]


@click.command("status", epilog="Example: capsule status --fleet fleet.toml")
@fleet_option
@json_option
def command(fleet_path: Path, *, as_json: bool) -> int:
    """Ask every host what it runs, and change nothing.

    What is shown is each host's word; `capsule receipts verify` shows what it has signed.
    """
    fleet = load_fleet(fleet_path)
    answers = ask_hosts({name: node.endpoint for name, node in fleet.nodes.items()}, connect)
    states = {node: node_state(node, answer) for node, answer in answers.items()}
    code = exit_code(state_code(state) for state in states.values())
    if as_json:
        print_json(
            {
                "product": fleet.product,
                "exit_code": int(code),
                "nodes": {
                    node: {"state": states[node], **_fields(answer)}
                    for node, answer in answers.items()
                },
            }
        )
        return int(code)
    print_table(
        ("node", "lane", "state", "current", "previous", "staged", "fence"),
        [
            (node, fleet.nodes[node].lane, states[node], *_cells(answer))
            for node, answer in answers.items()
        ],
        right=(6,),
    )
    for answer in answers.values():
        if isinstance(answer, CapsuleError):
            click.echo(render(answer), err=True)
    return int(code)


def _cells(answer: Hello | CapsuleError) -> tuple[str, ...]:
    if isinstance(answer, CapsuleError):
        return (answer.error_id, "", "", "")
    return (answer.current, answer.previous, ", ".join(answer.staged), str(answer.fence))


def _fields(answer: Hello | CapsuleError) -> Mapping[str, object]:
    if isinstance(answer, CapsuleError):
        return error_fields(answer)
    return {
        "current": answer.current,
        "previous": answer.previous,
        "staged": list(answer.staged),
        "open_op": answer.open_op,
        "hold": answer.hold,
        "fence": answer.fence,
        "route": answer.route,
        "policy": answer.policy,
        "installer": answer.installer,
        "free_bytes": answer.free_bytes,
        "guard_levels": list(answer.guard_levels),
        "service_manager": answer.service_manager,
    }
