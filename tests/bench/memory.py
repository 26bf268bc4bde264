"""How much memory building and staging take for a capsule of two gigabytes.

    memory.py [--gib N] [--folder DIR]

Builds a release with a toolchain of N GiB, half of it random, stages it on a folder host, and
prints the peak resident size (VmHWM) of every process that took part. Ends with 1 above the gates:
200 MB for builder and controller, 150 MB for the host.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

MB = 1_000_000
GATES_MB = {"builder": 200, "controller": 200, "host": 150}
FILE_BYTES = 32 * 1024 * 1024
LARGE_BYTES = 512 * 1024 * 1024

RELEASE = """\
format = 1
product = "bench/memory"
version = "1.0.0"
release_counter = 1
[installer]
min_version = "0.1.0"
reason = "the first version that installs"
[platforms.linux]
machine = "{machine}"
glibc = "2.28"
python = "3.11"
[components.code]
kind = "source"
path = "."
include = ["release.toml"]
[components.big]
kind = "toolchain"
path = "{big}"
[roles.all]
components = ["code", "big"]
"""

FLEET = """\
format = 1
product = "bench/memory"
[fleet]
floor = 0
max_unavailable = 1
guard_min = "L0"
[nodes.n1]
local = "host"
role = "all"
platform = "linux"
lane = "a"
"""


class Peaks:
    """Watch the peak of every descendant of a process, by what it is."""

    def __init__(self, pid: int, kind: str) -> None:
        self.peaks: dict[str, int] = {}
        self._pid, self._kind = pid, kind
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> dict[str, int]:
        """Return peaks in bytes by kind of process."""
        self._end.set()
        self._thread.join()
        return self.peaks

    def _watch(self) -> None:
        while not self._end.wait(0.01):
            for pid, depth in descendants(self._pid):
                peak = high_water(pid)
                kind = self._kind if depth == 0 else self._child(pid)
                if peak:
                    self.peaks[kind] = max(self.peaks.get(kind, 0), peak)

    def _child(self, pid: int) -> str:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return "other"
        return "host" if b"/opt/capsule/" in command else "other"


def descendants(pid: int, depth: int = 0) -> Iterator[tuple[int, int]]:
    """Yield a process and all below it."""
    yield pid, depth
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:
            continue
        for child in children:
            yield from descendants(int(child), depth + 1)


def high_water(pid: int) -> int:
    """Return VmHWM in bytes, 0 when the process is gone."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def fill(folder: Path, total_bytes: int) -> None:
    """Write files until there are so many bytes, every other one random, the first one large."""
    folder.mkdir()
    rng = random.Random(1)
    written = number = 0
    while written < total_bytes:
        size = min(LARGE_BYTES if number == 0 else FILE_BYTES, total_bytes - written)
        with (folder / f"file-{number:04d}.bin").open("wb") as file:
            rest = size
            while rest:
                part = min(rest, 4 * 1024 * 1024)
                chunk = rng.randbytes(part) if number % 2 == 0 else words(rng, part)
                file.write(chunk)
                rest -= len(chunk)
        written += size
        number += 1


def words(rng: random.Random, size: int) -> bytes:
    """Return bytes that compress about tenfold and occur nowhere else."""
    line = b"%016x is a line of a file that compresses well, as most of them do\n"
    start = rng.getrandbits(60)
    count = size // len(line % 0) + 1
    return b"".join(line % (start + index) for index in range(count))[:size]


def run(kind: str, folder: Path, *arguments: str) -> tuple[float, dict[str, int]]:
    """Run one command of capsule; return how long it took and the peaks."""
    started = time.monotonic()
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
    process = subprocess.Popen(
        [sys.executable, "-m", "capsule", *arguments],
        cwd=folder / "source",
        env=environment,
        stdout=subprocess.DEVNULL,
    )
    peaks = Peaks(process.pid, kind)
    code = process.wait()
    found = peaks.stop()
    if code != 0:
        raise SystemExit(f"capsule {arguments[0]} ended with {code}")
    return time.monotonic() - started, found


def prepare(folder: Path, total_bytes: int) -> None:
    """Make the source, the keys and the trust policy."""
    for name in ("source", "host", "keys"):
        (folder / name).mkdir()
    fill(folder / "big", total_bytes)
    text = RELEASE.format(machine=os.uname().machine, big="../big")
    (folder / "source" / "release.toml").write_text(text)
    (folder / "fleet.toml").write_text(FLEET)
    for name in ("release", "route", "trust", "controller"):
        run("other", folder, "key", "generate", "--owner", name, "--out", f"../keys/{name}")
    run(
        "other", folder, "trust", "init", "--product", "bench/memory",
        "--release-key", "../keys/release.pub", "--route-key", "../keys/route.pub",
        "--trust-key", "../keys/trust.pub", "--output", "../trust.json",
    )  # fmt: skip
    run("other", folder, "lock")
    git = ["git", "-c", "user.name=bench", "-c", "user.email=bench@example.invalid"]
    for arguments in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "-m", "one"]):
        subprocess.run([*git, *arguments], cwd=folder / "source", check=True)


def measure(folder: Path, total_bytes: int) -> dict[str, int]:
    """Build and stage; print times; return all peaks."""
    prepare(folder, total_bytes)
    took, built = run("builder", folder, "build", "--key", "../keys/release", "--output", "../out")
    print(f"built {total_bytes / 1e9:.2f} GB in {took:.1f} s", flush=True)
    (capsule,) = (folder / "out").glob("*.capsule")
    took, staged = run(
        "controller", folder, "stage", str(capsule), "--lane", "all", "--fleet", "../fleet.toml",
        "--policy", "../trust.json", "--route-key", "../keys/route",
        "--controller-key", "../keys/controller",
    )  # fmt: skip
    print(f"staged in {took:.1f} s", flush=True)
    return {**built, **staged}


def main() -> int:
    """Measure, print, compare with the gates."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="capsule-memory-", dir=options.folder))
    try:
        peaks = measure(folder, int(options.gib * 1024**3))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    failed = False
    for kind, gate in GATES_MB.items():
        peak_mb = peaks.get(kind, 0) / MB
        failed |= not 0 < peak_mb <= gate
        print(f"{kind}: peak {peak_mb:.0f} MB, gate {gate} MB")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
