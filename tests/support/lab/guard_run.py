"""Prepare a lab host for the cases of the guard, and run them on it."""

import json
import subprocess
from collections.abc import Iterator

from support.lab.host import LabHost
from support.lab.installs import InstallHost
from support.lab.packages import install_packages

__all__ = ["ready_host", "run_cases"]

_PACKAGES = ("at", "cron", "curl")
_SERVICES = ("atd.service", "cron.service")


def ready_host(host: LabHost) -> None:
    """Put the program on the host, and the tools that try to leave."""
    InstallHost(host=host).put_program()
    # dpkg wants it configured before it unpacks cron.
    install_packages(host, "cron-daemon-common")
    install_packages(host, *_PACKAGES)
    host.run("systemctl", "start", *_SERVICES)


def run_cases(host: LabHost, *cases: str) -> Iterator[dict[str, str]]:
    """Run cases on a host that is ready, all without a name; yield each row as it comes.

    Raises:
        AssertionError: they broke off; what they said is in its text.
    """
    argv = host.inside("python3", "-m", "support.lab.guard_host", host.address, *cases)
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            found: dict[str, str] = json.loads(line)
            yield found
    assert process.returncode == 0, f"the cases broke off with {process.returncode}"
