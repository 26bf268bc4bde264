"""`capsule lock`: the one command of a build that reaches the network."""

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from capsule import __version__
from capsule.builder.config import load_release
from capsule.builder.content_cache import ContentCache
from capsule.builder.images.component import moved_images
from capsule.builder.images.registry import Skopeo
from capsule.builder.lock import fetch_pins, lock_release
from capsule.builder.lock_changes import Change, lock_changes, without_pins_of
from capsule.builder.lockfile import LockFile, encode_lock, load_lock
from capsule.builder.nix.access import nix_access
from capsule.builder.pip_fetch import PipFetcher
from capsule.builder.remembered import Memory, cache_folder, memory_of
from capsule.builder.url_fetch import UrlFetcher
from capsule.cli.output import json_option, print_json
from capsule.clock import utc_now
from capsule.durable import replace_file
from capsule_manifest.error_table import ROWS
from capsule_manifest.errors import ExitCode

__all__ = ["command", "content_cache"]


@click.command(
    name="lock",
    epilog="Example: capsule lock --release release.toml && git add release.lock",
)
@click.option(
    "--release",
    "release_path",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("release.toml"),
    show_default=True,
    help="The release to lock; release.lock is written beside it.",
)
@click.option("--fetch", is_flag=True, help="Fetch what is pinned and change no pin.")
@click.option("--refresh", is_flag=True, help="Forget the pins there are and choose again.")
@click.option(
    "--upgrade", "upgraded", multiple=True, metavar="NAME",
    help="Choose again for a component or distribution, and keep all other pins. May be repeated.",
)  # fmt: skip
@click.option(
    "--check", "is_check", is_flag=True,
    help="Say what would change, and which image tags moved; change nothing.",
)  # fmt: skip
@json_option
def command(
    release_path: Path,
    *,
    fetch: bool,
    refresh: bool,
    upgraded: tuple[str, ...],
    is_check: bool,
    as_json: bool,
) -> int:
    """Resolve every input to a pin, and fetch it.

    Wheels come through pip, from the index that pip is configured for. The lock names versions
    and digests only; commit it. A machine that has it builds the same capsule.
    """
    if fetch + refresh + bool(upgraded) > 1:
        raise click.UsageError("--fetch keeps all pins, --upgrade some, --refresh none: give one")
    if fetch and is_check:
        raise click.UsageError("--fetch changes no pin, so there is nothing to check")
    release = load_release(release_path)
    lock_path = release_path.with_name("release.lock")
    cache = content_cache()
    if fetch:
        count = fetch_pins(release, load_lock(lock_path), cache, report=_report)
        _finish(lock_path, count, is_changed=False, as_json=as_json)
        return int(ExitCode.DONE)
    current = load_lock(lock_path) if lock_path.exists() else None
    lock = lock_release(
        release,
        cache,
        previous=None if refresh or current is None else _kept(current, upgraded),
        now=utc_now(),
        locked_by=f"capsule {__version__}, Python {platform.python_version()}",
        report=_report,
    )
    if is_check:
        changes = lock_changes(current, lock)
        moved = moved_images(release, cache, lock.images, report=_report)
        return _tell(lock_path, changes, moved, lock, as_json=as_json)
    is_changed = current is None or not current.has_pins_of(lock)
    if is_changed:
        replace_file(lock_path, encode_lock(lock), mode=0o644)
    _finish(lock_path, _count(lock), is_changed=is_changed, as_json=as_json)
    return int(ExitCode.DONE)


def _kept(current: LockFile, upgraded: tuple[str, ...]) -> LockFile:
    kept, unknown = without_pins_of(current, upgraded)
    if unknown:
        names = ", ".join(sorted(unknown))
        raise click.BadParameter(f"the lock pins nothing for {names}", param_hint="--upgrade")
    return kept


def _tell(
    path: Path,
    changes: Sequence[Change],
    moved: Mapping[tuple[str, str], str],
    lock: LockFile,
    *,
    as_json: bool,
) -> int:
    """Print what `--check` found; a tag that moved is told, and is no change of a pin."""
    tags = [
        {
            "component": name,
            "platform": platform_name,
            "pinned": f"sha256:{lock.images[name, platform_name].manifest_sha256}",
            "now": digest,
        }
        for (name, platform_name), digest in sorted(moved.items())
    ]
    if as_json:
        told = [asdict(change) for change in changes]
        print_json({"lock": str(path), "changed": bool(changes), "changes": told, "moved": tags})
    else:
        for change in changes:
            click.echo(f"{change.where}: {change.old} -> {change.new}")
        for tag in tags:
            click.echo(
                f"moved: {tag['component']} for {tag['platform']} is {tag['now']} now, "
                f"pinned is {tag['pinned']}; `--upgrade {tag['component']}` follows"
            )
        click.echo(f"{path}: {f'{len(changes)} pins would change' if changes else 'up to date'}")
    return int(ROWS["lock-stale"][0] if changes else ExitCode.DONE)


def content_cache(memory: Memory | None = None) -> ContentCache:
    """Return the cache of this user, with pip, HTTP, skopeo and Nix behind it."""
    environment = dict(os.environ)
    return ContentCache(
        cache_folder(environment),
        PipFetcher(environment),
        UrlFetcher(),
        Skopeo(environment),
        nix_access(environment),
        memory or memory_of(environment),
    )


def _count(lock: LockFile) -> int:
    sets = [*lock.wheels.values(), *lock.runtime.values()]
    return (
        sum(len(item.wheels) for item in sets)
        + len(lock.tools)
        + len(lock.images)
        + len(lock.closures)
    )


def _report(name: str) -> None:
    click.echo(f"lock: {name}", err=True)


def _finish(path: Path, pins: int, *, is_changed: bool, as_json: bool) -> None:
    if as_json:
        print_json({"lock": str(path), "pins": pins, "changed": is_changed})
        return
    click.echo(f"{path}: {pins} pins, {'changed' if is_changed else 'unchanged'}")
