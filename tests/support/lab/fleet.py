"""A run of the lab: some hosts, one network, one client key, taken down as a whole.

Every run has a number of its own, 1 to 250, which is in the name of everything that it makes. A
run belongs to the process that opened it, or to nobody (`./dev lab up`): what a crashed process
left behind is taken down by the next one that opens a run, or by `./dev lab down`.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from support.lab.base import base_tree, cache_folder
from support.lab.commands import LabError, command, installed
from support.lab.host import DISK_BYTES, DISK_INODES, LabHost
from support.lab.network import HOSTS_MAX, Network

__all__ = ["Lab"]

_RUNS_MAX = 250
_BOOTS_AT_ONCE = 8
_INOTIFY_INSTANCES = 1024  # at the default of 128 only some 20 hosts boot


class Lab:
    """One run. Use as a context manager; or `keep` one, and find it again with `kept`."""

    def __init__(self, run: int) -> None:
        self.run = run
        self.folder = _runs() / str(run)
        self.network = Network(run)
        self.client_key = self.folder / "client_key"

    @classmethod
    def open(cls) -> Self:
        """Begin a run that belongs to this process, after taking down what crashed ones left."""
        return cls._begin(owner=os.getpid())

    @classmethod
    def keep(cls) -> Self:
        """Return the run that belongs to nobody, beginning it when there is none."""
        return cls.kept() or cls._begin(owner=None)

    @classmethod
    def kept(cls) -> Self | None:
        """Return the run that belongs to nobody; None when there is none."""
        for run in _numbers():
            if _owner(run) is None and (_runs() / str(run) / "run.json").exists():
                return cls(run)
        return None

    @classmethod
    def left_behind(cls) -> list[Self]:
        """Return the runs whose process was killed before it took them down."""
        with _locked():  # a run that has just begun has no owner yet
            return cls._left_behind()

    @classmethod
    def _left_behind(cls) -> list[Self]:
        return [cls(run) for run in _numbers() if _is_left_behind(run)]

    @classmethod
    def _begin(cls, *, owner: int | None) -> Self:
        installed()
        base_tree()
        with _locked():
            _share_mounts()
            for left in cls._left_behind():
                left._remove()
            taken = set(_numbers())
            free = (
                n for n in range(1, _RUNS_MAX + 1) if n not in taken and not Network(n).exists()
            )
            lab = cls(next(free))
            lab.folder.mkdir(parents=True)
            record = {
                "owner": None if owner is None else {"pid": owner, "started": _started(owner)}
            }
            (lab.folder / "run.json").write_text(json.dumps(record))
        instances = Path("/proc/sys/fs/inotify/max_user_instances")
        if int(instances.read_text()) < _INOTIFY_INSTANCES:
            instances.write_text(str(_INOTIFY_INSTANCES))
        command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", lab.client_key)
        lab.network.up()
        return lab

    def __enter__(self) -> Self:
        """Return the run itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take the run down."""
        self.down()

    def host(self, number: int) -> LabHost:
        """Return host `number` as it is, made or not."""
        return LabHost(
            run=self.run,
            number=number,
            folder=self.folder / "hosts" / str(number),
            base=base_tree(),
            client_key=self.client_key,
        )

    def hosts(self) -> list[LabHost]:
        """Return the hosts that were made, by number."""
        return [self.host(number) for number in _numbers_in(self.folder / "hosts")]

    def new_host(self, *, disk_bytes: int = DISK_BYTES, disk_inodes: int = DISK_INODES) -> LabHost:
        """Make and boot one more host."""
        [host] = self.grow(1, disk_bytes=disk_bytes, disk_inodes=disk_inodes)
        return host

    def grow(
        self, count: int, *, disk_bytes: int = DISK_BYTES, disk_inodes: int = DISK_INODES
    ) -> list[LabHost]:
        """Make and boot more hosts, eight at a time, and return them when all greet."""
        last = max(_numbers_in(self.folder / "hosts"), default=0)
        if last + count > HOSTS_MAX:
            message = f"a run has at most {HOSTS_MAX} hosts"
            raise LabError(message)
        hosts = [self.host(last + step) for step in range(1, count + 1)]

        def make(host: LabHost) -> None:
            try:
                host.make(disk_bytes=disk_bytes, disk_inodes=disk_inodes)
            except (LabError, OSError):
                host.remove()  # a half-made host would be taken for one that is off
                raise
            host.boot()

        with ThreadPoolExecutor(_BOOTS_AT_ONCE) as pool:
            list(pool.map(make, hosts))
        return hosts

    def down(self) -> None:
        """End every process of the run and remove everything that it made; again is no error."""
        self._remove()
        with _locked():
            if not _numbers():
                _unshare_mounts()

    def _remove(self) -> None:
        for host in self.hosts():
            host.remove()
        self.network.down()
        shutil.rmtree(self.folder, ignore_errors=True)


def _runs() -> Path:
    return cache_folder() / "runs"


def _numbers() -> list[int]:
    return _numbers_in(_runs())


def _numbers_in(folder: Path) -> list[int]:
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())


@contextmanager
def _locked() -> Iterator[None]:
    _runs().mkdir(parents=True, exist_ok=True)
    # Beside the folder: a file that is open in it would keep it mounted.
    with (cache_folder() / "runs.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _share_mounts() -> None:
    """Let an unmount of one host's disk reach the name spaces of all others.

    Each nspawn begins with a copy of every mount that there is. Where mounts are private, as where
    no systemd is pid 1, a disk that was unmounted here would still be in use there.
    """
    if not _shared_mounts():
        command("mount", "--bind", _runs(), _runs())
        command("mount", "--make-shared", _runs())


def _unshare_mounts() -> None:
    """Leave no mount below the user's home, which could not be removed otherwise."""
    for _ in range(_shared_mounts()):
        command("umount", _runs(), check=False)


def _shared_mounts() -> int:
    """Return how often the folder of runs is mounted on itself."""
    # Not os.path.ismount: it can't see a folder that is mounted on itself.
    places = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return places.count(str(_runs().resolve()))


def _owner(run: int) -> dict[str, int] | None:
    try:
        record = json.loads((_runs() / str(run) / "run.json").read_text())
    except (FileNotFoundError, ValueError):
        return {"pid": 0, "started": 0}  # it crashed while it began
    owner: dict[str, int] | None = record["owner"]
    return owner


def _is_left_behind(run: int) -> bool:
    owner = _owner(run)
    return owner is not None and _started(owner["pid"]) != owner["started"]


def _started(pid: int) -> int:
    """Return when a process started, in clock ticks since boot; -1 when there is none."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    except OSError:
        return -1
