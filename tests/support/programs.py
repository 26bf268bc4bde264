"""Programs of Debian that some tests need: whether they are here, and what brings them."""

import shutil
from collections.abc import Mapping

__all__ = ["lacking"]


def lacking(packages: Mapping[str, str]) -> str:
    """Return what is missing of commands, each with the package that brings it; empty if nothing.

    A test gives it as its reason to be skipped.
    """
    missing = sorted({package for name, package in packages.items() if shutil.which(name) is None})
    return f"needs apt-get install {' '.join(missing)}" if missing else ""
