"""A real sshd on loopback with a key of its own, for one test; needs no rights and no lab."""

import getpass
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from capsule.transport.ssh_entry import Access
from capsule_manifest.route import CA_MARK, Endpoint, Hop

__all__ = ["SSHD", "Keys", "SshServer", "talking_port"]

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
_READY_S = 20.0


class Keys:
    """Key pairs below `folder`, made when they are asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "keys"
        self._folder.mkdir(parents=True, exist_ok=True)

    def private(self, name: str) -> Path:
        """Return the private key called `name`."""
        path = self._folder / name
        if not path.exists():
            make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)]
            subprocess.run(make, check=True, stdin=subprocess.DEVNULL)
        return path

    def public(self, name: str) -> str:
        """Return the public key called `name`, as a route pins it."""
        words = self.private(name).with_suffix(".pub").read_text().split()
        return " ".join(words[:2])

    def certify(self, name: str, *, authority: str, principal: str) -> None:
        """Let `authority` say that the host key `name` belongs to `principal`."""
        sign = ["ssh-keygen", "-q", "-s", str(self.private(authority)), "-I", name, "-h"]
        public = str(self.private(name).with_suffix(".pub"))
        subprocess.run([*sign, "-n", principal, public], check=True)

    def access(self, name: str = "client") -> Access:
        """Return how a controller with the key `name` logs in."""
        return Access(identity=str(self.private(name)))


class SshServer:
    """One sshd. Use as a context; `settings` are lines of sshd_config."""

    def __init__(
        self,
        folder: Path,
        keys: Keys,
        *,
        settings: tuple[str, ...] = (),
        start_up: str = "",
        host_key: str = "host",
        certified: bool = False,
        listen: str = "127.0.0.1",
    ) -> None:
        assert SSHD is not None
        self.folder, self.keys, self.host_key = folder, keys, host_key
        self.user = getpass.getuser()
        self.port = _free_port()
        self.log = folder / "sshd.log"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".bashrc").write_text(start_up)
        (folder / "authorized_keys").write_text(keys.public("client") + "\n")
        self._settings = [
            f"Port {self.port}",
            f"ListenAddress {listen}",
            f"HostKey {keys.private(host_key)}",
            f"AuthorizedKeysFile {folder}/authorized_keys",
            f"PidFile {folder}/pid",
            "StrictModes no",
            "UsePAM no",
            "PasswordAuthentication no",
            "LogLevel VERBOSE",
            *settings,
            f"SetEnv HOME={folder}",
        ]
        if certified:
            self._settings.append(f"HostCertificate {keys.private(host_key)}-cert.pub")

    def endpoint(self, **changes: object) -> Endpoint:
        """Return the endpoint that leads here."""
        values = {
            "kind": "ssh",
            "address": "127.0.0.1",
            "port": self.port,
            "user": self.user,
            "host_key": self.keys.public(self.host_key),
        }
        return Endpoint(**{**values, **changes})  # type: ignore[arg-type]

    def hop(self) -> Hop:
        """Return this host as one to go through."""
        return Hop(
            address="127.0.0.1",
            port=self.port,
            user=self.user,
            host_key=self.keys.public(self.host_key),
        )

    def authority_pin(self, authority: str) -> str:
        """Return the pin of an authority instead of a key."""
        return CA_MARK + self.keys.public(authority)

    def processes(self) -> list[int]:
        """Return the server and all that it started, itself first."""
        found = [self._process.pid]
        for parent in found:
            for thread in Path(f"/proc/{parent}/task").glob("*/children"):
                with suppress(OSError):
                    found += [int(word) for word in thread.read_text().split()]
        return found

    def freeze(self) -> None:
        """Stop the server and every session where it stands."""
        for process in self.processes():
            os.kill(process, signal.SIGSTOP)

    def cut(self) -> None:
        """End every session at once, and leave the server."""
        sessions = self.processes()[1:]
        # The server's own ends first, and none runs on meanwhile: one that sees its program killed
        # would still tell the exit code, which is no cut.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for process in sessions:
                with suppress(ProcessLookupError):
                    os.kill(process, number)

    def handshakes(self) -> int:
        """Return how often somebody has logged in."""
        return len(re.findall(r"Accepted publickey", self.log.read_text()))

    def __enter__(self) -> Self:
        """Start the server and wait until it greets."""
        (self.folder / "sshd_config").write_text("\n".join(self._settings) + "\n")
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        command = [str(SSHD), "-D", "-E", str(self.log), "-f", str(self.folder / "sshd_config")]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + _READY_S
        while not self._greets():
            assert self._process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, "sshd does not greet"
            time.sleep(0.02)
        return self

    def __exit__(self, *_: object) -> None:
        """End the server and every session."""
        for process in reversed(self.processes()):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._process.wait()

    def _greets(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as there:
            return there.recv(4) == b"SSH-"
        return False


@contextmanager
def talking_port(words: bytes) -> Iterator[int]:
    """Listen on a port that accepts, says `words` and then nothing any more."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        held: list[socket.socket] = []

        def serve() -> None:
            with suppress(OSError):
                while True:
                    there, _ = server.accept()
                    held.append(there)
                    with suppress(OSError):
                        there.sendall(words)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            for there in held:
                there.close()
            thread.join(5)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
