"""A release folder with a cache: locked, resolved and drafted as the commands do it."""

from datetime import UTC, datetime
from typing import Final

from capsule.builder.assemble import Draft, draft_release
from capsule.builder.content_cache import ContentCache
from capsule.builder.lock import lock_release
from capsule.builder.lockfile import LockFile
from capsule.builder.resolve import Resolved, resolve_release
from support.releases import ReleaseFolder

__all__ = ["LockedRelease", "silent"]

_NOW: Final = datetime(2026, 1, 2, tzinfo=UTC)


def silent(_text: str) -> None:
    """Report to nobody."""


class LockedRelease:
    """One release on one builder."""

    def __init__(self, folder: ReleaseFolder, cache: ContentCache) -> None:
        self.folder = folder
        self.cache = cache

    def lock(self, previous: LockFile | None = None) -> LockFile:
        """Return the pins."""
        return lock_release(
            self.folder.release,
            self.cache,
            previous=previous,
            now=_NOW,
            locked_by="test",
            report=silent,
        )

    def resolved(self, lock: LockFile) -> Resolved:
        """Return the components that the pins stand for."""
        return resolve_release(self.folder.release, lock, self.cache, report=silent)

    def draft(self, lock: LockFile) -> Draft:
        """Return the release with its content known."""
        return draft_release(self.folder.release, self.resolved(lock), report=silent)
