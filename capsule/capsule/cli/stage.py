"""`capsule stage`: send a capsule to hosts, which keep serving meanwhile."""

from pathlib import Path

import click

from capsule.cli.controller import (
    controller_key_option,
    fleet_option,
    home_option,
    lane_options,
    policy_option,
    route_key_option,
)
from capsule.cli.output import json_option
from capsule.early import EarlyStreams
from capsule.transport.connect import connect

__all__ = ["command"]


@click.command(
    "stage",
    epilog=(
        "Example: capsule stage hello-1-0a1b2c3d.capsule --lane all --policy trust.json "
        "--route-key route.key --controller-key controller.key"
    ),
)
@click.argument("capsule", type=click.Path(exists=True, path_type=Path))
@lane_options
@fleet_option
@policy_option
@route_key_option
@controller_key_option
@home_option
@click.option(
    "--take-over",
    is_flag=True,
    help="Raise this controller's fence above that of every other controller.",
)
@json_option
@click.pass_obj
def command(
    early: EarlyStreams | None,
    capsule: Path,
    lane: str | None,
    nodes: tuple[str, ...],
    fleet_path: Path,
    policy_path: Path,
    route_key_path: Path,
    controller_key_path: Path,
    home_path: Path,
    *,
    take_over: bool,
    as_json: bool,
) -> int:
    """Send CAPSULE to hosts and realise it there; nothing is stopped or started.

    Freezes the route of the inventory, meets hosts that were never met, and sends each host
    exactly what it lacks. Run it again after any failure: it continues where it was.
    """
    if (lane is None) == (not nodes):
        raise click.UsageError("give either --lane or --node")
    # What it imports takes longer than printing a help.
    from capsule.cli.stage_run import run

    return run(
        capsule,
        lane=lane,
        nodes=nodes,
        fleet_path=fleet_path,
        policy_path=policy_path,
        route_key_path=route_key_path,
        controller_key_path=controller_key_path,
        home_path=home_path,
        take_over=take_over,
        as_json=as_json,
        connect=connect if early is None else early.connect,
    )
