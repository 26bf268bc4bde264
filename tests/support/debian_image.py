"""Images of containers that are made with umoci, of a Debian tree or of any other folder."""

import os
import shutil
import subprocess
from pathlib import Path

__all__ = [
    "IMAGE_PACKAGES",
    "PURGED",
    "debian_image",
    "debian_tree",
    "folder_image",
    "installed_in",
]

IMAGE_PACKAGES = {"debootstrap": "debootstrap", "umoci": "umoci"}
# Purged in the second layer, which is to show that the last word on a package counts.
PURGED = "tzdata"
_SUITE = "bookworm"
_TIMEOUT_S = 600


def debian_tree(cache: Path, mirror: str) -> Path:
    """Return a minimal Debian 12 below `cache`, making it if there is none (25 s, network)."""
    tree = cache / f"image-{_SUITE}"
    if not tree.exists():
        making = tree.with_name(f"{tree.name}.making")
        shutil.rmtree(making, ignore_errors=True)
        debs = cache / "debs"
        debs.mkdir(parents=True, exist_ok=True)
        _run("debootstrap", "--variant=minbase", f"--cache-dir={debs}", _SUITE, making, mirror)
        _run("chroot", making, "apt-get", "clean")
        making.rename(tree)
    return tree


def folder_image(tree: Path, layout: Path, tag: str) -> None:
    """Make an OCI layout with one image, one layer, which is the content of a folder."""
    _run("umoci", "init", "--layout", layout)
    _run("umoci", "new", "--image", f"{layout}:{tag}")
    _run("umoci", "insert", "--image", f"{layout}:{tag}", tree, "/")


def debian_image(tree: Path, layout: Path, tag: str, bundle: Path) -> None:
    """Make an image of two layers: a Debian tree, and what purging a package changes in it.

    `bundle` is where it is unpacked in between; its `rootfs` is then what the image holds.
    """
    folder_image(tree, layout, tag)
    _run("umoci", "unpack", "--image", f"{layout}:{tag}", bundle)
    _run("chroot", bundle / "rootfs", "dpkg", "--purge", PURGED)
    _run("umoci", "repack", "--image", f"{layout}:{tag}", bundle)
    _run("umoci", "gc", "--layout", layout)


def installed_in(tree: Path) -> set[tuple[str, str, str]]:
    """Return name, version and architecture of what dpkg-query says is installed in a tree."""
    asked = "${db:Status-Status} ${Package} ${Version} ${Architecture}\\n"
    told = _run("dpkg-query", f"--admindir={tree}/var/lib/dpkg", "--show", f"--showformat={asked}")
    lines = (line.split() for line in told.splitlines())
    return {(name, version, arch) for state, name, version, arch in lines if state == "installed"}


def _run(*arguments: str | Path) -> str:
    argv = [str(argument) for argument in arguments]
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S,
        check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, f"{argv}: {done.stderr[-2000:]}"
    return done.stdout
