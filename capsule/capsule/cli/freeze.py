"""`capsule freeze`: make the one signed route that everything afterwards names."""

from collections.abc import Mapping
from pathlib import Path

import click

from capsule.builder.keyfile import load_signer
from capsule.cli.controller import (
    controller_key_option,
    fleet_option,
    home_option,
    policy_option,
    read_policy,
    route_key_option,
)
from capsule.cli.output import json_option, print_json, print_pairs, print_table
from capsule.freeze import FrozenRoute
from capsule.home import ProductHome, freeze_fleet
from capsule.inventory import load_fleet
from capsule.stage import named_controllers
from capsule_manifest.errors import ExitCode

__all__ = ["command", "print_route", "route_fields"]


@click.command(
    "freeze",
    epilog=(
        "Example: capsule freeze --policy trust.json --route-key route.key "
        "--controller-key controller.key"
    ),
)
@fleet_option
@policy_option
@route_key_option
@controller_key_option
@home_option
@json_option
def command(
    fleet_path: Path,
    policy_path: Path,
    route_key_path: Path,
    controller_key_path: Path,
    home_path: Path,
    *,
    as_json: bool,
) -> int:
    """Freeze the inventory into a signed route; `capsule stage` does it by itself.

    Freezing again without a change gives the same digest.
    """
    policy = read_policy(policy_path)
    fleet = load_fleet(fleet_path)
    frozen = freeze_fleet(
        ProductHome(home=home_path, product=policy.product),
        fleet,
        policy=policy,
        controllers=named_controllers(fleet, load_signer(controller_key_path).public),
        signer=load_signer(route_key_path),
    )
    if as_json:
        print_json(route_fields(frozen))
    else:
        print_route(frozen)
    return int(ExitCode.DONE)


def route_fields(frozen: FrozenRoute) -> Mapping[str, object]:
    """Return a route as `--json` shows it."""
    return {"route": frozen.digest, "nodes": [_fields(frozen, node) for node in _nodes(frozen)]}


def print_route(frozen: FrozenRoute) -> None:
    """Print a route for people."""
    route = frozen.route
    print_pairs(
        [
            ("route", frozen.digest),
            ("product", route.product),
            ("floor", f"{route.floor} of {len(route.nodes)}"),
            ("max unavailable", str(route.max_unavailable)),
            ("guard", f"{route.guard_min} or higher"),
            ("policy", route.policy),
            ("controllers", ", ".join(key.short for key in route.controllers)),
        ]
    )
    click.echo()
    rows = [tuple(_fields(frozen, node).values()) for node in _nodes(frozen)]
    print_table(("node", "lane", "domain", "role", "platform", "guard", "node key"), rows)


def _nodes(frozen: FrozenRoute) -> list[str]:
    return sorted(frozen.route.nodes)


def _fields(frozen: FrozenRoute, name: str) -> dict[str, str]:
    node = frozen.route.nodes[name]
    return {
        "node": name,
        "lane": node.lane,
        "domain": node.domain,
        "role": node.role,
        "platform": node.platform,
        "guard": frozen.route.guard_floor(name),
        "node_key": node.node_key or "not met yet",
    }
