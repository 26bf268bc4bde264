"""Stop a program of a lab host inside a step, from outside, and watch what its service starts.

The host program has no switch for tests. It is traced from one system call to the next, and its
journal is read in between: so the stop is in the step that was asked for, also when the step does
nothing and lasts no longer than two lines of the journal.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.lab.commands import LabError
from support.lab.host import LabHost
from support.lab.trace import Traced

__all__ = ["Start", "StepMissed", "Stepper", "watched_starts"]

_LOOK_S = 0.001
_TICKS_S = 0.02
_APPEARS_S = 20
_ENDS_S = 60
_OPS = "/var/lib/capsule/state/ops"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One process that a service began: what it is, and what the host's names were just then.

    `held` is whether the hold was there before it; `current` is empty when that changed since.
    """

    argv: tuple[str, ...]
    generation: str
    folder: str
    current: str
    held: bool


class StepMissed(LabError):
    """The op ended before the supervisor was seen where it should stand."""


class Stepper:
    """Follow one op of a host from outside."""

    def __init__(self, host: LabHost, op_id: str) -> None:
        self._host = host
        self._unit = f"capsule-{op_id}.service"
        self._folder = host.path(f"{_OPS}/{op_id}")
        self._sizes: tuple[int, ...] = ()
        self._started: list[str] = []

    def lines(self) -> list[dict[str, object]]:
        """Return what the op's journals say so far."""
        lines = []
        for path in self._journals():
            if path.exists():
                lines += [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
        return lines

    def has(self, name: str) -> bool:
        """Say whether a name is in the op's folder."""
        return (self._folder / name).exists()

    def is_committed(self) -> bool:
        """Say whether the op has its outcome, and it is not the prepared one that restores."""
        outcome = self._folder / "outcome"
        return outcome.exists() and not outcome.samefile(self._folder / "outcome.restoring")

    def stop_in(self, step: str, *, after_s: float = 0) -> str:
        """Let the supervisor stand `after_s` of its run into a step; return where it stands.

        Raises:
            StepMissed: the op ended without that step, or was past it by then.
        """
        traced = self._traced_until(lambda: self._last_started() == step, what=f"step {step}")
        if after_s:
            traced.run_until(lambda: self._last_started() != step, within_s=after_s)
        traced.leave_standing()
        if self._last_started() != step:
            self._go_on()
            message = f"the op was past {step} after {after_s} s of it"
            raise StepMissed(message)
        self._stand()
        return step

    def stop_when_there_is(self, name: str) -> str:
        """Let the supervisor stand when a name appears in the op's folder; return the name.

        Raises:
            StepMissed: the op ended without it.
        """
        self._traced_until(lambda: self.has(name), what=f"the name {name}").leave_standing()
        self._stand()
        return name

    def _last_started(self) -> str:
        names = self._names_started()
        return names[-1] if names else ""

    def _names_started(self) -> list[str]:
        """Return the steps that began, reading the journals only when one has grown."""
        sizes = tuple(path.stat().st_size for path in self._journals() if path.exists())
        if sizes != self._sizes:
            self._sizes = sizes
            self._started = [str(ln["name"]) for ln in self.lines() if ln["state"] == "started"]
        return self._started

    def _journals(self) -> tuple[Path, Path]:
        return self._folder / "steps", self._folder / "steps.restore"

    def _traced_until(self, condition: Callable[[], bool], *, what: str) -> Traced:
        self._await_begin()
        message = f"the op ended before {what}"
        try:
            traced = Traced(self._leader())
        except ProcessLookupError:
            raise StepMissed(message) from None
        if not traced.run_until(condition, within_s=_ENDS_S) or not condition():
            traced.leave_standing()
            self._go_on()
            raise StepMissed(f"{message}: {self.lines()}")
        return traced

    def _await_begin(self) -> None:
        """Wait for the op's first line: before it a program is loaded, thousands of calls long."""
        until = time.monotonic() + _APPEARS_S
        while not self._last_started():
            if time.monotonic() > until:
                message = "no op began"
                raise LabError(message)
            time.sleep(_LOOK_S)

    def _leader(self) -> int:
        """Return the process that systemd itself started."""
        pids = self._pids()
        for pid in pids:
            if _stat(pid)[1] not in {str(other).encode() for other in pids}:
                return pid
        raise ProcessLookupError

    def _pids(self) -> list[int]:
        return self._host.pids_of(self._unit)

    def _stand(self) -> None:
        """Stop the supervisor and what it runs, and wait until all of them stand."""
        for pid in self._pids():
            _send(pid, signal.SIGSTOP)
        while any(_runs(pid) for pid in self._pids()):
            time.sleep(0)

    def _go_on(self) -> None:
        for pid in self._pids():
            _send(pid, signal.SIGCONT)


@contextmanager
def watched_starts(host: LabHost, unit: str) -> Iterator[list[Start]]:
    """Note every process that begins in a unit, looked at from outside every millisecond."""
    starts: list[Start] = []
    ended = threading.Event()

    def watch() -> None:
        known: set[tuple[int, str]] = set()
        while not ended.wait(_LOOK_S):
            for pid in host.pids_of(unit):
                start = _look_at(host, pid)
                if start is not None and (pid, start.generation) not in known:
                    known.add((pid, start.generation))
                    starts.append(start)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield starts
    finally:
        ended.set()
        watcher.join()


def _look_at(host: LabHost, pid: int) -> Start | None:
    """Return what a process is; None before systemd has made it the service's, or when it ended."""
    try:
        proc = Path(f"/proc/{pid}")
        pairs = (item.partition("=") for item in (proc / "environ").read_text().split("\0"))
        environment = {name: value for name, _, value in pairs}
        argv = tuple((proc / "cmdline").read_text().split("\0")[:-1])
        folder = str((proc / "cwd").readlink())
        began_s = _began_s(pid)
        hold = host.path("/var/lib/capsule/hold")
        held = hold.exists() and hold.stat().st_ctime < began_s - _TICKS_S
        current = host.path("/opt/capsule/current")
        named = current.readlink().name if current.is_symlink() else "absent"
        if current.is_symlink() and current.lstat().st_ctime > began_s - _TICKS_S:
            named = ""  # it changed since, and nobody can say any more what it was
    except OSError:
        return None
    generation = environment.get("CAPSULE_GENERATION")
    if generation is None or not argv:
        return None
    return Start(argv=argv, generation=generation, folder=folder, current=named, held=held)


def _began_s(pid: int) -> float:
    """Return when a process began, as the time of files counts: seconds, to a tick of 10 ms."""
    ticks = int(_stat(pid)[19])
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _runs(pid: int) -> bool:
    try:
        return _stat(pid)[0] not in (b"T", b"Z", b"t", b"X", b"D")
    except ProcessLookupError:
        return False


def _stat(pid: int) -> list[bytes]:
    """Return the fields after the name: state, parent, and so on. Raises: ProcessLookupError."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except FileNotFoundError:
        raise ProcessLookupError from None
