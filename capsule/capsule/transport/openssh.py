"""SSH by the OpenSSH client: one process a channel, for streams of any length.

Everything the client is told comes from the route's entry, through a configuration and pins of its
own in a private folder that is gone once the program runs. `open` returns when the program is
about to start on the host: until then nothing was done there, so being turned away by a busy host
is retried here. Nothing is retried later.
"""

import os
import secrets
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from capsule.transport.base import Ended, Limits
from capsule.transport.handshakes import Handshakes, with_retries
from capsule.transport.process import ProcessChannel
from capsule.transport.ssh_entry import (
    Access,
    Timing,
    alias,
    check_hops,
    client_config,
    known_hosts,
    remote_command,
)
from capsule.transport.ssh_failures import RETRYABLE, lost, start_failure
from capsule_manifest.errors import Failed
from capsule_manifest.route import Endpoint

__all__ = ["OpensshChannel", "OpensshTransport"]

_EXIT_CLIENT: Final = 255
_MARK_BYTES: Final = 16


class OpensshChannel(ProcessChannel):
    """A channel over an `ssh` process; implements `Channel`."""

    def __init__(self, process: "subprocess.Popen[bytes]", *, place: str, limits: Limits) -> None:
        # Ending the client early is what closes the pipes on the host: waiting would not help.
        super().__init__(process, place=place, limits=limits, grace_s=0.0)
        self._where = place

    def wait(self) -> Ended:
        """Discard further output, wait for the end and say how it was.

        Raises:
            Failed: `transport-deadline`, `connection-lost`.
        """
        ended = super().wait()
        if ended.exit_code == _EXIT_CLIENT or ended.exit_code < 0:
            raise lost(ended.stderr_tail, place=self._where)
        return ended


class OpensshTransport:
    """Run host programs over SSH; implements `Transport`. One process and handshake a channel."""

    root = ""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        access: Access,
        handshakes: Handshakes,
        timing: Timing = Timing(),  # noqa: B008 - frozen
    ) -> None:
        """Take the way from `endpoint`; nothing is connected yet.

        Raises:
            Refused: `endpoint-invalid`.
        """
        self.place = f"{endpoint.user or 'root'}@{endpoint.address}:{endpoint.port}"
        self._hops = check_hops(endpoint, self.place)
        self._access = access
        self._handshakes = handshakes
        self._timing = timing
        self._start_s = timing.total_s(len(self._hops))

    def open(self, argv: Sequence[str], *, limits: Limits) -> OpensshChannel:
        """Connect, and start `argv` on the host without a shell between.

        Raises:
            Failed: `host-unreachable`, `ssh-connect-deadline`, `ssh-start-deadline`,
                `ssh-throttled` after three attempts, `ssh-banner-invalid`, `ssh-jump-refused`,
                `ssh-start-failed`.
            Refused: `host-key-changed`, `ssh-auth-refused`, `sudo-refused`.
        """
        return with_retries(lambda: self._attempt(argv, limits), retryable=RETRYABLE)

    def _attempt(self, argv: Sequence[str], limits: Limits) -> OpensshChannel:
        mark = secrets.token_hex(_MARK_BYTES)
        command = remote_command(argv, user=self._hops[-1].user, limits=limits, mark=mark)
        with (
            self._handshakes.slot(self._hops),
            tempfile.TemporaryDirectory(prefix="capsule-ssh-") as folder,
        ):
            self._write_configuration(Path(folder))
            channel = self._start(folder, command)
            try:
                self._await_mark(channel, f"{mark}\n".encode(), limits)
            except BaseException:
                channel.__exit__(None, None, None)
                raise
        return channel

    def _write_configuration(self, folder: Path) -> None:
        (folder / "config").write_text(
            client_config(self._hops, self._access, timing=self._timing, folder=str(folder)),
            encoding="utf-8",
        )
        for index, hop in enumerate(self._hops):
            (folder / f"known-{index}").write_text(known_hosts(hop), encoding="utf-8")

    def _start(self, folder: str, command: str) -> OpensshChannel:
        target = alias(len(self._hops) - 1)
        try:
            process = subprocess.Popen(
                ["ssh", "-F", f"{folder}/config", "-T", target, command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=_environment(),
                cwd="/",
                bufsize=0,
                # Its own group, so that the clients of jump hosts end with it.
                start_new_session=True,
                umask=0o077,
            )
        except OSError as error:
            raise Failed(
                "ssh-client-missing",
                "no SSH client can be started on this machine",
                expected="ssh of OpenSSH in PATH",
                got=error.strerror or "",
                where=self.place,
            ) from error
        start = Limits(total_s=self._start_s, idle_s=self._start_s)
        return OpensshChannel(process, place=self.place, limits=start)

    def _await_mark(self, channel: OpensshChannel, mark: bytes, limits: Limits) -> None:
        try:
            if channel.skip_past(mark, limits=limits) is not None:
                return
            ended = ProcessChannel.wait(channel)
        except Failed as error:
            if error.error_id != "transport-deadline":
                raise
            raise Failed(
                "ssh-start-deadline",
                "a host was connected to, but did not start the program in time",
                expected=f"a start within {self._start_s:g} s",
                got=channel.stderr_tail().strip(),
                where=self.place,
                retryable=True,
            ) from error
        raise start_failure(
            ended.stderr_tail,
            noise=channel.noise(),
            exit_code=ended.exit_code,
            place=self.place,
        )


def _environment() -> Mapping[str, str]:
    """Return what the client may know of this machine: where programs are, and plain English."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
