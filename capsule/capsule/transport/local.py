"""A host that is a folder of this machine: its program runs as a child process.

For trying capsule out, for tests, and for a machine that installs for itself.
"""

import os
import stat
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from capsule.transport.base import Limits
from capsule.transport.process import ProcessChannel, ended_channel
from capsule_manifest.errors import Failed

__all__ = ["HOST_ENVIRONMENT", "LocalTransport"]

HOST_ENVIRONMENT: Final[Mapping[str, str]] = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C.UTF-8",
}
"""All that a host program gets: what a person has set up for himself must not change a fleet."""


class LocalTransport:
    """Run host programs below `folder`, which must exist."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()

    @property
    def root(self) -> str:
        """Return the folder."""
        return str(self._folder)

    @property
    def place(self) -> str:
        """Return the folder."""
        return str(self._folder)

    def open(self, argv: Sequence[str], *, limits: Limits) -> ProcessChannel:
        """Start `argv` as a child process in a session of its own.

        Raises:
            Failed: `host-unreachable` when the folder is not there or no process can be started.
        """
        self._check_folder()
        try:
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=dict(HOST_ENVIRONMENT),
                cwd="/",
                bufsize=0,
                # Ctrl-C at the controller must not reach what would not hear it over a network.
                start_new_session=True,
                restore_signals=True,
                umask=0o022,
            )
        except (FileNotFoundError, NotADirectoryError):
            return ended_channel(self.place, limits)
        except OSError as error:
            raise Failed(
                "host-unreachable",
                "no process can be started for the host",
                where=self.place,
                retryable=True,
            ) from error
        return ProcessChannel(process, place=self.place, limits=limits)

    def _check_folder(self) -> None:
        try:
            status = os.lstat(self._folder)
        except OSError as error:
            raise Failed(
                "host-unreachable",
                "the host's folder is not there",
                expected="a folder that exists",
                where=self.place,
            ) from error
        if not stat.S_ISDIR(status.st_mode):
            raise Failed(
                "host-unreachable",
                "the host's folder is something else",
                expected="a folder, not a link",
                where=self.place,
            )
