"""Install releases on a lab host: the host program is put there, and driven from inside.

`put_program` copies the packages of this environment to the host, whose Python is of the same
minor version. The other half of this module runs on the host, as `python3 -m support.lab.installs
VERB …`, and speaks for a controller with the fixed keys of the tests.
"""

import json
import shutil
import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from capsule_installer.op.op_folder import OpFolder
from capsule_manifest.envelope import encode_record
from capsule_manifest.records import Marker
from support.lab.commands import command
from support.lab.host import LabHost
from support.staged_host import Build, StagedHost, await_true

__all__ = ["InstallHost"]

ROOT = Path(__file__).resolve().parents[3]
PORT = 8080
_SITE = "usr/local/lib/python3.11/dist-packages"
_OURS = ("installer/capsule_installer", "manifest/capsule_manifest", "tests/support")
_NEEDED = ("blake3", "cffi", "click", "cryptography", "zstandard")
_SERVE = f"exec {sys.executable} -I -S {{folder}}/app/serve.py {{port}} {{counter}}"
_BUILDS = {
    "good": {},
    # Runs for a moment, then ends, again and again: the restart counter gives it away.
    "crashing": {"argv": "/bin/sleep 0.3", "probe": False, "soak_ms": 1_000},
    "never-ready": {"argv": "/bin/sleep 1000", "start_ms": 1_000},
    "two-units": {
        "units": ("hello.service", "other.service"),
        "argv": "/bin/sleep 1000",
        "probe": False,
    },
    "configured": {"files": {"/etc/hello/hello.toml": b"as released\n"}},
    "slow-soak": {"soak_ms": 5_000},
    # Its unit changes on the disk after systemd has read it.
    "stale-unit": {
        "argv": f"/bin/sh -c 'echo >> /usr/local/lib/systemd/system/hello.service; {_SERVE}'"
    },
    # Has systemd read another file under the unit's name.
    "other-fragment": {
        "argv": "/bin/sh -c 'cp /usr/local/lib/systemd/system/hello.service /etc/systemd/system/;"
        f" systemctl daemon-reload; {_SERVE}'"
    },
    # Leaves its parent and session, and reads a file of the release before.
    "old-daemon": {
        "argv": "/bin/sh -c 'setsid tail -f /opt/capsule/generations/1-*/app/serve.py"
        f" >/dev/null 2>&1 & {_SERVE}'"
    },
    # Ignores the signal that asks it to stop, and so does its child.
    "stubborn": {
        "argv": "/bin/sh -c 'trap \"\" TERM; sleep 1000 & wait; wait'",
        "probe": False,
        "stop_ms": 1_000,
    },
}


_WATCH = """\
import socket, sys, time
port, until, every_s = int(sys.argv[1]), time.monotonic() + float(sys.argv[2]), float(sys.argv[3])
last, longest = time.monotonic(), 0.0
while time.monotonic() < until:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as link:
            link.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
            if link.recv(1):
                now = time.monotonic()
                longest, last = max(longest, now - last), now
    except OSError:
        pass
    time.sleep(every_s)
print(max(longest, time.monotonic() - last))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallHost:
    """A lab host with the host program on it, as a test sees it from outside."""

    host: LabHost

    def put_program(self) -> None:
        """Copy the host program and the tests' controller to the host."""
        site = self.host.volume.root / _SITE
        packages = Path(sysconfig.get_path("purelib"))
        ignored = shutil.ignore_patterns("__pycache__")
        for place in _OURS:
            shutil.copytree(ROOT / place, site / Path(place).name, ignore=ignored)
        for name in _NEEDED:
            shutil.copytree(packages / name, site / name, ignore=ignored)
        for library in packages.glob("_cffi_backend*.so"):
            shutil.copy2(library, site)
        # A power cut must take what the product forgot to make durable, not the program itself.
        command("sync", "--file-system", site)

    def drive(self, verb: str, *arguments: str, timeout_s: float = 60) -> dict[str, object]:
        """Run a verb of this module on the host and return what it answers."""
        argv = ("python3", "-m", "support.lab.installs", verb, *arguments)
        answer: dict[str, object] = json.loads(self.host.run(*argv, timeout_s=timeout_s).stdout)
        return answer

    def stage(self, counter: int, kind: str = "good") -> None:
        """Stage a release of the tests under a release counter."""
        self.drive("stage", str(counter), kind)

    def install(self, counter: int) -> dict[str, object]:
        """Install a staged release, confirm its proof, and return how the op ended."""
        self.begin(counter)
        return self.drive("finish", str(counter))

    def begin(
        self,
        counter: int,
        *,
        d1_ms: int = 20_000,
        d2_ms: int = 20_000,
        confirm: str = "controller",
    ) -> None:
        """Order a staged release and let the host go on by itself."""
        self.drive("begin", str(counter), str(d1_ms), str(d2_ms), confirm)

    def order(self, counter: int, kind: str, *, d2_ms: int) -> None:
        """Stage a release and order it; a good one confirms itself, and one that fails never."""
        self.drive("order", str(counter), kind, str(d2_ms))

    def judge(self, counter: int) -> dict[str, object]:
        """Wait until a release answers; return `look`, and how `boot` and `receipts` ended."""
        return self.drive("judge", str(counter))

    def look(self) -> dict[str, object]:
        """Return what is installed, what serves, whether it is held, and how ops stand."""
        return self.drive("look")

    @contextmanager
    def watch(self, seconds: float, *, every_s: float = 0.002) -> Iterator[list[float]]:
        """Ask the service again and again for so long; the list then holds its longest silence."""
        silences: list[float] = []

        def ask() -> None:
            argv = ("python3", "-c", _WATCH, str(PORT), str(seconds), str(every_s))
            silences.append(float(self.host.run(*argv, timeout_s=seconds + 30).stdout))

        watcher = threading.Thread(target=ask)
        watcher.start()
        try:
            yield silences
        finally:
            watcher.join()

    def unit(self, name: str, prop: str) -> str:
        """Return a property of a unit."""
        return self.host.run("systemctl", "show", "--value", f"--property={prop}", name).stdout[:-1]


def op_id_of(counter: int) -> str:
    """Return the op id under which a counter's release is installed."""
    return f"{counter:032x}"


def _marker(staged: StagedHost, counter: int) -> Marker:
    key = staged.signer.public
    for generation in staged.state.staged_generations():
        marker = staged.state.staged_marker(generation, key)
        if marker is not None and marker.release_counter == counter:
            return marker
    message = f"release {counter} is not staged"
    raise LookupError(message)


def _ended(op: OpFolder) -> bool:
    return op.has("receipted") or op.result() == "failed"


def _staged(staged: StagedHost, counter: int, kind: str) -> Marker:
    """Stage a release whose units systemd understands."""
    marker = staged.stage(Build(counter=counter, **_BUILDS[kind]))  # type: ignore[arg-type]
    units = Path(staged.layout.generation(marker.generation)) / "units"
    texts = {path.name: path.read_text() for path in units.iterdir()}
    problems = staged.effects().services.check(texts)
    assert problems == [], problems
    return marker


def _look(staged: StagedHost) -> dict[str, object]:
    ops = {op.op_id: op.result() for op in map(staged.op, staged.disk.list(staged.layout.ops))}
    return {
        "current": staged.current().partition("-")[0],
        "answer": staged.get(),
        "held": staged.state.is_held(),
        "ops": {str(int(op_id, 16)): result for op_id, result in ops.items()},
        "units": staged.disk.list(staged.layout.units),
    }


def _judge(staged: StagedHost, expected: str) -> dict[str, object]:
    await_true(lambda: staged.get() == expected)
    codes = {"boot": staged.run("boot")[0], "receipts": staged.run("receipts", "--json")[0]}
    return {**_look(staged), **codes}


def main(arguments: list[str]) -> dict[str, object]:
    """Carry out one verb on this host; `/` is its root."""
    verb, *rest = arguments
    staged = StagedHost("/", port=PORT)
    if verb == "stage":
        return {"generation": _staged(staged, int(rest[0]), rest[1]).generation}
    if verb == "order":
        marker = _staged(staged, int(rest[0]), rest[1])
        op_id, d2_ms = op_id_of(int(rest[0])), int(rest[2])
        staged.begin(marker, op_id=op_id, confirm="local", d2_ms=d2_ms)
        return {}
    if verb == "judge":
        return _judge(staged, rest[0])
    if verb == "begin":
        counter, d1_ms, d2_ms = int(rest[0]), int(rest[1]), int(rest[2])
        marker = _marker(staged, counter)
        limits = {"d1_ms": d1_ms, "d2_ms": d2_ms}
        staged.begin(marker, op_id=op_id_of(counter), confirm=rest[3], **limits)
        return {}
    if verb == "finish":
        op = staged.op(op_id_of(int(rest[0])))
        await_true(lambda: op.proof() is not None or op.result() is not None)
        proof = op.proof()
        if proof is not None:
            staged.run("confirm", stdin=encode_record(staged.confirm(op.op_id, proof.digest)))
        await_true(lambda: _ended(op))
        return {"result": op.result(), "reason": op.reason()}
    if verb == "verb":
        code, records = staged.run(*rest)
        return {"code": code, "records": records}
    if verb == "check":
        return {"problems": staged.effects().services.check({rest[0]: rest[1]})}
    assert verb == "look", verb
    return _look(staged)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
