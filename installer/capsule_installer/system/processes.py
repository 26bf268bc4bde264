"""Processes of this host: start, bound, look at and end them.

The only module of the host program that starts processes. Every start has an argv list, a scrubbed
environment and a limit. A process is named by pid *and* start time, because pids are reused.
"""

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from capsule_manifest.errors import Failed

__all__ = [
    "CLEAN_ENVIRONMENT",
    "Completed",
    "ProcessFacts",
    "Processes",
    "RealProcesses",
    "control_group",
    "descendants",
]

CLEAN_ENVIRONMENT: Final[Mapping[str, str]] = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C.UTF-8",
}
_OUTPUT_BYTES_MAX = 64 * 1024
# A program that starts with one line on its standard input, and ends when that closes instead.
_WAITS: Final = ("sh", "-c", 'read -r go && exec "$@" < /dev/null', "sh")


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A process that ended. `output` is the end of its stdout and stderr."""

    exit_code: int
    output: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFacts:
    """What `/proc` says of a process. `started_ticks` is field 22 of `stat`.

    `files` are the paths that it has mapped, with its executable.
    """

    pid: int
    started_ticks: int
    cwd: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    files: frozenset[str]


class Processes(Protocol):
    """Start and look at processes."""

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
        """Run a program to its end; its whole process group is killed when the time is over.

        Without `own_group` it stays in this program's group and dies with it when the group is
        killed; only the program itself is killed when the time is over.

        With `on_start` it does nothing before that returned: whoever must be able to kill it has
        its name by then, and if this program is killed in between, it never begins.

        Raises:
            Failed: `process-timeout`, `process-not-started`.
        """
        ...

    def start_detached(self, argv: Sequence[str], *, log: str) -> ProcessFacts:
        """Start a program in a session of its own that outlives this one, output to `log`.

        Raises:
            Failed: `process-not-started`.
        """
        ...

    def facts(self, pid: int) -> ProcessFacts | None:
        """Return what `/proc` says of a live process; None when it is gone or a zombie."""
        ...

    def open_files(self, pid: int) -> frozenset[str]:
        """Return the paths that a process has open; empty when it is gone or can't be read."""
        ...

    def all_pids(self) -> list[int]:
        """Return every pid of this host."""
        ...

    def parents(self) -> Mapping[int, int]:
        """Return every pid of this host with its parent's."""
        ...

    def is_busy(self) -> bool:
        """Say whether less than half of this machine's processors are idle."""
        ...


class RealProcesses:
    """The processes of this machine."""

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
        """Run a program to its end. Source: `Processes.run`."""
        waits = [*_WAITS, *argv] if on_start else argv
        with _start(
            waits,
            subprocess.PIPE,
            folder,
            environment,
            waits=on_start is not None,
            own_group=own_group,
        ) as process:
            try:
                if on_start is not None:
                    facts = self.facts(process.pid)
                    if facts is not None:
                        on_start(facts)
                output, _ = process.communicate(
                    b"go\n" if on_start else None, timeout=timeout_ms / 1000
                )
            except subprocess.TimeoutExpired:
                if own_group:
                    # Not the process alone: a hook's child would keep the pipe open for ever.
                    os.killpg(process.pid, signal.SIGKILL)
                else:
                    process.kill()
                process.communicate()
                raise Failed(
                    "process-timeout",
                    "a program did not end in time",
                    expected=f"within {timeout_ms} ms",
                    where=" ".join(argv),
                ) from None
        return Completed(
            exit_code=process.returncode,
            output=output[-_OUTPUT_BYTES_MAX:].decode("utf-8", "replace"),
        )

    def start_detached(self, argv: Sequence[str], *, log: str) -> ProcessFacts:
        """Start a program that outlives this one. Source: `Processes.start_detached`."""
        with open(log, "ab", buffering=0) as output:
            process = _start(argv, output.fileno(), "/", CLEAN_ENVIRONMENT, waits=False)
        started = self.facts(process.pid)
        # Not waited for on purpose: it belongs to init once this program ends.
        process.returncode = 0
        if started is None:
            raise Failed("process-not-started", "a program ended at once", where=" ".join(argv))
        return started

    def facts(self, pid: int) -> ProcessFacts | None:
        """Read `/proc`. Source: proc(5)."""
        base = f"/proc/{pid}"
        try:
            with open(f"{base}/stat", "rb") as file:
                # The name is in brackets and may hold anything, so fields count from the last one.
                fields = file.read().rpartition(b")")[2].split()
            if fields[0] in {b"Z", b"X"}:
                return None
            return ProcessFacts(
                pid=pid,
                started_ticks=int(fields[19]),
                cwd=os.readlink(f"{base}/cwd"),
                arguments=tuple(_strings(f"{base}/cmdline")),
                environment=_assignments(f"{base}/environ"),
                files=_mapped(base),
            )
        except (OSError, IndexError, ValueError):
            # It ended while we looked; a process that can't be read can't be proved either.
            return None

    def open_files(self, pid: int) -> frozenset[str]:
        """Read `/proc`. Source: proc(5), `/proc/pid/fd`."""
        found = set()
        try:
            for name in os.listdir(f"/proc/{pid}/fd"):
                with suppress(FileNotFoundError):  # closed while we looked
                    found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
        except OSError:
            return frozenset(found)
        return frozenset(found)

    def all_pids(self) -> list[int]:
        """List `/proc`."""
        return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())

    def parents(self) -> Mapping[int, int]:
        """Read `/proc`. Source: proc(5), field 4 of `stat`."""
        found = {}
        for pid in self.all_pids():
            with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
                found[pid] = int(file.read().rpartition(b")")[2].split()[1])
        return found

    def is_busy(self) -> bool:
        """Source: proc(5), `loadavg`: its fourth field counts all that run or want to, us too."""
        try:
            with open("/proc/loadavg", encoding="ascii") as file:
                others = int(file.read().split()[3].partition("/")[0]) - 1
        except (OSError, ValueError, IndexError):
            # Where it can't be known nobody waits for it.
            return False
        return 2 * others >= (os.cpu_count() or 1)


def descendants(parents: Mapping[int, int], pid: int) -> list[int]:
    """Return `pid` and all processes below it."""
    found = [pid]
    for above in found:
        found += [child for child, parent in parents.items() if parent == above]
    return found


def control_group(pid: int) -> str:
    """Return the path of a process's control group in systemd's hierarchy, "" for one that is gone.

    Source: cgroups(7), "/proc files".
    """
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="surrogateescape") as file:
            paths = {name: path.rstrip("\n") for _, name, path in
                     (line.split(":", 2) for line in file)}  # fmt: skip
    except (OSError, ValueError):
        return ""
    return paths.get("name=systemd") or paths.get("", "")


def _start(
    argv: Sequence[str],
    output: int,
    folder: str,
    environment: Mapping[str, str],
    *,
    waits: bool,
    own_group: bool = True,
) -> "subprocess.Popen[bytes]":
    try:
        return subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE if waits else subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=dict(environment),
            start_new_session=own_group,
            close_fds=True,
        )
    except OSError as error:
        raise Failed(
            "process-not-started", "a program could not be started", got=error, where=argv[0]
        ) from error


def _strings(path: str) -> list[str]:
    with open(path, "rb") as file:
        raw = file.read()
    return [item.decode("utf-8", "surrogateescape") for item in raw.split(b"\0") if item]


def _assignments(path: str) -> dict[str, str]:
    pairs = (item.partition("=") for item in _strings(path))
    return {name: value for name, _, value in pairs}


def _mapped(base: str) -> frozenset[str]:
    with open(f"{base}/maps", encoding="utf-8", errors="surrogateescape") as file:
        mapped = {line.split(maxsplit=5)[5].rstrip("\n") for line in file if line.count("/")}
    return frozenset(mapped | {os.readlink(f"{base}/exe")})
