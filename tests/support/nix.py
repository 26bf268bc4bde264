"""Debian's Nix with a store of its own: below a test's folder, without network, daemon or users.

Each command runs in a mount namespace in which `/nix` is a folder of the test, so nothing is left
on the machine and two tests see nothing of each other.
"""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

__all__ = ["IsolatedNix", "reason_without_nix"]

_CONFIG = """\
experimental-features = nix-command flakes
flake-registry =
substituters =
build-users-group =
sandbox = false
"""
_PROGRAMS = ("nix", "nix-instantiate", "nix-store")


def reason_without_nix() -> str:
    """Return why Nix can't be used here; empty if it can."""
    if shutil.which("nix") is None:
        return "needs nix (apt-get install --no-install-recommends nix-bin)"
    if os.geteuid() != 0:
        return "needs root, to give Nix a store of its own"
    probe = subprocess.run(["unshare", "-mn", "true"], check=False, capture_output=True)
    return "needs mount namespaces" if probe.returncode else ""


class IsolatedNix:
    """Programs of Nix in `folder`; whoever is given `environment` finds them on PATH."""

    def __init__(self, folder: Path) -> None:
        self._store = folder / "nix"
        self._bin = folder / "bin"
        home = folder / "home"
        for path in (self._store / "store", self._bin, home):
            path.mkdir(parents=True)
        for name in _PROGRAMS:
            program = shutil.which(name)
            assert program is not None, name
            wrapper = self._bin / name
            wrapper.write_text(f"#!/bin/sh\n{self._inside(program)}")
            wrapper.chmod(0o755)
        self.environment = {
            "HOME": str(home),
            "NIX_CONFIG": _CONFIG,
            "PATH": f"{self._bin}:{os.environ['PATH']}",
        }

    def run(self, *command: str, folder: Path | None = None) -> str:
        """Run a command with this Nix and return what it prints."""
        done = subprocess.run(
            command,
            cwd=folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def _inside(self, program: str) -> str:
        mounted = f'mount --bind {shlex.quote(str(self._store))} /nix && exec "$0" "$@"'
        return f'exec unshare -mn sh -c {shlex.quote(mounted)} {shlex.quote(program)} "$@"\n'
