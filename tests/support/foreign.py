"""What others publish, fetched once into the user's cache by their own clients.

A machine without the client, or without a way to what it asks for, skips the tests that need it and
says so; with `CI` set, failing to fetch fails.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

__all__ = ["npm_packages", "run_node", "source_distribution"]

_TIMEOUT_S = 240


def npm_packages(*packages: str) -> Path:
    """Return a folder with these npm packages, `NAME@VERSION`; skip where that can't be."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("npm is not installed")

    def install(folder: Path) -> list[str]:
        (folder / "package.json").write_text('{"private": true}\n')
        options = ["--no-fund", "--no-audit", "--ignore-scripts", "--force", "--no-package-lock"]
        return ["npm", "install", "--prefix", str(folder), *options, *packages]

    return _cached("npm", packages, install)


def source_distribution(requirement: str) -> Path:
    """Return the path of a source distribution, `NAME==VERSION`."""

    def download(folder: Path) -> list[str]:
        options = ["--no-deps", "--no-binary", ":all:", "--disable-pip-version-check"]
        return [sys.executable, "-m", "pip", "download", *options, "-d", str(folder), requirement]

    (found,) = _cached("sdist", (requirement,), download).glob("*.tar.gz")
    return found


def run_node(folder: Path, script: Path, request: str) -> str:
    """Run a script with the packages in `folder`; it reads stdin and writes stdout."""
    environment = {"PATH": os.environ["PATH"], "NODE_PATH": str(folder / "node_modules")}
    done = subprocess.run(
        ["node", str(script)], input=request, env=environment, capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def _cached(kind: str, names: tuple[str, ...], command: Callable[[Path], list[str]]) -> Path:
    key = hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "capsule-tests"
    folder = base / f"{kind}-{key}"
    base.mkdir(parents=True, exist_ok=True)
    with _locked(base / f"{kind}-{key}.lock"):
        if (folder / "complete").exists():
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        done = subprocess.run(
            command(folder), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
        if done.returncode:
            shutil.rmtree(folder)
            reason = f"{', '.join(names)} can't be fetched: {done.stderr.strip()[-300:]}"
            if "CI" in os.environ:
                pytest.fail(reason)
            pytest.skip(reason)
        (folder / "complete").touch()
    return folder


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
