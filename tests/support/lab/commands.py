"""Commands of this machine that the lab runs: bounded, checked, installed when missing.

Nothing here is used by the product: the lab plays the machine room.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

__all__ = ["LabError", "command", "installed", "wait_until"]

# Command -> the Debian package that brings it.
_NEEDED = {
    "debootstrap": "debootstrap",
    "ip": "iproute2",
    "mkfs.ext4": "e2fsprogs",
    "nsenter": "util-linux",
    "ssh": "openssh-client",
    "systemd-nspawn": "systemd-container",
}


class LabError(RuntimeError):
    """The lab could not do what a test asked of it. Says nothing about the product."""


def command(
    *arguments: str | Path, timeout_s: float = 30, check: bool = True, stdin: bytes | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command of this machine to its end and return its output as text.

    Raises:
        LabError: it failed (unless `check` is false), or did not end in time.
    """
    argv = [str(argument) for argument in arguments]
    try:
        done = subprocess.run(
            argv, input=stdin, capture_output=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        message = f"did not end within {timeout_s} s: {' '.join(argv)}"
        raise LabError(message) from None
    # A damaged host prints what it likes: undecodable bytes are shown, not a reason to fail.
    output, error = (
        stream.decode("utf-8", "backslashreplace") for stream in (done.stdout, done.stderr)
    )
    if check and done.returncode:
        message = f"exit code {done.returncode}: {' '.join(argv)}\n{error.strip()}"
        raise LabError(message)
    return subprocess.CompletedProcess(argv, done.returncode, output, error)


def installed(more: Mapping[str, str] = MappingProxyType({})) -> None:
    """Make sure that root runs this and that every command is there, installing what is missing.

    `more` are commands of a single run, each with the Debian package that brings it.

    Raises:
        LabError: not root, or a package can't be installed.
    """
    if os.geteuid() != 0:
        message = "the lab boots hosts: it needs to be root"
        raise LabError(message)
    needed = {**_NEEDED, **more}
    missing = sorted({package for name, package in needed.items() if shutil.which(name) is None})
    if missing:
        os.environ["DEBIAN_FRONTEND"] = "noninteractive"
        command("apt-get", "-qq", "update", timeout_s=300)
        quiet = ("apt-get", "-qq", "install", "-y", "--no-install-recommends")
        command(*quiet, *missing, timeout_s=600)


def wait_until(condition: Callable[[], object], *, timeout_s: float, what: str) -> None:
    """Look at a condition every 20 ms until it holds.

    Raises:
        LabError: it did not hold in time.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            message = f"not within {timeout_s} s: {what}"
            raise LabError(message)
        time.sleep(0.02)
