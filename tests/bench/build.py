"""How long a build takes, beside tar and zstd over the same bytes: `./dev bench build --json`.

The release has three real wheels (numpy, scipy, ziglang: 19,000 files, 540 MB of content) and the
host program. All are fetched and locked before anything is measured. Ours is `capsule build` as a
whole process: wheels proved against lock and RECORD, installed, scanned, hashed, packed, published.

* `cold`: no capsule in the output folder, and nothing remembered of earlier builds;
* `unchanged`: the same build again;
* `one-wheel`: another commit with another version of numpy, beside the capsule of `cold`.

The peer packs the content of the capsule, unpacked as it would lie on a host, with the program zstd
at the builder's level: `tar+zstd` with one thread, which is that program's default, and
`tar+zstd-all` with as many as there are processors. It proves, hashes and keeps nothing, and what
it packs is there: `wheels+tar+zstd` begins where a build begins, and unpacks the three wheels first
with Python's zipfile. The gates are against `tar+zstd`. A build spends about 1.7 times that peer's
processor time, on two threads or more, so on a busy machine `cold` tells of the load too.

`bytes_read` is `rchar` of `/proc/PID/io`: what the process and the children it waited for got from
`read` and its kin, whether from the disk or the page cache. Maps are not in it; the builder reads
its inputs without any. Page caches are warm for everyone, runs take turns, medians are printed.
"""

import argparse
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

from capsule.builder.packer import pack_name
from capsule_manifest.pack import FRAME_LEVEL, decode_frame
from capsule_manifest.packing import PACKING_LIMITS, Content, decode_packing
from capsule_manifest.tree import content_order, decode_tree
from capsule_manifest.tree_entry import EntryKind
from support.repositories import Repository
from support.sources import DISTRIBUTIONS, ROOT

WHEELS = {"numpy": "2.2.6", "scipy": "1.15.3", "ziglang": "0.13.0.post1"}
OTHER_WHEEL = ("numpy", "2.2.5")
COLD, UNCHANGED, ONE_WHEEL = CASES = ("cold", "unchanged", "one-wheel")
TAR, TAR_ALL, WHEELS_TAR = PEERS = ("tar+zstd", "tar+zstd-all", "wheels+tar+zstd")
COLD_RATIO_MAX, UNCHANGED_RATIO_MAX = 1.25, 0.05
ONE_WHEEL_BYTES_RATIO_MAX = 4.0
"""Bytes read for another wheel beyond those of no change, over the bytes of its installed files."""

_RELEASE = """\
format = 1
product = "acme/bench"
version = "{counter}.0.0"
release_counter = {counter}
[installer]
min_version = "0.1.0"
reason = "a release of the bench"
[platforms.linux]
machine = "x86_64"
glibc = "2.36"
python = "3.11"
[components.deps]
kind = "wheels"
requirements = "requirements.lock"
[roles.web]
components = ["deps"]
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one run took."""

    seconds: float
    bytes_read: int


class BuildBench:
    """Two commits of one release, their cache, and the folders of output."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._repository = Repository(folder / "release")
        self._environment = {
            **os.environ,
            "XDG_CACHE_HOME": str(folder / "cache"),
            "PYTHONPATH": str(copied_program(folder / "program")),
        }
        self._output = folder / "out"
        self._kept = folder / "kept"
        self._tree = folder / "tree"
        self._commits: list[str] = []

    def prepare(self) -> None:
        """Fetch, lock and commit two releases; build the first, and unpack it for the peer."""
        name, version = OTHER_WHEEL
        for counter, wheels in enumerate((WHEELS, {**WHEELS, name: version}), start=1):
            text = _RELEASE.format(counter=counter)
            lock = self._locked(wheels, self._folder / "wheels" / str(counter))
            self._commits.append(self._commit(text, lock))
        self._switch(0)
        self._build()
        unpack(self._only_capsule(), self._tree)

    def runs(
        self, names: list[str], peers: list[str], runs: int
    ) -> dict[str, dict[str, list[Run]]]:
        """Return all runs by case, and by who did it."""
        found: dict[str, dict[str, list[Run]]] = {name: {} for name in names}
        for _ in range(runs):
            for name in names:
                cases: dict[str, Callable[[], Run]] = {
                    COLD: self._cold, UNCHANGED: self._unchanged, ONE_WHEEL: self._one_wheel
                }  # fmt: skip
                found[name].setdefault("ours", []).append(cases[name]())
            for peer in peers:
                run = self._by_tar(peer)
                # The peer knows no difference: it packs everything whatever changed.
                for by_who in found.values():
                    by_who.setdefault(peer, []).append(run)
        return found

    def changed_bytes(self) -> int:
        """Return the size of all installed files of the other wheel."""
        wheel = next((self._folder / "wheels" / "2").glob(f"{OTHER_WHEEL[0]}-*.whl"))
        return sum(int(size) for size in checked(
            [sys.executable, "-c", _SIZES, str(wheel)], self._environment
        ).split())  # fmt: skip

    def _locked(self, wheels: Mapping[str, str], folder: Path) -> bytes:
        wanted = [f"{name}=={version}" for name, version in wheels.items()]
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        checked([*pip, "--only-binary=:all:", "--dest", str(folder), *wanted], self._environment)
        lines = []
        for path in sorted(folder.glob("*.whl")):
            digest = checked([sys.executable, "-m", "pip", "hash", str(path)], self._environment)
            name, version = path.name.split("-")[:2]
            lines.append(f"{name}=={version} {digest.splitlines()[-1].strip()}\n")
        return "".join(lines).encode()

    def _commit(self, release: str, lock: bytes) -> str:
        self._repository.commit({"release.toml": release.encode(), "requirements.lock": lock})
        self._capsule("lock")
        return self._repository.commit()

    def _switch(self, index: int) -> None:
        self._repository.git("checkout", "--quiet", self._commits[index])

    def _cold(self) -> Run:
        self._switch(0)
        shutil.rmtree(self._output, ignore_errors=True)
        shutil.rmtree(self._remembered, ignore_errors=True)
        run = self._build()
        # Of these packs and no others: what is remembered is bound to the files themselves.
        shutil.rmtree(self._kept, ignore_errors=True)
        shutil.copytree(self._remembered, self._kept)
        return run

    def _unchanged(self) -> Run:
        self._cold_once()
        return self._build()

    def _one_wheel(self) -> Run:
        self._cold_once()
        for capsule in self._output.glob("bench-2-*.capsule"):
            shutil.rmtree(capsule)
        # What the last run of this case left behind is forgotten: only `cold` came before.
        shutil.rmtree(self._remembered)
        shutil.copytree(self._kept, self._remembered)
        self._switch(1)
        return self._build()

    @property
    def _remembered(self) -> Path:
        return self._folder / "cache" / "capsule" / "remembered"

    def _cold_once(self) -> None:
        self._switch(0)
        if not self._output.is_dir() or not self._kept.is_dir():
            self._cold()

    def _build(self) -> Run:
        return measured(self._command("build", f"--output={self._output}"), self._environment)

    def _capsule(self, *words: str) -> None:
        checked(self._command(*words), self._environment)

    def _command(self, *words: str) -> list[str]:
        release = f"--release={self._repository.folder}/release.toml"
        return [sys.executable, "-m", "capsule", words[0], release, *words[1:]]

    def _by_tar(self, peer: str) -> Run:
        threads = "-T0" if peer == TAR_ALL else "-T1"
        line = f'tar -C "$1" -cf - . | zstd -{FRAME_LEVEL} {threads} -q -c > "$2"'
        tree, target = self._tree, self._folder / "tar.zst"
        wheels: list[str] = []
        if peer == WHEELS_TAR:
            tree = self._folder / "unpacked"
            shutil.rmtree(tree, ignore_errors=True)
            wheels = [str(path) for path in (self._folder / "wheels" / "1").glob("*.whl")]
            line = f'"$3" -c "$4" "$1" "${{@:5}}" && {line}'
        words = ["bash", "-o", "pipefail", "-c", line, "tar", str(tree), str(target)]
        return measured([*words, sys.executable, _UNPACK, *wheels], self._environment)

    def _only_capsule(self) -> Path:
        [capsule] = self._output.glob("*.capsule")
        return capsule


def copied_program(folder: Path) -> Path:
    """Copy the three packages: another program remembers nothing, and an editor makes another."""
    for distribution, package in DISTRIBUTIONS.items():
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / distribution / package, folder / package, ignore=ignored)
    return folder


_UNPACK = """
import sys, zipfile
for wheel in sys.argv[2:]:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(sys.argv[1])
"""
_SIZES = """
import sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as archive:
    print(*(member.file_size for member in archive.infolist()))
"""


def measured(argv: list[str], environment: Mapping[str, str]) -> Run:
    """Run a command to its end and return its time and what it read.

    A shell waits for it, so that what it read is added to what the shell read, which is nothing.
    """
    line = """
        "$@" >/dev/null || exit 1
        while read -r name value; do
            if [ "$name" = rchar: ]; then echo "$value"; fi
        done < "/proc/$$/io"
    """
    began = time.monotonic()
    text = checked(["bash", "-c", line, "measured", *argv], environment)
    return Run(seconds=time.monotonic() - began, bytes_read=int(text))


def checked(argv: list[str], environment: Mapping[str, str]) -> str:
    """Run a command to its end and return what it prints; its errors are shown if it fails."""
    done = subprocess.run(
        argv, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def unpack(capsule: Path, folder: Path) -> None:
    """Write all files of a capsule into `folder`, by component."""
    packing = decode_packing((capsule / "packing.json").read_bytes(), limits=PACKING_LIMITS)
    for root, content in packing.contents.items():
        raw = (capsule / "trees" / root.hex()).read_bytes()
        tree = decode_tree(raw, root=root)
        objects = iter_objects(capsule, content, [size for _, size in content_order(tree)])
        contents = {digest: next(objects) for digest, _ in content_order(tree)}
        for entry in tree.entries:
            path = folder / root.hex()[:8] / entry.path
            path.parent.mkdir(parents=True, exist_ok=True)
            if entry.kind is EntryKind.FILE:
                assert entry.object is not None, "a file has content"
                path.write_bytes(contents[entry.object] if entry.size_bytes else b"")


def iter_objects(capsule: Path, content: Content, sizes: list[int]) -> Iterator[bytes]:
    """Yield the objects of a content stream in order."""
    pending = bytearray()
    frames = (
        decode_frame(raw[frame.offset : frame.offset + frame.stored_bytes], frame)
        for pack in content.packs
        for raw in [(capsule / "packs" / pack_name(pack.id)).read_bytes()]
        for frame in pack.frames
    )
    for size in sizes:
        while len(pending) < size:
            pending += next(frames)
        yield bytes(pending[:size])
        del pending[:size]


def limits(medians: Mapping[str, Mapping[str, Run]], changed_bytes: int) -> list[str]:
    """Return which gates are missed; of what was not measured, none is."""
    missed = []
    ours = {name: found["ours"] for name, found in medians.items()}
    if COLD in ours and TAR in medians[COLD]:
        ratio = ours[COLD].seconds / medians[COLD][TAR].seconds
        if ratio > COLD_RATIO_MAX:
            missed.append(f"cold: {ratio:.2f} times {TAR}, at most {COLD_RATIO_MAX}")
    if COLD in ours and UNCHANGED in ours:
        ratio = ours[UNCHANGED].seconds / ours[COLD].seconds
        if ratio > UNCHANGED_RATIO_MAX:
            missed.append(f"unchanged: {ratio:.3f} of cold, at most {UNCHANGED_RATIO_MAX}")
    if UNCHANGED in ours and ONE_WHEEL in ours:
        more = ours[ONE_WHEEL].bytes_read - ours[UNCHANGED].bytes_read
        ratio = more / changed_bytes
        if ratio > ONE_WHEEL_BYTES_RATIO_MAX:
            missed.append(
                f"one-wheel: reads {ratio:.2f} times the changed bytes, "
                f"at most {ONE_WHEEL_BYTES_RATIO_MAX}"
            )
    return missed


def median_of(runs: list[Run]) -> Run:
    """Return the medians of both."""
    return Run(
        seconds=statistics.median(run.seconds for run in runs),
        bytes_read=int(statistics.median(run.bytes_read for run in runs)),
    )


def main() -> int:
    """Measure, print, and return 1 if a gate is missed."""
    parser = argparse.ArgumentParser(prog="./dev bench build", description=__doc__)
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--cases", default=",".join(CASES), help="some of them, by commas")
    parser.add_argument("--peers", default=",".join(PEERS), help="some of them, by commas")
    parser.add_argument("--runs", type=int, default=3, help="runs of each")
    told = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="capsule-bench-") as temporary:
        bench = BuildBench(Path(temporary))
        bench.prepare()
        peers = [peer for peer in told.peers.split(",") if peer]
        found = bench.runs(told.cases.split(","), peers, told.runs)
        changed_bytes = bench.changed_bytes()
    medians = {
        name: {who: median_of(runs) for who, runs in by_who.items()}
        for name, by_who in found.items()
    }
    rows = []
    for name, by_who in medians.items():
        for metric, unit in (("seconds", "s"), ("bytes_read", "B")):
            values = {who: getattr(run, metric) for who, run in by_who.items()}
            ours = values.pop("ours")
            rows.append(
                {"case": name, "metric": metric, "unit": unit, "ours": ours, "peers": values}
            )
            print(f"{name} {metric}: ours {ours}, {values}", file=sys.stderr)
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors", file=sys.stderr)
    missed = limits(medians, changed_bytes)
    for miss in missed:
        print(f"missed: {miss}", file=sys.stderr)
    if told.json:
        print(json.dumps({"cases": rows}))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
