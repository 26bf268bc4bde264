"""How long staging takes, beside what people use instead: `./dev bench stage --json`.

The unpacked numpy and ziglang wheels, about 1,000 and 18,000 files, go to one lab host over SSH,
onto ext4 with a journal. Ours is `capsule stage` as a whole process: hello, signatures, frames
verified, objects stored, a generation realised and made durable, a receipt checked and kept. The
host program is there before, as the peers' programs are. The peers verify nothing and sync nothing.

* `tar+zstd+ssh`: tar through zstd at level 3 on both sides, one connection;
* `rsync`: archive mode over the same SSH;
* `fabric-put`: one SFTP upload a file over one open connection, as Fabric's `put` does it.

`bytes` is what the host's network interface received and sent. Every run starts from one state:
what is to be sent lies on the disk and not in memory, and the programs of all have run before.
`--json` prints `{"cases": [{"case", "metric", "unit", "ours", "peers",
"spread", "load"}]}`: medians of the runs, the least and the most of each, and the load of this
machine when the case ended. Fabric is run once if that takes more than a minute. Needs root.
"""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fabric import Connection  # type: ignore[import-untyped]

from support.lab.command_line import CommandLine, Node
from support.lab.commands import LabError, command
from support.lab.delay import DelayProxy
from support.lab.fleet import Lab
from support.lab.host import LabHost

RTT_S = 0.020
WHEELS = {1000: "numpy==2.2.6", 18000: "ziglang==0.13.0.post1"}
CASES = {
    "first-1000-0ms": (1000, 0.0, False),
    "first-1000-20ms": (1000, RTT_S, False),
    "first-18000-0ms": (18000, 0.0, False),
    "no-change-18000": (18000, 0.0, True),
}
TAR, RSYNC, FABRIC = PEERS = ("tar+zstd+ssh", "rsync", "fabric-put")
STATE = ("/opt/capsule", "/var/lib/capsule", "/etc/capsule")
DESTINATION = "/srv/peer"
KEPT = "/srv/kept"
HOST_PACKAGES = ("rsync",)
SLOW_S = 60.0
TAR_RATIO_MAX, RSYNC_RATIO_MAX, NO_CHANGE_RATIO_MAX = 1.15, 1.0, 1.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How the host is reached in one case."""

    host: LabHost
    address: str
    port: int

    @property
    def ssh(self) -> list[str]:
        """Return the OpenSSH command that ends before the remote command, key pinned."""
        known = self.host.path("/").parent / f"known-{self.port}"
        known.write_text(
            f"[{self.address}]:{self.port} {self.host.host_key}\n"
            f"{self.address} {self.host.host_key}\n"
        )
        options = ("BatchMode=yes", "IdentitiesOnly=yes", f"UserKnownHostsFile={known}")
        flags = [word for option in options for word in ("-o", option)]
        ciphers = ["-c", "aes128-gcm@openssh.com"]  # the one that the product asks for first
        return ["ssh", "-F", "none", *flags, *ciphers, "-i", str(self.host.client_key),
                "-p", str(self.port)]  # fmt: skip

    @property
    def target(self) -> str:
        """Return user and address."""
        return f"root@{self.address}"


class StageBench:
    """One host, the capsules on this machine, and the states that runs start from."""

    def __init__(self, host: LabHost, folder: Path) -> None:
        self._host = host
        self._folder = folder
        self._line = CommandLine(folder / "controller", host.client_key)
        self._capsules: dict[int, tuple[Path, Path]] = {}

    def prepare(self, sizes: set[int]) -> None:
        """Install the peers on the host, meet it, and build the capsules that are needed."""
        for package in HOST_PACKAGES:
            put_package(self._host, package)
        hello = self._line.build_files(1, {"hello": b"hello\n"})
        for counter, size in enumerate(sorted(sizes), start=2):
            self._capsules[size] = self._line.build_wheel(counter, WHEELS[size])
        runtimes = {
            runtime_of(built) for built in (hello, *(c for c, _ in self._capsules.values()))
        }
        if len(runtimes) > 1:
            message = "the host program changed while capsules were built; run it again"
            raise LabError(message)
        self._aim(Way(host=self._host, address=self._host.address, port=22))
        self._line.stage(hello)
        self._save("first")

    def case(
        self, name: str, peers: tuple[str, ...], runs: int
    ) -> dict[str, dict[str, list[float]]]:
        """Return seconds and bytes of every run, by who did it."""
        size, rtt_s, repeated = CASES[name]
        capsule, tree = self._capsules[size]
        found: dict[str, dict[str, list[float]]] = {}
        with self._way(rtt_s) as way:
            self._aim(way)
            ways: dict[str, Callable[[], None]] = {
                "ours": lambda: self._ours(capsule),
                TAR: lambda: by_tar(way, tree),
                RSYNC: lambda: by_rsync(way, tree),
                FABRIC: lambda: by_fabric(way, tree),
            }
            for who in ("ours", *peers):
                self._fresh()
                if repeated:
                    ways[who]()
                for _ in range(runs):
                    if not repeated:
                        self._fresh()
                    evict(capsule, tree)
                    seconds, size_bytes = self._measured(ways[who])
                    one = found.setdefault(who, {"seconds": [], "bytes": []})
                    one["seconds"].append(seconds)
                    one["bytes"].append(size_bytes)
                    if who == FABRIC and seconds > SLOW_S:
                        # Its distance is what matters; no gate asks for its median.
                        break
        return found

    def _ours(self, capsule: Path) -> None:
        self._line.stage(capsule)

    @contextlib.contextmanager
    def _way(self, rtt_s: float) -> Iterator[Way]:
        if not rtt_s:
            yield Way(host=self._host, address=self._host.address, port=22)
            return
        with DelayProxy((self._host.address, 22), delay_s=rtt_s / 2) as proxy:
            yield Way(host=self._host, address="127.0.0.1", port=proxy.port)

    def _aim(self, way: Way) -> None:
        self._line.write_fleet([Node(
            name="n1", address=way.address, port=way.port, host_key=self._host.host_key, lane="a"
        )])  # fmt: skip

    def _measured(self, work: Callable[[], None]) -> tuple[float, float]:
        before = wire_bytes(self._host)
        began = time.monotonic()
        work()
        seconds = time.monotonic() - began
        return seconds, wire_bytes(self._host) - before

    def _save(self, name: str) -> None:
        """Keep the state of host and controller; the host's is small at this point."""
        self._host.run("sh", "-c", f"mkdir -p {KEPT} && cp -a --parents {' '.join(STATE)} {KEPT}")
        shutil.copytree(self._line.home, self._folder / name)

    def _fresh(self) -> None:
        """Bring host and controller back to the state of the first contact."""
        everything = " ".join((*STATE, DESTINATION))
        script = f"rm -rf {everything} && cp -a {KEPT}/* / && mkdir -p {DESTINATION}"
        self._host.run("sh", "-c", script, timeout_s=120)
        shutil.rmtree(self._line.home)
        shutil.copytree(self._folder / "first", self._line.home)


def evict(*folders: Path) -> None:
    """Make everything durable, and let go of what the kernel keeps in memory of these folders.

    Source: posix_fadvise(2); pages that wait for the disk would stay.
    """
    command("sync")
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                with path.open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def by_tar(way: Way, tree: Path) -> None:
    """Send a tree as one compressed stream."""
    far = f"zstd -dc | tar -xf - -C {DESTINATION}"
    line = f'tar -C "$1" -cf - . | zstd -3 -q -c | {" ".join(way.ssh)} {way.target} "{far}"'
    checked(["bash", "-o", "pipefail", "-c", line, "tar", str(tree)])


def by_rsync(way: Way, tree: Path) -> None:
    """Send a tree with rsync."""
    shell = " ".join(way.ssh)
    checked(["rsync", "-a", "--delete", "-e", shell, f"{tree}/", f"{way.target}:{DESTINATION}/"])


def by_fabric(way: Way, tree: Path) -> None:
    """Send a tree with one upload a file."""
    keys = {"key_filename": str(way.host.client_key), "look_for_keys": False, "allow_agent": False}
    with Connection(way.address, user="root", port=way.port, connect_kwargs=keys) as connection:
        sftp = connection.sftp()
        for path in sorted(tree.rglob("*")):
            target = f"{DESTINATION}/{path.relative_to(tree)}"
            if path.is_dir():
                sftp.mkdir(target)
            else:
                connection.put(str(path), target)


def runtime_of(capsule: Path) -> str:
    """Return the tree of a capsule's host program."""
    components = json.loads((capsule / "capsule.json").read_bytes())["components"]
    [tree] = [one["tree"] for one in components if one["kind"] == "runtime"]
    return str(tree)


def checked(argv: list[str]) -> None:
    """Run a command to its end; what it says on its error output is shown when it fails."""
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode(errors="backslashreplace")


def put_package(host: LabHost, package: str) -> None:
    """Copy a program of this machine, with the libraries that it needs, to the host."""
    program = shutil.which(package)
    if program is None:
        command(
            "apt-get", "-qq", "install", "-y", "--no-install-recommends", package, timeout_s=300
        )
        program = shutil.which(package)
    assert program is not None, package
    for line in command("ldd", program).stdout.splitlines():
        library = next((word for word in line.split() if word.startswith("/")), None)
        if library is not None and not host.path(library).exists():
            host.write(library, Path(library).read_bytes(), 0o755)
    host.write(program, Path(program).read_bytes(), 0o755)


def wire_bytes(host: LabHost) -> int:
    """Return what the host's interface has received and sent since its boot."""
    lines = Path(f"/proc/{host.pid}/net/dev").read_text().splitlines()
    [fields] = [line.split(":")[1].split() for line in lines if line.strip().startswith("host0:")]
    return int(fields[0]) + int(fields[8])


def limits(case: str, ours: float, peers: Mapping[str, float]) -> list[str]:
    """Return which gates a case misses; a peer that was left out has none."""
    repeated = CASES[case][2]
    gates = {RSYNC: NO_CHANGE_RATIO_MAX if repeated else RSYNC_RATIO_MAX}
    gates |= {} if repeated else {TAR: TAR_RATIO_MAX}
    return [
        f"{case}: {ours / peers[peer]:.2f} times {peer}, at most {ratio}"
        for peer, ratio in gates.items()
        if peer in peers and ours > peers[peer] * ratio
    ]


def rows_of(case: str, found: Mapping[str, Mapping[str, list[float]]]) -> list[dict[str, Any]]:
    """Return the row of the seconds of a case, and that of its bytes."""
    rows = []
    for metric, unit in (("seconds", "s"), ("bytes", "B")):
        peers = {who: statistics.median(one[metric]) for who, one in found.items()}
        row = {"case": case, "metric": metric, "unit": unit, "ours": peers.pop("ours")}
        spread = {who: [min(one[metric]), max(one[metric])] for who, one in found.items()}
        load = round(os.getloadavg()[0], 1)
        rows.append({**row, "peers": peers, "spread": spread, "load": load})
    return rows


def main() -> int:
    """Measure, print, and return 1 if a gate is missed."""
    parser = argparse.ArgumentParser(prog="./dev bench stage", description=__doc__)
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--cases", default=",".join(CASES), help="some of them, by commas")
    parser.add_argument("--peers", default=",".join(PEERS), help="some of them, by commas")
    parser.add_argument("--runs", type=int, default=5, help="runs of each")
    told = parser.parse_args()
    names = told.cases.split(",")
    rows, missed = [], []
    folder = Path(tempfile.mkdtemp(prefix="capsule-bench-"))
    try:
        with Lab.open() as lab:
            bench = StageBench(lab.new_host(), folder)
            bench.prepare({CASES[name][0] for name in names})
            for name in names:
                found = bench.case(name, tuple(told.peers.split(",")), told.runs)
                new = rows_of(name, found)
                rows += new
                for row in new:
                    print(json.dumps(row), file=sys.stderr)
                missed += limits(name, new[0]["ours"], new[0]["peers"])
    finally:
        shutil.rmtree(folder)
    for miss in missed:
        print(f"missed: {miss}", file=sys.stderr)
    if told.json:
        print(json.dumps({"cases": rows}))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
