"""A folder of wheels as an index that pip is configured for, and fetchers for tests without pip."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from capsule.builder.content_cache import ContentCache
from capsule.builder.images.registry import ImageFetcher
from capsule.builder.nix.access import NixAccess
from capsule.builder.nix.program import Described, NixAsk
from capsule.builder.target import Target
from capsule.builder.wheels import Wanted, unfit
from capsule_manifest.errors import Failed

__all__ = [
    "NO_NIX",
    "FolderFetcher",
    "NoFetcher",
    "NoImages",
    "NoNix",
    "cache_of",
    "pip_environment",
]


class FolderFetcher:
    """Take wheels from a folder, the best tag first, as pip does from an index."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fetched: list[str] = []

    def fetch(self, wanted: Sequence[Wanted], target: Target, folder: Path) -> None:
        """Copy what is wanted. See `WheelFetcher`."""
        from packaging.utils import parse_wheel_filename

        for item in wanted:
            ranked = []
            for path in self.folder.glob("*.whl"):
                name, version, _, tags = parse_wheel_filename(path.name)
                rank = target.fit(tags).rank
                if name == item.name and str(version) == item.version and rank is not None:
                    ranked.append((rank, path))
            if not ranked:
                raise unfit(item, [path.name for path in self.folder.iterdir()], target)
            best = min(ranked)[1]
            shutil.copy(best, folder / best.name)
            self.fetched.append(best.name)


class NoFetcher:
    """A machine without network."""

    def fetch(self, *arguments: object) -> None:
        """Fail. See `WheelFetcher` and `FileFetcher`."""
        raise Failed("wheel-fetch-failed", "there is no network", got=len(arguments))


class _Files:
    """Take files from memory by address."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self._files = files

    def fetch(self, url: str, stream: BinaryIO) -> None:
        """Write a file. See `FileFetcher`."""
        if url not in self._files:
            raise Failed("url-fetch-failed", "there is no such file", where=url)
        stream.write(self._files[url])


class NoImages:
    """No registry."""

    def describe(self, name: str) -> bytes:
        """Fail. See `ImageFetcher`."""
        raise Failed("image-fetch-failed", "there is no network", where=name)

    def fetch(self, name: str, digest: str, folder: Path) -> None:
        """Fail. See `ImageFetcher`."""
        raise Failed("image-fetch-failed", "there is no network", where=name)


class NoNix:
    """No Nix on this machine."""

    def is_present(self) -> bool:
        """Return False. See `ClosureBuilder`."""
        return False

    def build(self, ask: NixAsk, folder: Path) -> Described:
        """Fail. See `ClosureBuilder`."""
        raise Failed("nix-failed", "there is no Nix", got=folder, where=ask.where)


NO_NIX = NixAccess(builder=NoNix(), caches=())


def cache_of(
    folder: Path,
    index: Path | None = None,
    files: dict[str, bytes] | None = None,
    images: ImageFetcher | None = None,
    nix: NixAccess | None = None,
) -> ContentCache:
    """Return a cache in `folder` with what may be fetched; without any, no network."""
    return ContentCache(
        folder,
        FolderFetcher(index) if index is not None else NoFetcher(),
        _Files(files) if files is not None else NoFetcher(),
        images if images is not None else NoImages(),
        nix if nix is not None else NO_NIX,
    )


def pip_environment(index: Path, home: Path) -> dict[str, str]:
    """Return the settings of a user whose pip knows one folder and no network."""
    return {
        "HOME": str(home),
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(index),
        "PIP_NO_CACHE_DIR": "1",
    }
