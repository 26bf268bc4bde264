"""A host program that has no network, no writable disk but its own, and dies when it asks for one.

The launcher of a runtime is changed to enter a network namespace without any link and a mount
namespace whose root is read-only; the program is changed to refuse sockets from its first line.
"""

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

__all__ = ["LAUNCHER", "PROGRAM", "ConfinedHost"]

LAUNCHER = "site/capsule_installer/bin_capsule.sh"
PROGRAM = "site/capsule_installer/launch.py"
_START = b"exec env -i "
_NAMESPACES = ("unshare", "--net", "--mount")
# The host's own folder becomes a mount of its own, so that it stays writable below a frozen root.
_SCRIPT = (
    "set -e; mount --make-rprivate /; mount --bind {root} {root}; mount -o bind,ro,remount /; "
    "if touch /capsule-was-here 2>/dev/null; then exit 98; fi; "
    'echo confined >>{log}; exec "$@"'
)
_HOOK = b"""\
import os as _os
import sys as _sys


def _refuse(event, arguments):
    if event in {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"}:
        _os.write(2, f"asked for a network: {event} {arguments!r}\\n".encode())
        _os._exit(99)


_sys.addaudithook(_refuse)

"""


class ConfinedHost:
    """A host folder whose program runs confined. Skips where there are no namespaces."""

    def __init__(self, root: Path) -> None:
        script = _SCRIPT.format(root=root, log="/dev/null")
        tried = [*_NAMESPACES, "sh", "-c", script, "sh", "true"]
        root.mkdir(mode=0o755, parents=True)
        if subprocess.run([*_NAMESPACES, "true"], check=False, capture_output=True).returncode:
            pytest.skip("this kernel gives no namespaces")
        subprocess.run(tried, check=True)
        self._root = root
        self._log = root / "confined.log"

    def runtime(self, runtime: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return the host program, confined from its start on."""
        assert runtime[LAUNCHER].count(_START) == 1, "the launcher starts in another way"
        script = _SCRIPT.format(root=self._root, log=self._log)
        prefix = f"exec {' '.join(_NAMESPACES)} sh -c '{script}' sh env -i "
        return {
            **runtime,
            LAUNCHER: runtime[LAUNCHER].replace(_START, prefix.encode()),
            PROGRAM: _HOOK + runtime[PROGRAM],
        }

    @property
    def starts(self) -> int:
        """Return how often the program was started confined."""
        return len(self._log.read_text().splitlines()) if self._log.exists() else 0
