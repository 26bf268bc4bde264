"""`capsule manifest`: all that decides a release, by digest, before and after it is built."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from capsule.builder.config import load_release
from capsule.builder.lockfile import LockFile, load_lock
from capsule.builder.opened import OpenCapsule, open_capsule
from capsule.builder.pins import Pin, capsule_pins, incomplete, release_pins
from capsule.cli.output import json_option, print_json, print_table
from capsule.durable import make_folder, replace_file
from capsule.schemas import SCHEMAS, schema_text
from capsule_manifest.digest import blake3_text
from capsule_manifest.errors import Refused, clean
from capsule_manifest.packing import PACKING_LIMITS, decode_packing
from capsule_manifest.release import RELEASE_LIMITS, capsule_id, decode_release
from capsule_manifest.tree import decode_tree

__all__ = ["command"]

_PATH = click.Path(path_type=Path)
_TREE_BYTES_MAX = 256 * 1024 * 1024


@click.group(name="manifest", epilog="Example: capsule manifest show")
def command() -> None:
    """Show, compare and check what decides a release: every input and its digest.

    PATH is a release.toml, whose release.lock lies beside it, or a capsule in either form.
    """


@command.command(name="show", epilog="Example: capsule manifest show release.toml")
@click.argument("path", type=_PATH, default=Path("release.toml"))
@json_option
def show(path: Path, *, as_json: bool) -> None:
    """List every input with its digest, and what is open.

    PATH is release.toml unless given.
    """
    pins, head = _read(path)
    if as_json:
        opened = any(pin.digest is None for pin in pins)
        print_json({**head, "complete": not opened, "pins": [asdict(pin) for pin in pins]})
        return
    for name, value in head.items():
        click.echo(f"{name}: {clean(str(value))}")
    rows = [(pin.where, pin.kind, pin.name, pin.digest or f"OPEN: {pin.why}") for pin in pins]
    print_table(("where", "kind", "name", "digest"), rows)


@command.command(
    name="diff", epilog="Example: capsule manifest diff dist/web-6-9f8e7d6c.capsule release.toml"
)
@click.argument("old", type=_PATH)
@click.argument("new", type=_PATH)
@json_option
def diff(old: Path, new: Path, *, as_json: bool) -> None:
    """Show which inputs differ between OLD and NEW: two releases, or two capsules."""
    before, after = _rows(_read(old)[0]), _rows(_read(new)[0])
    changes = [
        {"where": where, "kind": kind, "name": name, "old": before.get(key), "new": after.get(key)}
        for key in sorted(before.keys() | after.keys())
        for where, kind, name in [key]
        if before.get(key) != after.get(key)
    ]
    if as_json:
        print_json({"changes": changes})
        return
    for change in changes:
        click.echo(
            f"{change['where']}: {change['kind']} {clean(str(change['name']))}: "
            f"{change['old'] or 'nothing'} -> {change['new'] or 'nothing'}"
        )
    click.echo(f"{len(changes)} inputs differ")


@command.command(name="verify", epilog="Example: capsule manifest verify release.toml")
@click.argument("path", type=_PATH, default=Path("release.toml"))
@json_option
def verify(path: Path, *, as_json: bool) -> None:
    """Refuse a release of which an input is open, or a capsule whose documents contradict it.

    Reads no content and decides no trust: `capsule verify` does.
    """
    pins, head = _read(path)
    opened = [pin for pin in pins if pin.digest is None]
    if opened:
        raise incomplete(opened)
    if not _is_release(path):
        _check_documents(open_capsule(path))
    if as_json:
        print_json({**head, "complete": True, "pins": len(pins)})
        return
    click.echo(f"{path}: complete, {len(pins)} inputs, each with its digest")


@command.command(name="schema", epilog="Example: capsule manifest schema release")
@click.argument("name", type=click.Choice(tuple(SCHEMAS)), default="capsule")
@click.option(
    "--output", "-o", type=click.Path(file_okay=False, path_type=Path),
    help="Write the schemas of all documents into this folder instead.",
)  # fmt: skip
@json_option
def schema(name: str, output: Path | None, *, as_json: bool) -> None:
    """Print the JSON Schema of a document; of the release manifest unless NAME is given."""
    if output is None:
        click.echo(schema_text(name), nl=False)
        return
    make_folder(output)
    paths = []
    for each in SCHEMAS:
        paths.append(output / f"{each}.schema.json")
        replace_file(paths[-1], schema_text(each).encode(), mode=0o644)
    if as_json:
        print_json({"schemas": [str(path) for path in paths]})
        return
    for path in paths:
        click.echo(path)


def _is_release(path: Path) -> bool:
    return path.suffix == ".toml"


def _read(path: Path) -> tuple[tuple[Pin, ...], dict[str, object]]:
    """Return the inputs that a path names, and who and what they belong to."""
    if _is_release(path):
        source = load_release(path)
        lock_path = path.with_name("release.lock")
        lock: LockFile | None = load_lock(lock_path) if lock_path.exists() else None
        head: dict[str, object] = {
            "product": source.product,
            "version": source.version,
            "release_counter": source.release_counter,
            "locked_at": lock.locked_at if lock else None,
            "locked_by": lock.locked_by if lock else None,
        }
        return release_pins(source, lock), head
    raw = open_capsule(path).read("capsule.json", RELEASE_LIMITS.size_bytes_max)
    release = decode_release(raw)
    return capsule_pins(release), {
        "product": release.product,
        "version": release.version,
        "release_counter": release.release_counter,
        "capsule": capsule_id(raw),
    }


def _rows(pins: Sequence[Pin]) -> dict[tuple[str, str, str], str | None]:
    return {(pin.where, pin.kind, pin.name): pin.digest for pin in pins}


def _check_documents(source: OpenCapsule) -> None:
    """Check that listings and packing are those of the manifest.

    Raises:
        Refused: `tree-*`, `packing-inconsistent`.
        Failed: `capsule-incomplete`.
    """
    raw = source.read("capsule.json", RELEASE_LIMITS.size_bytes_max)
    release = decode_release(raw)
    packing = decode_packing(source.read("packing.json", PACKING_LIMITS.size_bytes_max))
    if packing.capsule != capsule_id(raw):
        raise Refused(
            "packing-inconsistent", "the packing is of another capsule",
            expected=capsule_id(raw), got=packing.capsule, where=source.path,
        )  # fmt: skip
    for item in release.components:
        decode_tree(source.read(f"trees/{item.tree.hex()}", _TREE_BYTES_MAX), root=item.tree)
        content = packing.contents.get(item.tree)
        if (content.stream_bytes if content else 0) != item.content_bytes:
            raise Refused(
                "packing-inconsistent", "the packing has another size of a component",
                expected=item.content_bytes, got=content.stream_bytes if content else 0,
                where=f"{item.name}: {blake3_text(item.tree)}",
            )  # fmt: skip
