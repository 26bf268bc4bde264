"""Keep what was fetched on this machine, each file in a folder named by its SHA-256.

The cache is no truth: a file is checked against its digest when it is taken out, unless that was
done since this machine started and nobody touched it. A torn or changed one is fetched again. Where
content comes from is the business of three fetchers.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from capsule.builder.images.registry import ImageFetcher
from capsule.builder.lockfile import ToolPin, WheelPin
from capsule.builder.nix.access import NixAccess
from capsule.builder.remembered import Memory
from capsule.builder.spool import Spool
from capsule.builder.target import Target
from capsule.builder.wheels import Wanted, check_file, make_pin
from capsule_manifest.errors import Failed, Refused

__all__ = [
    "ContentCache",
    "FileFetcher",
    "WheelFetcher",
]

_CHUNK_BYTES: Final = 1024 * 1024


class WheelFetcher(Protocol):
    """Get wheels from wherever the user keeps them."""

    def fetch(self, wanted: Sequence[Wanted], target: Target, folder: Path) -> None:
        """Put one wheel for each of `wanted` into `folder`, under its own file name.

        Raises:
            Refused: `wheel-not-found`, `wheel-is-sdist`, `wheel-unfit`, `wheel-digest-mismatch`.
            Failed: `wheel-fetch-failed`.
        """


class FileFetcher(Protocol):
    """Get one file by its address."""

    def fetch(self, url: str, stream: BinaryIO) -> None:
        """Write the content behind `url` to `stream`, a file.

        The file may hold the beginning already; whether it is, the digest of the whole decides.

        Raises:
            Failed: `url-fetch-failed`.
        """


class ContentCache:
    """Wheels, files, layers and archives of Nix, each in a folder named by its SHA-256."""

    def __init__(
        self,
        folder: Path,
        wheels: WheelFetcher,
        files: FileFetcher,
        images: ImageFetcher,
        nix: NixAccess,
        memory: Memory | None = None,
    ) -> None:
        self.memory = memory or Memory()
        self.images = images
        self.nix = nix
        self._folder = folder
        self._wheels = wheels
        self._files = files

    def kept(self, sha256: str) -> Path | None:
        """Return the content with this digest, proved again, if it is here."""
        path = self._folder / sha256 / "content"
        return path if self._is_content(path, sha256) else None

    def obtain_content(self, sha256: str, write: Callable[[BinaryIO], None], *, where: str) -> Path:
        """Return the content with this digest; have it written if it is not here.

        Raises:
            Refused: `image-digest-mismatch` when something else was written; what `write` raises.
            Failed: `cache-failed`; what `write` raises.
        """
        path = self.kept(sha256)
        if path is not None:
            return path
        with self.scratch() as scratch:
            temporary = Path(scratch) / "content"
            with temporary.open("xb") as stream:
                write(stream)
            got = _digest(temporary)
            if got != sha256:
                raise Refused(
                    "image-digest-mismatch",
                    "a layer has not the content that the image's configuration states",
                    expected=f"sha256:{sha256}",
                    got=f"sha256:{got}",
                    where=where,
                )
            return self._keep(temporary, sha256, "content")

    def obtain_wheels(
        self, wanted: Sequence[Wanted], target: Target, *, base: Path
    ) -> dict[str, tuple[WheelPin, Path]]:
        """Return a pin and a file for each of `wanted`, by name; fetch what is not here.

        `base` is the folder of the lock, where a pylock may keep wheels.

        Raises:
            Refused: as `WheelFetcher.fetch`; `wheel-name-invalid`, `wheel-digest-mismatch`.
            Failed: `wheel-fetch-failed`, `cache-failed`.
        """
        found: dict[str, tuple[WheelPin, Path]] = {}
        missing: list[Wanted] = []
        for item in wanted:
            kept = self._kept_wheel(item)
            local = base / item.path if kept is None and item.path else None
            if local is not None and local.is_file():
                kept = self._keep_wheel(item, local, target)
            if kept is None:
                missing.append(item)
            else:
                found[item.name] = kept
        if missing:
            with self.scratch() as scratch:
                self._wheels.fetch(missing, target, Path(scratch))
                for item, path in _assigned(missing, Path(scratch)):
                    found[item.name] = self._keep_wheel(item, path, target)
        return found

    def obtain_file(self, url: str, sha256: str) -> tuple[ToolPin, Path]:
        """Return a pin and the file with this digest; fetch it if it is not here.

        Raises:
            Refused: `url-digest-mismatch`.
            Failed: `url-fetch-failed`, `cache-failed`.
        """
        path = self._folder / sha256 / "content"
        if not self._is_content(path, sha256):
            with self.scratch() as scratch:
                temporary = Path(scratch) / "content"
                got = self._fetch_file(url, sha256, temporary)
                if got != sha256:
                    raise Refused(
                        "url-digest-mismatch",
                        "a file is not the one that release.toml names",
                        expected=sha256,
                        got=got,
                        where=url,
                    )
                self._keep(temporary, sha256, "content")
        return ToolPin(sha256=sha256, size_bytes=path.stat().st_size), path

    def _fetch_file(self, url: str, sha256: str, temporary: Path) -> str:
        """Fetch a file, going on from what an earlier try left; return the digest of what came."""
        part = self._folder / f".{sha256}.part"
        with suppress(OSError):
            # Taken, so that nobody else goes on from it too.
            part.replace(temporary)
        was_begun = temporary.exists()
        try:
            with temporary.open("ab+") as stream:
                self._files.fetch(url, stream)
            got = _digest(temporary)
            if got != sha256 and was_begun:
                # The beginning was of another file, or was damaged.
                with temporary.open("wb+") as stream:
                    self._files.fetch(url, stream)
                got = _digest(temporary)
        except BaseException:
            with suppress(OSError):
                temporary.replace(part)
            raise
        return got

    def scratch(self) -> "tempfile.TemporaryDirectory[str]":
        """Return a folder that goes when it is left.

        Raises:
            Failed: `cache-failed`.
        """
        # In the cache, so that a finished file is moved and not copied.
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            return tempfile.TemporaryDirectory(dir=self._folder, prefix=".incoming-")
        except OSError as error:
            raise _cache_failed(self._folder) from error

    def spool(self) -> Spool | None:
        """Return a place for what is decompressed once; None where there is no disk for it."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            return Spool.on_disk_of(self._folder)
        except OSError:
            return None

    def _kept_wheel(self, item: Wanted) -> tuple[WheelPin, Path] | None:
        """Return a wheel of this item if there is no choice to be made and it is here."""
        if len(item.sha256) != 1:
            return None
        (sha256,) = item.sha256
        paths = sorted((self._folder / sha256).glob("*.whl"))
        for path in paths:
            if item.file in {None, path.name} and self._is_content(path, sha256):
                return make_pin(item, path.name, sha256, path.stat().st_size), path
        return None

    def _keep_wheel(self, item: Wanted, path: Path, target: Target) -> tuple[WheelPin, Path]:
        check_file(path.name, item.name, item.version, target, where=item.where)
        sha256 = _digest(path)
        is_locked = not item.sha256 or sha256 in item.sha256
        if not is_locked or item.file not in {None, path.name}:
            raise Refused(
                "wheel-digest-mismatch",
                "a wheel is not one that was locked",
                expected=f"{item.file or item.name}, {', '.join(sorted(item.sha256))}",
                got=f"{path.name}, {sha256}",
                where=item.where,
            )
        kept = self._keep(path, sha256, path.name)
        return make_pin(item, path.name, sha256, kept.stat().st_size), kept

    def _is_content(self, path: Path, sha256: str) -> bool:
        state = self.memory.state(path)
        if state is None or not path.is_file():
            return False
        if self.memory.is_proved(path, sha256):
            return True
        if _digest(path) != sha256:
            return False
        self.memory.prove(path, sha256, state)
        return True

    def _keep(self, path: Path, sha256: str, name: str) -> Path:
        folder = self._folder / sha256
        final = folder / name
        if self._is_content(final, sha256):
            return final
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if self._folder in path.parents:
                path.replace(final)
                # It is the file that was read, which only this process knows until now.
                self.memory.prove(final, sha256, self.memory.state(final))
            else:
                _copy(path, final)
        except OSError as error:
            raise _cache_failed(final) from error
        return final


def _assigned(wanted: Sequence[Wanted], folder: Path) -> Iterator[tuple[Wanted, Path]]:
    by_name: dict[str, Path] = {}
    for path in sorted(folder.glob("*.whl")):
        try:
            by_name[parse_wheel_filename(path.name)[0]] = path
        except InvalidWheelFilename:
            continue
    for item in wanted:
        if item.name not in by_name:
            raise Failed(
                "wheel-fetch-failed",
                "pip fetched no wheel",
                expected=f"{item.name} {item.version}",
                got=", ".join(sorted(by_name)) or "none",
                where=item.where,
            )
        yield item, by_name[item.name]


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _copy(source: Path, target: Path) -> None:
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    with source.open("rb") as reader, temporary.open("wb") as writer:
        while chunk := reader.read(_CHUNK_BYTES):
            writer.write(chunk)
    temporary.replace(target)


def _cache_failed(path: Path) -> Failed:
    return Failed("cache-failed", "the cache can't be written", where=path)
