"""Debian packages for one host of the lab, whose network leads nowhere.

This machine's apt resolves them against what the base tree has, and fetches them once; dpkg on the
host unpacks them.
"""

from pathlib import Path

from support.lab.base import base_tree, cache_folder
from support.lab.commands import command
from support.lab.host import LabHost

__all__ = ["fetch_packages", "install_packages"]


def install_packages(host: LabHost, *names: str) -> None:
    """Install packages on a running host, with all that they depend on.

    Raises:
        LabError: apt can't fetch them, or dpkg can't install them.
    """
    archives = fetch_packages(*names)
    for deb in archives.glob("*.deb"):
        host.write(f"/root/debs/{deb.name}", deb.read_bytes())
    debs = [f"/root/debs/{deb.name}" for deb in sorted(archives.glob("*.deb"))]
    host.run("dpkg", "--install", *debs, timeout_s=120)


def fetch_packages(*names: str) -> Path:
    """Return a folder with the packages, and with all that they depend on and the base tree lacks.

    Raises:
        LabError: apt can't fetch them.
    """
    archives = cache_folder() / f"debs-{'-'.join(sorted(names))}"
    if not list(archives.glob("*.deb")):
        _fetch(archives, names)
    return archives


def _fetch(archives: Path, names: tuple[str, ...]) -> None:
    (archives / "partial").mkdir(parents=True, exist_ok=True)
    options = {
        "APT::Sandbox::User": "root",
        "Debug::NoLocking": "1",
        "Dir::Cache::archives": str(archives),
        "Dir::State::status": str(base_tree() / "var/lib/dpkg/status"),
    }
    settings = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    command(
        "apt-get", "-qq", *settings, "install", "-y", "--no-install-recommends",
        "--download-only", *names, timeout_s=300,
    )  # fmt: skip
