"""`capsule demo`: the whole of it, on this machine, in a few minutes."""

import shutil
import tempfile
import time
from pathlib import Path

import click

from capsule.cli.output import json_option, print_json, print_table
from capsule.demo.story import NodeRow, Story
from capsule.demo.workspace import NODES, Workspace, example_folder, free_ports
from capsule_manifest.errors import ExitCode, Refused

__all__ = ["command"]


@click.command("demo", epilog="Example: capsule demo")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help="Work here, and leave the folder; it must not exist yet.",
)
@click.option("--keep", is_flag=True, help="Leave the services running and the folder in place.")
@json_option
def command(folder: Path | None, *, keep: bool, as_json: bool) -> int:
    """Build three releases, install two on three hosts, and watch the third be restored.

    The hosts are folders of this machine; no root and no network but the package index is needed.
    Every command that is run is shown and could be typed by hand.
    """
    example = example_folder()
    if example is None:
        raise Refused(
            "demo-unavailable", "the demo needs the checkout", expected="examples/hello in it"
        )
    if folder is not None and folder.exists():
        raise Refused("demo-unavailable", "the demo's folder exists already", where=folder)
    # A short path: the folder of a service is part of every command line that is shown.
    place = (folder or Path(tempfile.mkdtemp(prefix="capsule-demo-"))).absolute()
    ports = dict(zip(NODES, free_ports(len(NODES)), strict=True))
    workspace = Workspace(folder=place, example=example, ports=ports)
    started = time.monotonic()
    try:
        rows = Story(workspace=workspace, say=lambda text: click.echo(text, err=True)).tell()
    finally:
        if not keep:
            workspace.stop_services()
        if folder is None and not keep:
            shutil.rmtree(place, ignore_errors=True)
    took_s = time.monotonic() - started
    if as_json:
        print_json({"took_s": round(took_s, 1), "nodes": [_fields(row) for row in rows]})
    else:
        _print(rows, took_s)
    if keep:
        click.echo(f"the services keep running; everything is in {place}", err=True)
    return int(ExitCode.DONE)


def _print(rows: list[NodeRow], took_s: float) -> None:
    click.echo(err=True)
    print_table(
        ("node", "release", "state", "outage", "receipts"),
        [
            (row.node, row.release, row.state, f"{row.outage_ms} ms", str(row.receipts))
            for row in rows
        ],
        right=(3, 4),
    )
    click.echo(f"in {took_s:.0f} s", err=True)


def _fields(row: NodeRow) -> dict[str, object]:
    return {
        "node": row.node,
        "release": row.release,
        "state": row.state,
        "outage_ms": row.outage_ms,
        "receipts": row.receipts,
    }
