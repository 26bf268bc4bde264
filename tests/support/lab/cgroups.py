"""One control group a host: what belongs to it, freezing all of it, ending all of it.

Without a group of its own, hosts share one tree, and children of units with equal names survive.
Membership is also how the lab knows which processes are its own: it ends no other.
"""

import errno
import os
import signal
import time
from pathlib import Path

from support.lab.commands import LabError, wait_until

__all__ = ["ControlGroup"]

# cpuset and devices refuse members until they are configured, and nothing here needs them.
_UNUSED = {"cpuset", "devices", "cpuset,cpu,cpuacct"}
_END_S = 10
# What a folder above the hosts' groups may say, version 1 and 2; a process weighs 1024 or 100.
_FAVOURED = {"cpu.shares": "32768", "cpu.weight": "3200"}


class ControlGroup:
    """The group of one host in every hierarchy, version 1 and 2 alike."""

    def __init__(self, name: str) -> None:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
        # The kernel orders them by mount time; version 2 knows every process and can freeze.
        self._places = [
            Path(place) / name
            for _, place, kind, options, *_ in mounts
            if kind in {"cgroup", "cgroup2"} and not _UNUSED & set(options.split(","))
        ]
        unified = [Path(place) / name for _, place, kind, *_ in mounts if kind == "cgroup2"]
        if not unified:
            message = "no version 2 control group is mounted on this machine"
            raise LabError(message)
        self._unified = unified[0]

    def make(self) -> list[Path]:
        """Make the group and return the files that a process writes its pid to, to join it."""
        for place in self._places:
            place.mkdir(parents=True, exist_ok=True)
        return [place / "cgroup.procs" for place in self._places]

    def favour(self) -> None:
        """Let the whole run have the processors before the rest of this machine.

        Without it a run of fifty hosts weighs as much as one process that is in no group.
        """
        for place in self._places:
            for name, weight in _FAVOURED.items():
                file = place.parent / name
                if file.exists():
                    file.write_text(weight)

    def members(self) -> list[int]:
        """Return the pids of every process in the group or below it."""
        found: set[int] = set()
        for folder, _, _ in os.walk(self._unified):
            try:
                found.update(
                    int(pid) for pid in (Path(folder) / "cgroup.procs").read_text().split()
                )
            except (FileNotFoundError, OSError):
                continue  # systemd inside removes its groups while we look
        return sorted(found)

    def members_of(self, unit: str) -> list[int]:
        """Return the pids of one unit of the host's systemd; none while it does not run.

        Cheap enough to be asked every millisecond: it opens two files and walks nothing.
        """
        found: list[int] = []
        for between in ("system.slice", "payload/system.slice"):
            try:
                text = (self._unified / between / unit / "cgroup.procs").read_text()
            except OSError:
                continue
            found += [int(pid) for pid in text.split()]
        return found

    def freeze(self) -> None:
        """Stop every process where it stands; the host still answers TCP, but nothing else."""
        (self._unified / "cgroup.freeze").write_text("1")
        wait_until(lambda: self.frozen, timeout_s=_END_S, what=f"{self._unified} frozen")

    def thaw(self) -> None:
        """Let every process go on."""
        if self._unified.exists():
            (self._unified / "cgroup.freeze").write_text("0")

    @property
    def frozen(self) -> bool:
        """Whether every process of the group stands still."""
        events = self._unified / "cgroup.events"
        return events.exists() and "frozen 1" in events.read_text()

    def end(self) -> None:
        """Kill every process of the group and wait until all are gone.

        Raises:
            LabError: one did not go.
        """
        self.thaw()
        deadline = time.monotonic() + _END_S
        while left := self.members():
            if time.monotonic() > deadline:
                message = f"processes did not end: {left}"
                raise LabError(message)
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.02)

    def remove(self) -> None:
        """Remove the group, the deepest folder first, and its run's folder when it was the last."""
        for place in self._places:
            for folder, _, _ in os.walk(place, topdown=False):
                _remove_empty(Path(folder))
            _remove_empty(place.parent)


def _remove_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError as error:
        if error.errno not in {errno.ENOENT, errno.EBUSY, errno.ENOTEMPTY}:
            raise
