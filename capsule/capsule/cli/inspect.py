"""`capsule inspect`: show what is in a capsule."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import click

from capsule.builder.inspection import Inspection, component_tree, inspect_capsule
from capsule.builder.opened import OpenCapsule, open_capsule
from capsule.builder.services import RESERVE_MS
from capsule.cli.output import (
    count_text,
    json_option,
    print_heading,
    print_json,
    print_pairs,
    print_table,
    size_text,
)
from capsule_manifest.canonical import decode
from capsule_manifest.digest import blake3_text
from capsule_manifest.errors import clean
from capsule_manifest.release import RELEASE_LIMITS, Component, Release, Unit, encode_release
from capsule_manifest.tree import Entry, EntryKind

__all__ = ["command"]

NOT_VERIFIED = "not verified: `capsule verify` checks signatures and content"


@click.command(name="inspect", epilog="Example: capsule inspect dist/web-7-0a1b2c3d.capsule")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--files", "component", metavar="COMPONENT", help="List the files of a component.")
@json_option
def command(path: Path, component: str | None, *, as_json: bool) -> None:
    """Show what a capsule, in either form, says of itself. Decides no trust and hashes no content.

    PATH is a capsule directory or a single-file capsule.
    """
    source = open_capsule(path)
    found = inspect_capsule(source)
    if component is not None:
        _show_files(source, found.release, component, as_json=as_json)
    elif as_json:
        print_json(_fields(found))
    else:
        _show(found)


def _show(found: Inspection) -> None:
    release = found.release
    click.secho(clean(f"{release.product} {release.version}"), bold=True, nl=False)
    click.echo(f"  ({NOT_VERIFIED})")
    click.echo()
    components = count_text(len(release.components), "component")
    packs = count_text(len(found.packs), "pack")
    frames = count_text(sum(len(pack.frames) for pack in found.packs.values()), "frame")
    print_pairs(
        [
            ("capsule", found.capsule),
            ("counter", str(release.release_counter)),
            ("source", f"commit {release.source.commit}, {_date(release.source.date_s)}"),
            ("installer", f"{release.installer.version} or newer: {release.installer.reason}"),
            ("content", f"{size_text(found.content_bytes)} in {components}"),
            ("on disk", f"{size_text(found.size_bytes)}, {packs}, {frames}"),
        ]
    )
    _show_targets(release)
    _show_components(found)
    _show_units(release)
    _show_managed_files(release)
    _show_externals(release)
    _show_signatures(found)


def _show_targets(release: Release) -> None:
    print_heading("Roles")
    print_table(
        ("role", "components", "case collisions"),
        [
            (name, ", ".join(role.components), role.case_collisions)
            for name, role in release.roles.items()
        ],
    )
    print_heading("Platforms")
    print_table(
        ("platform", "machine", "glibc", "python", "interpreter"),
        [
            (name, item.machine, item.glibc, item.python, item.interpreter or "found on the host")
            for name, item in release.platforms.items()
        ],
    )


def _show_components(found: Inspection) -> None:
    print_heading("Components")
    print_table(
        ("component", "kind", "platforms", "entries", "size", "packed", "tree"),
        [
            (
                item.name,
                item.kind,
                ", ".join(item.platforms) or "all",
                f"{item.entries:,}",
                size_text(item.content_bytes),
                size_text(found.packed_bytes(item)),
                item.tree.hex()[:8],
            )
            for item in found.release.components
        ],
        right=(3, 4, 5),
    )


def _show_units(release: Release) -> None:
    rows = [(item, unit) for item in release.components for unit in item.units]
    if not rows:
        return
    print_heading("Units")
    print_table(
        ("unit", "component", "stop", "start", "soak", "probe"),
        [
            (
                unit.name,
                item.name,
                _seconds(unit.stop_timeout_ms),
                _seconds(unit.start_timeout_ms),
                _seconds(unit.soak_ms),
                unit.probe.http if unit.probe else "none",
            )
            for item, unit in rows
        ],
        right=(2, 3, 4),
    )
    for item in release.components:
        for argv in item.guarded_steps:
            click.echo(clean(f"guarded step of {item.name}: {' '.join(argv)}"))
    for name, units in _units_by_role(release).items():
        click.echo(clean(f"role {name}: {_budget(units, release.budgets.d1_ms)}"))


def _units_by_role(release: Release) -> Mapping[str, Sequence[Unit]]:
    """Return the units of each role that has any, each unit once."""
    found = {
        name: {
            unit.name: unit
            for item in release.components
            if item.name in role.components
            for unit in item.units
        }
        for name, role in release.roles.items()
    }
    return {name: tuple(units.values()) for name, units in found.items() if units}


def _budget(units: Iterable[Unit], d1_ms: int) -> str:
    """Return the first deadline's arithmetic, as the build checked it."""
    listed = list(units)
    stop = sum(unit.stop_timeout_ms for unit in listed)
    start = sum(unit.start_timeout_ms for unit in listed)
    soak = max(unit.soak_ms for unit in listed)
    return (
        f"stop {stop / 1000:g} + start {start / 1000:g} + soak {soak / 1000:g} + "
        f"reserve {RESERVE_MS / 1000:g} = {_seconds(stop + start + soak + RESERVE_MS)} of "
        f"{_seconds(d1_ms)} (d1)"
    )


def _show_managed_files(release: Release) -> None:
    rows = [
        (
            managed.target,
            f"{managed.owner}:{managed.group}",
            f"{managed.mode:04o}",
            "yes" if managed.template else "no",
            item.name,
        )
        for item in release.components
        for managed in item.files
    ]
    if rows:
        print_heading("Managed files")
        print_table(("target", "owner", "mode", "template", "component"), rows)


def _show_externals(release: Release) -> None:
    rows = [
        (component.name, item.type, item.name, _short(item.digest))
        for component in release.components
        for item in component.external
    ]
    if rows:
        print_heading("From elsewhere")
        print_table(("component", "type", "name", "digest"), rows)


def _show_signatures(found: Inspection) -> None:
    print_heading("Signatures")
    if not found.signatures:
        click.echo("none")
        return
    print_table(
        ("about", "key", "file", "state"),
        [
            (item.subject, item.key_short, item.file, item.problem or "not checked")
            for item in found.signatures
        ],
    )


def _show_files(source: OpenCapsule, release: Release, name: str, *, as_json: bool) -> None:
    chosen = [item for item in release.components if item.name == name]
    if not chosen:
        known = ", ".join(dict.fromkeys(item.name for item in release.components))
        raise click.UsageError(f"no component is called {clean(name)!r}; there are {clean(known)}")
    listings = [(item, component_tree(source, item).entries) for item in chosen]
    if as_json:
        print_json(
            {
                "verified": False,
                "components": [
                    {
                        "name": item.name,
                        "platforms": list(item.platforms),
                        "entries": [_entry_fields(entry) for entry in entries],
                    }
                    for item, entries in listings
                ],
            }
        )
        return
    for item, entries in listings:
        if len(listings) > 1:
            print_heading(", ".join(item.platforms))
        print_table(
            ("mode", "size", "object", "path"),
            [
                (
                    f"{entry.mode:04o}",
                    f"{entry.size_bytes:,}" if entry.kind is EntryKind.FILE else "",
                    entry.object.hex()[:8] if entry.object else entry.kind,
                    f"{entry.path} -> {entry.target}" if entry.target else entry.path,
                )
                for entry in entries
            ],
            right=(1,),
        )


def _entry_fields(entry: Entry) -> Mapping[str, object]:
    return {
        "path": entry.path,
        "kind": str(entry.kind),
        "mode": f"{entry.mode:04o}",
        "size_bytes": entry.size_bytes,
        "object": blake3_text(entry.object) if entry.object else None,
        "target": entry.target,
    }


def _fields(found: Inspection) -> Mapping[str, object]:
    return {
        "verified": False,
        "capsule": found.capsule,
        "content_bytes": found.content_bytes,
        "size_bytes": found.size_bytes,
        "packed": [_packed_fields(found, item) for item in found.release.components],
        "signatures": [
            {
                "file": item.file,
                "about": item.subject,
                "key": item.key,
                "problem": item.problem or None,
            }
            for item in found.signatures
        ],
        # The document itself, so that a program finds everything under its documented name.
        "release": decode(
            encode_release(found.release), limits=RELEASE_LIMITS, where="capsule.json"
        ),
    }


def _packed_fields(found: Inspection, component: Component) -> Mapping[str, object]:
    content = found.packing.contents.get(component.tree)
    packs = content.packs if content else ()
    return {
        "component": component.name,
        "platforms": list(component.platforms),
        "packs": len(packs),
        "frames": sum(len(pack.frames) for pack in packs),
        "packed_bytes": found.packed_bytes(component),
    }


def _seconds(duration_ms: int) -> str:
    return f"{duration_ms / 1000:g} s"


def _short(digest: str) -> str:
    algorithm, _, digits = digest.partition(":")
    return f"{algorithm}:{digits[:12]}"


def _date(date_s: int) -> str:
    """Return a date, or the number where no calendar has one: nothing here is trusted yet."""
    try:
        return f"{datetime.fromtimestamp(date_s, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return f"second {date_s}"
