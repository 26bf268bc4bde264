"""`capsule route`: the frozen route, and what the inventory says otherwise by now."""

from pathlib import Path

import click

from capsule.cli.controller import fleet_option, home_option, policy_option, read_policy
from capsule.cli.freeze import print_route, route_fields
from capsule.cli.output import json_option, print_json, print_table
from capsule.durable import read_bounded, replace_file
from capsule.freeze import FrozenRoute
from capsule.home import ProductHome
from capsule.inventory import load_fleet
from capsule.rollout.drift import drift_of
from capsule_manifest.envelope import decode_record
from capsule_manifest.errors import ExitCode, Refused
from capsule_manifest.policy import Policy
from capsule_manifest.route import ROUTE_LIMITS
from capsule_manifest.trust_orders import verify_route

__all__ = ["command"]


@click.group("route", epilog="Example: capsule route show --policy trust.json")
def command() -> None:
    """Show, verify, compare and hand on the frozen route."""


@command.command("show", epilog="Example: capsule route show --policy trust.json")
@policy_option
@home_option
@json_option
def show(policy_path: Path, home_path: Path, *, as_json: bool) -> int:
    """Show the route that was frozen last."""
    frozen = _latest(read_policy(policy_path), home_path)
    if as_json:
        print_json(route_fields(frozen))
    else:
        print_route(frozen)
    return int(ExitCode.DONE)


@command.command("verify", epilog="Example: capsule route verify route.json --policy trust.json")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), required=False)
@policy_option
@home_option
@json_option
def verify(file: Path | None, policy_path: Path, home_path: Path, *, as_json: bool) -> int:
    """Check who signed a route: FILE, or the one that was frozen last."""
    policy = read_policy(policy_path)
    frozen = _latest(policy, home_path) if file is None else _read(file, policy)
    if as_json:
        print_json({"route": frozen.digest, "valid": True})
    else:
        click.echo(f"{frozen.digest}: valid under {frozen.route.policy}")
    return int(ExitCode.DONE)


@command.command("diff", epilog="Example: capsule route diff --policy trust.json")
@fleet_option
@policy_option
@home_option
@json_option
def diff(fleet_path: Path, policy_path: Path, home_path: Path, *, as_json: bool) -> int:
    """Show what the inventory says otherwise than the frozen route; exit code 40 if anything.

    A rollout goes by the frozen route whatever is shown here.
    """
    frozen = _latest(read_policy(policy_path), home_path)
    drift = drift_of(frozen.route, load_fleet(fleet_path))
    if as_json:
        rows = [
            {"where": item.where, "frozen": item.frozen, "inventory": item.inventory}
            for item in drift
        ]
        print_json({"route": frozen.digest, "drift": rows})
    elif drift:
        print_table(
            ("where", "frozen", "inventory"),
            [(item.where, item.frozen, item.inventory) for item in drift],
        )
    else:
        click.echo(f"{frozen.digest}: the inventory says the same")
    return int(ExitCode.ROUTE_MISMATCH if drift else ExitCode.DONE)


@command.command("export", epilog="Example: capsule route export route.json --policy trust.json")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@policy_option
@home_option
@json_option
def export(file: Path, policy_path: Path, home_path: Path, *, as_json: bool) -> int:
    """Write the route that was frozen last to FILE, for a controller elsewhere."""
    frozen = _latest(read_policy(policy_path), home_path)
    replace_file(file, frozen.record)
    _say(frozen, as_json=as_json)
    return int(ExitCode.DONE)


@command.command("import", epilog="Example: capsule route import route.json --policy trust.json")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@policy_option
@home_option
@json_option
def import_(file: Path, policy_path: Path, home_path: Path, *, as_json: bool) -> int:
    """Take over the route in FILE, as signed, as if it was frozen here."""
    policy = read_policy(policy_path)
    frozen = _read(file, policy)
    ProductHome(home=home_path, product=policy.product).store_route(frozen)
    _say(frozen, as_json=as_json)
    return int(ExitCode.DONE)


def _latest(policy: Policy, home_path: Path) -> FrozenRoute:
    return ProductHome(home=home_path, product=policy.product).latest_route(policy)


def _read(file: Path, policy: Policy) -> FrozenRoute:
    record = read_bounded(file, ROUTE_LIMITS.size_bytes_max * 2)
    if record is None:
        raise Refused("route-not-frozen", "there is no such route", where=file)
    envelope = decode_record(record, where=str(file))
    return FrozenRoute(verified=verify_route(policy, envelope, where=str(file)), record=record)


def _say(frozen: FrozenRoute, *, as_json: bool) -> None:
    if as_json:
        print_json({"route": frozen.digest})
    else:
        click.echo(frozen.digest)
