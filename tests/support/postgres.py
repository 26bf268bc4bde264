"""A private PostgreSQL cluster in a folder: started, killed and ended by the test that made it."""

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

__all__ = ["Cluster", "find_server", "running_cluster"]

_WAIT_S = 60


def find_server() -> Path | None:
    """Return the folder of the newest installed server's programs."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return found[-1].parent
    initdb = shutil.which("initdb")
    return Path(initdb).parent if initdb else None


class Cluster:
    """One server on a socket in its own folder; no TCP port, no password, no other user."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs = programs
        self._folder = folder
        self._data = folder / "data"
        self._server: subprocess.Popen[bytes] | None = None
        self._databases = 0
        # The server refuses to run as root; its own account comes with the package.
        self._user = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name

    def address(self, database: str = "postgres") -> str:
        """Return the address of a database of this server."""
        return f"postgresql:///{database}?host={self._folder}&user={self._user}"

    def new_database(self) -> str:
        """Create an empty database and return its address."""
        self._databases += 1
        name = f"test{self._databases}"
        self._run(["createdb", "-h", str(self._folder), name])
        return self.address(name)

    def create(self) -> None:
        """Make the cluster and start it."""
        if os.geteuid() == 0:
            shutil.chown(self._folder, self._user)
        self._run(["initdb", "--auth=trust", "--no-sync", "--encoding=UTF8", "-D", str(self._data)])
        self.start()

    def start(self) -> None:
        """Start the server and wait until it answers."""
        # -F: the page cache outlives a killed server, and syncing it all would take the time-outs.
        argv = ["postgres", "-F", "-D", str(self._data), "-k", str(self._folder)]
        until = time.monotonic() + _WAIT_S
        ready = self._as_user(["pg_isready", "-q", "-h", str(self._folder)])
        self._server = None
        while self._server is None or subprocess.run(ready, check=False).returncode:
            assert time.monotonic() < until, "the server does not answer"
            # After a kill it ends again while processes of the killed one still have its memory.
            if self._server is None or self._server.poll() is not None:
                self._server = subprocess.Popen(
                    self._as_user([*argv, "-c", "listen_addresses="]),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            time.sleep(0.05)

    def kill(self) -> None:
        """End the server at once, as a crash does: no shutdown, recovery at the next start."""
        self._run(["pg_ctl", "stop", "-m", "immediate", "-D", str(self._data)])
        assert self._server is not None
        self._server.wait(_WAIT_S)

    def close(self) -> None:
        """End the server if it runs."""
        if self._server is not None and self._server.poll() is None:
            self.kill()

    def _run(self, argv: Sequence[str]) -> None:
        subprocess.run(self._as_user(argv), check=True, capture_output=True, timeout=2 * _WAIT_S)

    def _as_user(self, argv: Sequence[str]) -> list[str]:
        program = [str(self._programs / argv[0]), *argv[1:]]
        if os.geteuid() != 0:
            return program
        return ["setpriv", f"--reuid={self._user}", "--regid=postgres", "--init-groups", *program]


@contextmanager
def running_cluster() -> Iterator[Cluster]:
    """Start a server in a folder of its own; where there is none, skip the test."""
    programs = find_server()
    if programs is None:
        pytest.skip("not run, needs a PostgreSQL server")
    # Not below pytest's folder, which every new run makes private again: the server's own account
    # has to reach this one.
    with tempfile.TemporaryDirectory(prefix="capsule-pg-") as home:
        made = Cluster(programs, Path(home))
        try:
            made.create()
            yield made
        finally:
            made.close()
