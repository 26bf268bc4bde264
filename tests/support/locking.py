"""Resolve the declared dependencies into hash-locked requirement files.

The locks name versions and hashes, never a place: the index comes from the settings of whoever
installs. The build backend is in the run-time lock, so that the three packages can be installed
without a second, unlocked environment.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

__all__ = ["DEV_LOCK", "HOST_LOCK", "RUN_LOCK", "declared", "main"]

RUN_LOCK = "requirements.lock"
DEV_LOCK = "requirements-dev.lock"
HOST_LOCK = "capsule/capsule/builder/runtime.lock"  # ships with the builder

_ROOT = Path(__file__).resolve().parents[2]
_HEAD = "# Written by `./dev lock`. Versions and hashes only: pip's settings say from where.\n"


def declared(root: Path) -> dict[str, list[str]]:
    """Return, for each lock, what is declared: to run, on a host, and for the tests."""
    run: set[str] = set()
    host: set[str] = set()
    for folder in ("manifest", "installer", "capsule"):
        document = tomllib.loads((root / folder / "pyproject.toml").read_text())
        needs = {d for d in document["project"]["dependencies"] if not d.startswith("capsule-")}
        run |= needs | set(document["build-system"]["requires"])
        if folder != "capsule":
            host |= needs
    groups = tomllib.loads((root / "pyproject.toml").read_text())["dependency-groups"]
    return {RUN_LOCK: sorted(run), HOST_LOCK: sorted(host), DEV_LOCK: sorted(groups["dev"])}


def _compile(requirements: list[str], output: Path, *options: str) -> None:
    """Write one lock. An existing one is kept to, unless `--upgrade` is among the options."""
    with tempfile.TemporaryDirectory() as scratch:
        lock = Path(scratch) / output.name
        if output.exists():
            lock.write_text(output.read_text())
        command = [
            "uv", "pip", "compile", "--quiet", "--universal", "--generate-hashes", "--no-header",
            "--no-emit-index-url", "--no-annotate", "--python-version", "3.11",
            "--no-config", "--output-file", str(lock), *options, "-",
        ]  # fmt: skip
        subprocess.run(command, input="\n".join(requirements), text=True, check=True, cwd=scratch)
        output.write_text(_HEAD + lock.read_text())


def main(arguments: list[str]) -> int:
    """Write the lock to run, then the other two within the versions that it fixes."""
    if shutil.which("uv") is None:
        print("lock: uv is not on PATH; next: install it, it is the resolver", file=sys.stderr)
        return 1
    for name, requirements in declared(_ROOT).items():
        within = () if name == RUN_LOCK else ("--constraint", os.fspath(_ROOT / RUN_LOCK))
        _compile(requirements, _ROOT / name, *within, *arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
