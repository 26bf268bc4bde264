"""`capsule diff`: show what changed from one capsule to another."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import click

from capsule.builder.comparison import (
    Change,
    Comparison,
    ComponentChange,
    TextChange,
    compare_capsules,
)
from capsule.builder.inspection import Inspection, inspect_capsule
from capsule.builder.opened import open_capsule
from capsule.cli.inspect import NOT_VERIFIED
from capsule.cli.output import (
    count_text,
    json_option,
    print_heading,
    print_json,
    print_table,
    size_text,
)
from capsule_manifest.errors import clean
from capsule_manifest.tree import EntryKind

__all__ = ["command"]

_LARGEST: Final = 5
_PATH = click.Path(path_type=Path)


@click.command(
    name="diff",
    epilog="Example: capsule diff dist/web-6-9f8e7d6c.capsule dist/web-7-0a1b2c3d.capsule",
)
@click.argument("old", type=_PATH)
@click.argument("new", type=_PATH)
@json_option
def command(old: Path, new: Path, *, as_json: bool) -> None:
    """Show what changed from OLD to NEW, and what a host that has OLD would be sent for NEW.

    Both forms of a capsule can be given. Decides no trust.
    """
    old_source, new_source = open_capsule(old), open_capsule(new)
    before, after = inspect_capsule(old_source), inspect_capsule(new_source)
    found = compare_capsules((old_source, before), (new_source, after))
    if as_json:
        print_json(_fields(before, after, found))
        return
    _show_header(before, after, found)
    if before.capsule != after.capsule:
        _show_components(found)
        for change in found.components:
            if change.state != "same":
                _show_component(change)
    _show_needs(after, found)


def _show_header(before: Inspection, after: Inspection, found: Comparison) -> None:
    title = f"{before.release.product} {before.release.version} -> "
    if before.release.product != after.release.product:
        title += f"{after.release.product} "
    click.secho(clean(title + after.release.version), bold=True, nl=False)
    click.echo(f"  ({NOT_VERIFIED})")
    if before.capsule == after.capsule:
        click.echo(f"the same capsule: {after.capsule}")
        return
    click.echo()
    _print_changes(
        [Change(name="capsule", before=before.capsule, after=after.capsule), *found.header]
    )


def _show_components(found: Comparison) -> None:
    print_heading("Components")
    print_table(
        ("component", "kind", "state", "added", "removed", "changed", "size", "difference"),
        [
            (
                _name(change),
                change.component.kind,
                change.state,
                _count(len(change.files.added)),
                _count(len(change.files.removed)),
                _count(len(change.files.changed)),
                size_text(change.component.content_bytes),
                _growth(_difference(change)),
            )
            for change in found.components
        ],
        right=(3, 4, 5, 6, 7),
    )


def _show_component(change: ComponentChange) -> None:
    print_heading(f"{_name(change)}: {change.state}")
    _print_changes((*change.externals, *change.settings))
    for state, size_bytes, path in _largest(change):
        click.echo(clean(f"  {state} {path}, {size_text(size_bytes)}"))
    hidden = _files(change) - min(_files(change), _LARGEST)
    if hidden:
        click.echo(f"  and {count_text(hidden, 'smaller file')}")
    for text in change.texts:
        click.echo(f"  {clean(text.file)}:")
        for line in text.lines:
            click.secho(f"    {clean(line)}", fg=_colour(line))


def _show_needs(after: Inspection, found: Comparison) -> None:
    print_heading("To send to a host that has the old release")
    print_table(
        ("role", "platform", "frames", "to send", "new content", "release has"),
        [
            (
                need.role,
                need.platform,
                str(need.frames),
                size_text(need.stored_bytes),
                size_text(need.content_bytes),
                size_text(
                    sum(
                        item.content_bytes
                        for item in after.release.selected(need.role, need.platform)
                    )
                ),
            )
            for need in found.needs
        ],
        right=(2, 3, 4, 5),
    )


def _print_changes(changes: Sequence[Change]) -> None:
    width = max((len(clean(change.name)) for change in changes), default=0)
    for change in changes:
        before, after = clean(change.before), clean(change.after)
        both = (
            f"{before} -> {after}" if before and after else f"+ {after}" if after else f"- {before}"
        )
        click.echo(f"  {clean(change.name):<{width}}  {both}")


def _largest(change: ComponentChange) -> list[tuple[str, int, str]]:
    """Return the largest files that came, went or changed, as state, size in bytes, path."""
    files = [("+", entry) for entry in change.files.added]
    files += [("-", entry) for entry in change.files.removed]
    files += [("~", entry) for _, entry in change.files.changed]
    rows = [
        (state, entry.size_bytes, entry.path)
        for state, entry in files
        if entry.kind is not EntryKind.DIRECTORY
    ]
    return sorted(rows, key=lambda row: (-row[1], row[2]))[:_LARGEST]


def _files(change: ComponentChange) -> int:
    entries = (
        *change.files.added,
        *change.files.removed,
        *(entry for _, entry in change.files.changed),
    )
    return sum(entry.kind is not EntryKind.DIRECTORY for entry in entries)


def _difference(change: ComponentChange) -> int:
    after = change.after.content_bytes if change.after else 0
    return after - (change.before.content_bytes if change.before else 0)


def _name(change: ComponentChange) -> str:
    component = change.component
    platforms = f" ({', '.join(component.platforms)})" if component.platforms else ""
    return component.name + platforms


def _count(count: int) -> str:
    return f"{count:,}" if count else ""


def _growth(difference_bytes: int) -> str:
    if not difference_bytes:
        return ""
    return ("+" if difference_bytes > 0 else "-") + size_text(abs(difference_bytes))


def _colour(line: str) -> str | None:
    return {"+": "green", "-": "red"}.get(line[:1])


def _fields(before: Inspection, after: Inspection, found: Comparison) -> Mapping[str, object]:
    return {
        "verified": False,
        "same": before.capsule == after.capsule,
        "old": before.capsule,
        "new": after.capsule,
        "header": _change_fields(found.header),
        "components": [_component_fields(change) for change in found.components],
        "needs": [
            {
                "role": need.role,
                "platform": need.platform,
                "frames": need.frames,
                "stored_bytes": need.stored_bytes,
                "content_bytes": need.content_bytes,
            }
            for need in found.needs
        ],
    }


def _component_fields(change: ComponentChange) -> Mapping[str, object]:
    return {
        "name": change.component.name,
        "platforms": list(change.component.platforms),
        "kind": str(change.component.kind),
        "state": change.state,
        "difference_bytes": _difference(change),
        "added": [entry.path for entry in change.files.added],
        "removed": [entry.path for entry in change.files.removed],
        "changed": [entry.path for _, entry in change.files.changed],
        "externals": _change_fields(change.externals),
        "settings": _change_fields(change.settings),
        "texts": [_text_fields(text) for text in change.texts],
    }


def _text_fields(text: TextChange) -> Mapping[str, object]:
    return {"file": text.file, "lines": list(text.lines)}


def _change_fields(changes: Sequence[Change]) -> list[Mapping[str, object]]:
    return [
        {"name": change.name, "old": change.before or None, "new": change.after or None}
        for change in changes
    ]
