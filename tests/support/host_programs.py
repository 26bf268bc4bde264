"""Launchers of the host program for folder hosts."""

import os
import sys

__all__ = ["real_launcher"]


def real_launcher() -> bytes:
    """Return a launcher of the host program as it lies in this tree."""
    paths = os.pathsep.join(path for path in sys.path if path)
    return (
        "#!/bin/sh\n"
        'root=$(cd "$(dirname "$0")/../../.." && pwd)\n'
        f"export PYTHONPATH='{paths}'\n"
        f'exec \'{sys.executable}\' -m capsule_installer --root "$root" "$@"\n'
    ).encode()
