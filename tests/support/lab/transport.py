"""The OpenSSH of this machine as a way to a lab host, without the product's own transport."""

import shlex
import subprocess
from collections.abc import Sequence

from capsule.transport.base import Limits
from capsule.transport.local import HOST_ENVIRONMENT
from capsule.transport.process import ProcessChannel
from support.lab.host import LabHost

__all__ = ["SshTransport"]


class SshTransport:
    """Run host programs over SSH as root; implements `Transport`."""

    root = ""

    def __init__(self, host: LabHost) -> None:
        self._host = host
        self.place = host.address

    def open(self, argv: Sequence[str], *, limits: Limits) -> ProcessChannel:
        """Start `argv` on the host with a fixed environment."""
        clean = ["env", "-i", *(f"{name}={value}" for name, value in HOST_ENVIRONMENT.items())]
        process = subprocess.Popen(
            # sshd hands one string to a shell: joined once, by the one quoting function.
            self._host.ssh(shlex.join([*clean, *argv])),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        return ProcessChannel(process, place=self.place, limits=limits)
