"""Debian's Nix with a store of its own: below a test's folder, without network, daemon or users.

Each command runs in a mount namespace in which `/nix` is a folder of the test, so nothing is left
on the machine and two tests see nothing of each other.

With CAPSULE_TEST_NIX_ROOT, the folder of a Debian system with `nix-bin` and `git`, that system's
Nix is run instead of the machine's: so the same tests are run with other versions.
"""

import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

__all__ = ["IsolatedNix", "reason_without_nix"]

_CONFIG = """\
experimental-features = nix-command flakes
flake-registry =
substituters =
build-users-group =
sandbox = false
"""
_ROOT = os.environ.get("CAPSULE_TEST_NIX_ROOT", "")
# What commands name: files of the tests and of this tree, at the same place inside.
_SEEN = ("/proc", "/dev", tempfile.gettempdir(), str(Path(__file__).parents[2]))
_PROGRAMS = ("nix", "nix-instantiate", "nix-store")


def reason_without_nix() -> str:
    """Return why Nix can't be used here; empty if it can."""
    if not _ROOT and shutil.which("nix") is None:
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
            program = f"/usr/bin/{name}" if _ROOT else shutil.which(name)
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
        store, seen_as = shlex.quote(str(self._store)), shlex.quote(f"{_ROOT}/nix")
        steps = [f"mount --bind {store} {seen_as}"]
        for place in _SEEN if _ROOT else ():
            inside = shlex.quote(f"{_ROOT}{place}")
            steps.append(f"mkdir -p {inside} && mount --rbind {shlex.quote(place)} {inside}")
        change = (
            f'cd / && exec chroot {shlex.quote(_ROOT)} "$0" "$@"' if _ROOT else 'exec "$0" "$@"'
        )
        mounted = " && ".join([*steps, change])
        return f'exec unshare -mn sh -c {shlex.quote(mounted)} {shlex.quote(program)} "$@"\n'
