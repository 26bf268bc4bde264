"""One build, from `release.toml` and its lock to a capsule directory."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final

from capsule.builder.assemble import Built, Draft, assemble, draft_release
from capsule.builder.config import (
    GitSource,
    PathOrigin,
    ReleaseSource,
    ToolSource,
    WheelsSource,
    load_release,
)
from capsule.builder.content_cache import ContentCache
from capsule.builder.git_source import is_of_work_tree, open_work_tree
from capsule.builder.lockfile import load_lock
from capsule.builder.pins import check_complete
from capsule.builder.resolve import resolve_release
from capsule.builder.secret_scan import check_secrets, find_secrets, load_waivers
from capsule.builder.unchanged import BuildAnswer, KnownBuilds, inputs_beside

__all__ = ["Build", "build_release"]

_OBJECTS_BETWEEN_COLLECTIONS: Final = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """A finished build: where it is, and what to say of it."""

    folder: Path
    draft: Draft
    answer: BuildAnswer


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Look for cycles rarely: nearly all that a build makes lives until it ends, and is in none."""
    before = gc.get_threshold()
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@_rare_collections()
def build_release(
    release_path: Path,
    output: Path,
    cache: ContentCache,
    *,
    today: date,
    report: Callable[[str], None],
) -> Build:
    """Build a capsule directory from a clean commit and its lock, and remember that.

    `today` is the builder's calendar: a waiver is about people, and nothing of it enters a capsule.

    Raises:
        Refused: `release-*`, `lock-*`, `manifest-incomplete`, `secret-found`, `waivers-invalid`,
            and what `resolve_release`, `draft_release` and `assemble` raise.
        Failed: as those.
    """
    known = KnownBuilds(cache.memory, release_path, today=today)
    release = load_release(release_path)
    lock = load_lock(release_path.with_name("release.lock"))
    check_complete(release, lock)
    work_tree = open_work_tree(release.folder)
    resolved = resolve_release(release, lock, cache, report=report)
    draft = draft_release(release, resolved, report=report)
    waivers = load_waivers(release_path.with_name("secret-waivers.toml"))
    findings = find_secrets(draft.release.components, draft.listings)
    waived = len(check_secrets(findings, waivers, today=today))
    built = assemble(draft, output, report=report, memory=cache.memory)
    answer = _answer(built, waived)
    if _is_decided_by_commit(release, work_tree.top):
        locked = [
            release.folder / item.locked
            for item in release.components
            if isinstance(item, WheelsSource)
        ]
        # Opened again: a commit that came meanwhile is not the one that was built.
        if open_work_tree(release.folder) == work_tree:
            known.keep(answer, built.folder, work_tree, inputs_beside(release_path, locked))
    return Build(folder=built.folder, draft=draft, answer=answer)


def _answer(built: Built, waived: int) -> BuildAnswer:
    release = built.release
    return BuildAnswer(
        capsule=built.capsule,
        name=built.folder.name,
        product=release.product,
        version=release.version,
        release_counter=release.release_counter,
        components=len(release.components),
        content_bytes=sum(component.content_bytes for component in release.components),
        reused=built.reused,
        warnings=built.warnings,
        waived_secrets=waived,
    )


def _is_decided_by_commit(release: ReleaseSource, top: Path) -> bool:
    """Say whether nothing but the commit, files beside it and pinned digests decides a build."""
    for item in release.components:
        if isinstance(item, ToolSource) and isinstance(item.origin, PathOrigin):
            return False
        if isinstance(item, GitSource) and not is_of_work_tree(release.folder / item.path, top):
            return False
    return True
