"""What this machine worked out since it was started, so that it need not be worked out again.

Two kinds of things are remembered: that a file was proved to have a digest, for as long as the file
system says that nobody touched it, and facts that follow from proved bytes alone.

* Everything ends with the boot. A power cut may take back pages that were read and proved before
  they were on the disk, and a cache that came here from another machine proves nothing.
* Everything ends with the program: what another version of the builder concluded is not known.
* What is remembered is never an input. Forgetting all of it changes how long a build takes.
* Only files that the builder itself put in place are proved by their state: nobody edits them, so
  two changes within one tick of the file system's clock are not a case.

Deliberately outside: sources, `release.toml` and other files that people edit. Those are read.
"""

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import get_ident
from typing import Final

__all__ = ["Memory", "boot_name", "cache_folder", "memory_of", "program_digest"]

_ENTRIES_MAX: Final = 1024
_ENTRY_BYTES_MAX: Final = 256 * 1024 * 1024
_DIGEST_BYTES: Final = 32
_BOOT_FILE: Final = Path("/proc/sys/kernel/random/boot_id")
_PACKAGE_FOLDERS: Final = frozenset({"site-packages", "dist-packages"})
_PACKAGES: Final = ("capsule", "capsule_manifest", "capsule_installer")


class Memory:
    """Facts of one boot and one program. Without a folder, they last as long as this process."""

    def __init__(self, folder: Path | None = None, *, boot: str = "", program: str = "") -> None:
        is_kept = folder is not None and boot and program
        self._folder = folder / boot if folder is not None and is_kept else None
        self._program = program
        self._proved: dict[str, str] = {}

    def recall(self, topic: str, key: str) -> bytes | None:
        """Return what was kept under `key`, if all of it is still there."""
        if self._folder is None:
            return None
        try:
            with self._path(topic, key).open("rb") as stream:
                raw = stream.read(_ENTRY_BYTES_MAX + 1)
        except OSError:
            return None
        digest, value = raw[:_DIGEST_BYTES], raw[_DIGEST_BYTES:]
        return value if hashlib.sha256(value).digest() == digest else None

    def keep(self, topic: str, key: str, value: bytes) -> None:
        """Keep `value`; a disk that takes it not is no error, for nothing depends on it."""
        if self._folder is None or len(value) > _ENTRY_BYTES_MAX - _DIGEST_BYTES:
            return
        path = self._path(topic, key)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{get_ident()}")
        try:
            self._make_room(path.parent)
            # Not synced: after a power cut there is another boot, and nobody looks here.
            temporary.write_bytes(hashlib.sha256(value).digest() + value)
            temporary.replace(path)
        except OSError:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)

    def is_proved(self, path: Path, digest: str) -> bool:
        """Say whether `path` was proved to have `digest` and was not touched since."""
        state = _state(path)
        if state is None:
            return False
        if self._proved.get(f"{digest} {path}") == state:
            return True
        return self.recall("file", digest) == state.encode()

    def prove(self, path: Path, digest: str, state: str | None) -> None:
        """Remember that the bytes of `path` have `digest`; `state` is from before they were read.

        Nothing is remembered if the file is not in that state any more.
        """
        if state is None or state != _state(path):
            return
        self._proved[f"{digest} {path}"] = state
        self.keep("file", digest, state.encode())

    def state(self, path: Path) -> str | None:
        """Return what the file system says of a file, to be given to `prove`."""
        return _state(path)

    def _path(self, topic: str, key: str) -> Path:
        assert self._folder is not None, "asked only where something is kept"
        name = hashlib.sha256(json.dumps([self._program, topic, key]).encode()).hexdigest()
        return self._folder / topic / name

    def _make_room(self, folder: Path) -> None:
        if not folder.is_dir():
            assert self._folder is not None, "asked only where something is kept"
            self._folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            for other in self._folder.parent.iterdir():
                if other != self._folder:
                    shutil.rmtree(other, ignore_errors=True)
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        kept = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        for path in kept[: -_ENTRIES_MAX + 1]:
            path.unlink(missing_ok=True)


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder for fetched content. Source: XDG Base Directory Specification 0.8."""
    base = environment.get("XDG_CACHE_HOME", "")
    # The specification says that a relative path there is to be ignored.
    root = Path(base) if base.startswith("/") else Path(environment.get("HOME", "/")) / ".cache"
    return root / "capsule" / "wheels"


def memory_of(environment: Mapping[str, str]) -> Memory:
    """Return what this user's machine remembers of builds, beside what it fetched."""
    folder = cache_folder(environment).with_name("remembered")
    return Memory(folder, boot=boot_name(), program=program_digest())


def boot_name() -> str:
    """Return the name of this boot of this machine; empty where the kernel doesn't tell it."""
    try:
        return _BOOT_FILE.read_text().strip()
    except OSError:
        return ""


def program_digest() -> str:
    """Return what tells this builder from any other: its files, its Python, what is installed.

    Of files it is name, size and times, as the compiler's own cache of bytecode does it; a package
    that was installed or removed shows in the times of the folder of packages. The other folders
    where Python looks, such as the one that a command is started in, change with every file.
    """
    digest = hashlib.sha256(f"{sys.version} {os.environ.get('PYTHONPATH')}".encode())
    for folder in map(Path, sys.path):
        if folder.name in _PACKAGE_FOLDERS:
            digest.update(f"{folder} {_state(folder)}\n".encode(errors="surrogateescape"))
    for package in _PACKAGES:
        module = sys.modules.get(package)
        for root in module.__path__ if module is not None else _found(package):
            for path, state in sorted(_states(root)):
                digest.update(f"{path} {state}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _found(package: str) -> Iterable[str]:
    from importlib.util import find_spec

    spec = find_spec(package)
    return (spec.submodule_search_locations if spec is not None else None) or ()


def _states(folder: str) -> Iterable[tuple[str, str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.name != "__pycache__":
                    yield from _states(entry.path)
            else:
                yield entry.path, _text(entry.stat())


def _state(path: Path) -> str | None:
    try:
        return _text(path.stat())
    except OSError:
        return None


def _text(status: os.stat_result) -> str:
    return (
        f"{status.st_dev} {status.st_ino} {status.st_size} "
        f"{status.st_mtime_ns} {status.st_ctime_ns}"
    )
