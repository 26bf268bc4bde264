"""`capsule lock`: the one command of a build that reaches the network."""

import os
import platform
from pathlib import Path

import click

from capsule import __version__
from capsule.builder.config import load_release
from capsule.builder.content_cache import ContentCache, UrlFetcher
from capsule.builder.images.registry import Skopeo
from capsule.builder.lock import fetch_pins, lock_release
from capsule.builder.lockfile import LockFile, encode_lock, load_lock
from capsule.builder.nix.access import nix_access
from capsule.builder.pip_fetch import PipFetcher
from capsule.builder.remembered import Memory, cache_folder, memory_of
from capsule.cli.output import json_option, print_json
from capsule.clock import utc_now
from capsule.durable import replace_file

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
@json_option
def command(release_path: Path, *, fetch: bool, refresh: bool, as_json: bool) -> None:
    """Resolve every input to a pin, and fetch it.

    Wheels come through pip, from the index that pip is configured for. The lock names versions
    and digests only; commit it. A machine that has it builds the same capsule.
    """
    if fetch and refresh:
        raise click.UsageError("--fetch keeps all pins, --refresh none: give one of them")
    release = load_release(release_path)
    lock_path = release_path.with_name("release.lock")
    cache = content_cache()
    if fetch:
        count = fetch_pins(release, load_lock(lock_path), cache, report=_report)
        _finish(lock_path, count, is_changed=False, as_json=as_json)
        return
    previous = load_lock(lock_path) if lock_path.exists() and not refresh else None
    lock = lock_release(
        release,
        cache,
        previous=previous,
        now=utc_now(),
        locked_by=f"capsule {__version__}, Python {platform.python_version()}",
        report=_report,
    )
    is_changed = previous != lock
    if is_changed:
        replace_file(lock_path, encode_lock(lock), mode=0o644)
    _finish(lock_path, _count(lock), is_changed=is_changed, as_json=as_json)


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
