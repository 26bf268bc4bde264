"""`capsule gc`: have hosts remove what they need no more, or say what that would be."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from capsule.cli.controller import error_fields, fleet_option, lane_options
from capsule.cli.output import json_option, print_json, print_table, size_text
from capsule.fleet_work import exit_code, for_each_node
from capsule.inventory import load_fleet
from capsule.session import HostSession
from capsule.transport.base import Limits
from capsule.transport.connect import connect
from capsule_manifest.errors import CapsuleError, ExitCode, render
from capsule_manifest.fields import Object

__all__ = ["Collected", "collect_host", "command"]

# A host says nothing while it looks at every file of its store.
_LIMITS: Final = Limits(total_s=1800.0, idle_s=1800.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What one host removed, or would remove. `kept` maps its generations to the reason."""

    kept: Mapping[str, str]
    generations: tuple[str, ...]
    objects: int
    freed_bytes: int


def collect_host(session: HostSession, *, dry_run: bool, drop_staged: bool) -> Collected:
    """Have one host collect. Raises: `op-open`, `host-busy`, and as `HostSession.ask`."""
    words = [*(["--dry-run"] if dry_run else []), *(["--drop-staged"] if drop_staged else [])]
    answer = session.ask("gc", "--json", *words, answer="collected", limits=_LIMITS)
    said = Object(answer, f"answer of {session.node}")
    return Collected(
        kept=said.text_map("kept"),
        generations=said.texts("generations"),
        objects=said.integer("objects"),
        freed_bytes=said.integer("freed_bytes"),
    )


@click.command("gc", epilog="Example: capsule gc --lane all --dry-run")
@lane_options
@fleet_option
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and remove nothing.")
@click.option("--drop-staged", is_flag=True, help="Also remove what is staged, not installed.")
@json_option
def command(
    lane: str | None,
    nodes: tuple[str, ...],
    fleet_path: Path,
    *,
    dry_run: bool,
    drop_staged: bool,
    as_json: bool,
) -> int:
    """Have hosts remove the generations, objects and programs that nothing needs.

    What is current, previous, held, staged and not yet ordered, pinned or used by a process stays,
    and so does the newest that failed. A host in the middle of an op or a staging refuses, with
    exit code 8, and loses nothing.
    """
    fleet = load_fleet(fleet_path)
    results = for_each_node(
        fleet.selected(lane=lane, nodes=nodes),
        lambda node: collect_host(
            HostSession(connect(fleet.nodes[node].endpoint, node), node=node),
            dry_run=dry_run,
            drop_staged=drop_staged,
        ),
    )
    code = exit_code(_code(result) for result in results.values())
    if as_json:
        told = {node: _fields(result) for node, result in results.items()}
        print_json({"exit_code": int(code), "dry_run": dry_run, "nodes": told})
        return int(code)
    title = "would remove" if dry_run else "removed"
    print_table(
        ("node", "keeps", title, "objects", "freed"),
        [_row(node, result, dry_run=dry_run) for node, result in results.items()],
        right=(3, 4),
    )
    for result in results.values():
        if isinstance(result, CapsuleError):
            click.echo(render(result), err=True)
    return int(code)


def _code(result: Collected | CapsuleError) -> ExitCode:
    return result.exit_code if isinstance(result, CapsuleError) else ExitCode.DONE


def _fields(result: Collected | CapsuleError) -> Mapping[str, object]:
    if isinstance(result, CapsuleError):
        return error_fields(result)
    return {
        "kept": dict(result.kept),
        "removed": list(result.generations),
        "objects": result.objects,
        "freed_bytes": result.freed_bytes,
    }


def _row(node: str, result: Collected | CapsuleError, *, dry_run: bool) -> tuple[str, ...]:
    if isinstance(result, CapsuleError):
        return node, result.error_id, "", "", ""
    keeps = ", ".join(f"{name} ({reason})" for name, reason in result.kept.items())
    freed = "" if dry_run else size_text(result.freed_bytes)
    return node, keeps, ", ".join(result.generations), str(result.objects), freed
