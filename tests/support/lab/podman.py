"""Debian's podman on a lab host, and an image with a small web server that it can run.

A lab host is itself a container, on an overlay, below control groups that it can't write and with a
filter that refuses key rings. So podman copies layers instead of stacking them, makes no key ring,
and its containers stay in the control group of their unit.
"""

import io
import json
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from capsule_installer.system.processes import CLEAN_ENVIRONMENT, Completed, ProcessFacts
from support.images import ImageFile, layer_of
from support.lab.commands import wait_until
from support.lab.host import LabHost
from support.lab.packages import fetch_packages, install_packages

__all__ = ["RUN", "LabProcesses", "install_podman", "layers_held", "running", "web_image"]

RUN = "/usr/bin/podman run --rm --pull=never --network=host --cgroups=disabled"
"""How containers are run on a lab host; an image and a command follow."""

_PROGRAM = "/usr/bin/podman"
_STORAGE = """\
[storage]
driver = "vfs"
runroot = "/run/containers/storage"
graphroot = "/var/lib/containers/storage"
"""
_CONTAINERS = "[containers]\nkeyring = false\n"
# The first process of a container has no default for SIGTERM, so one that stops has a trap.
_SERVE = """\
#!/bin/sh
trap 'exit 0' TERM
busybox httpd -f -p "$1" -h /www &
wait
"""


def install_podman(host: LabHost) -> None:
    """Install podman with crun, set up for a lab host."""
    install_packages(host, "podman", "crun")
    host.write("/etc/containers/storage.conf", _STORAGE)
    host.write("/etc/containers/containers.conf", _CONTAINERS)


def web_image(text: str) -> ImageFile:
    """Return an image that serves a text: `/bin/serve PORT`. All share their lowest layer."""
    page = layer_of(**{"www/index.html": text.encode()})
    return ImageFile(layers=[_base(), page], compression="none")


@contextmanager
def running(host: LabHost, image: str) -> Iterator[int]:
    """Run a container of an image, apart from every unit; yield its first process, as inside."""
    # What nsenter leaves as the working folder is outside of the host: conmon needs one.
    asked = f"env --chdir=/ {RUN} --detach {image} /bin/serve 8999"
    name = host.run(*asked.split(), timeout_s=60).stdout.split()[-1]
    shown = host.run(_PROGRAM, "container", "inspect", "--format={{.State.Pid}}", name)
    try:
        yield int(shown.stdout)
    finally:
        host.run(_PROGRAM, "stop", name, timeout_s=60)
        wait_until(
            lambda: not host.run(_PROGRAM, "ps", "--all", "--quiet").stdout.strip(),
            timeout_s=30,
            what="the container is gone",
        )


class LabProcesses:
    """The processes of a lab host, as far as an engine needs them. Implements `Processes`."""

    def __init__(self, host: LabHost) -> None:
        self._host = host

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_ms: int,
        folder: str = "/",
        environment: Mapping[str, str] = CLEAN_ENVIRONMENT,
        on_start: Callable[[ProcessFacts], None] | None = None,
        own_group: bool = True,
    ) -> Completed:
        """Run a program inside to its end. Source: `Processes.run`."""
        del on_start, own_group
        clean = ("env", "-i", f"--chdir={folder}", *(f"{k}={v}" for k, v in environment.items()))
        done = self._host.run(*clean, *argv, timeout_s=timeout_ms / 1000, check=False)
        return Completed(exit_code=done.returncode, output=done.stdout + done.stderr)

    def start_detached(self, argv: Sequence[str], *, log: str) -> ProcessFacts:
        """Nothing of an engine is detached. Source: `Processes.start_detached`."""
        raise AssertionError((argv, log))

    def facts(self, pid: int) -> ProcessFacts | None:
        """Nothing is looked at from outside. Source: `Processes.facts`."""
        raise AssertionError(pid)

    def all_pids(self) -> list[int]:
        """Nothing is looked at from outside. Source: `Processes.all_pids`."""
        raise AssertionError


def layers_held(host: LabHost) -> int:
    """Return how many layers of images podman has in its store; those of containers don't count."""
    store = host.path("/var/lib/containers/storage/vfs-layers/layers.json")
    return sum("diff-digest" in layer for layer in json.loads(store.read_text()))


def _base() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name in ("bin", "dev", "etc", "proc", "sys", "tmp", "www"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(folder)
        for name, data in (("bin/busybox", _busybox()), ("bin/serve", _SERVE.encode())):
            program = tarfile.TarInfo(name)
            program.size, program.mode = len(data), 0o755
            archive.addfile(program, io.BytesIO(data))
        shell = tarfile.TarInfo("bin/sh")
        shell.type, shell.linkname = tarfile.SYMTYPE, "busybox"
        archive.addfile(shell)
    return stream.getvalue()


def _busybox() -> bytes:
    folder = fetch_packages("busybox-static")
    program = folder / "unpacked/bin/busybox"
    if not program.exists():
        (deb,) = folder.glob("busybox-static_*.deb")
        subprocess.run(
            ["dpkg-deb", "--extract", str(deb), str(Path(folder) / "unpacked")], check=True
        )
    return program.read_bytes()
