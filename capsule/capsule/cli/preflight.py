"""`capsule preflight`: know of every node what it is before any node is stopped."""

from collections.abc import Mapping
from pathlib import Path

import click

from capsule.cli.controller import home_option, policy_option, read_policy
from capsule.cli.output import json_option, print_json, print_pairs, print_table
from capsule.clock import utc_now
from capsule.home import ProductHome
from capsule.payload import open_payload
from capsule.rollout.preflight import Finding, Preflight, Surveyor
from capsule.rollout.records import keep_preflight
from capsule.transport.connect import connect
from capsule_manifest.errors import clean

__all__ = ["command", "print_preflight"]


@click.command(
    "preflight",
    epilog="Example: capsule preflight hello-2-0a1b2c3d.capsule --policy trust.json",
)
@click.argument("capsule", type=click.Path(exists=True, path_type=Path))
@policy_option
@home_option
@json_option
def command(capsule: Path, policy_path: Path, home_path: Path, *, as_json: bool) -> int:
    """Ask every node of the frozen route what it is and whether it can take CAPSULE.

    Changes nothing on any host. The result is kept for `capsule rollout`, which starts only from a
    fresh one; its digest names it. Exit code 3 when some node could not take part.
    """
    policy = read_policy(policy_path)
    home = ProductHome(home=home_path, product=policy.product)
    surveyor = Surveyor(
        home=home,
        route=home.latest_route(policy),
        payload=open_payload(capsule, policy),
        connect=connect,
        now_ms=lambda: int(utc_now().timestamp() * 1000),
    )
    preflight = surveyor.run()
    keep_preflight(home, preflight)
    if as_json:
        print_json(preflight_fields(preflight))
    else:
        print_preflight(preflight)
    return int(preflight.exit_code)


def preflight_fields(preflight: Preflight) -> Mapping[str, object]:
    """Return a result as `--json` shows it."""
    return {
        "digest": preflight.digest,
        "route": preflight.route,
        "capsule": preflight.capsule,
        "exit_code": int(preflight.exit_code),
        "nodes": {node: _fields(finding) for node, finding in preflight.nodes.items()},
    }


def _fields(finding: Finding) -> Mapping[str, object]:
    return {
        "class": str(finding.coherence),
        "serving": finding.serving,
        "current": finding.current,
        "fit": finding.is_fit,
        "disagreements": list(finding.disagreements),
        "problems": list(finding.problems),
        "notes": list(finding.notes),
    }


def print_preflight(preflight: Preflight) -> None:
    """Print a result for people: a table, and on the error output what is to be done."""
    print_pairs(
        [
            ("preflight", preflight.digest),
            ("route", preflight.route),
            ("capsule", preflight.capsule),
            ("fit", f"{sum(f.is_fit for f in preflight.nodes.values())} of {len(preflight.nodes)}"),
        ]
    )
    click.echo()
    rows = [
        (node, str(finding.coherence), finding.current, "yes" if finding.serving else "no",
         "yes" if finding.is_fit else "no")
        for node, finding in preflight.nodes.items()
    ]  # fmt: skip
    print_table(("node", "class", "current", "serving", "fit"), rows)
    for node, finding in preflight.nodes.items():
        for line in (*finding.disagreements, *finding.problems, *finding.notes):
            # A host may say anything of itself.
            click.echo(clean(f"{node}: {line}"), err=True)
