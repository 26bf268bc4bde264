"""Break releases, connections and programs of real hosts; what comes back: `./dev lab restore`.

Every case goes the whole way: a capsule is written, signed, staged over SSH with first contact, and
ordered by the controller; those of a fleet by the program's own commands.
`--json` prints `{"rows": [{"case", "expected", "got", "ok"}]}`.
"""

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from capsule.stage import NodeStaged
from capsule_manifest.envelope import decode_record, encode_record, sign
from capsule_manifest.errors import CapsuleError
from capsule_manifest.orders import CONFIRM_TYPE, Confirm, Order, encode_confirm
from capsule_manifest.records import decode_proof
from capsule_manifest.release import Budgets
from lab.incident import Incident, answer
from support import documents
from support.capsules import MiniCapsule
from support.lab.commands import LabError, wait_until
from support.lab.controller import BROKEN, UNIT, LabController, Silence
from support.lab.fleet import Lab
from support.lab.host import LabHost
from support.lab.rows import Rows
from support.repositories import Repository

OPS = "/var/lib/capsule/state/ops"
RESCUE = "/var/lib/capsule/recovery/rescue.sh"
SLOW_UNIT = UNIT.replace("ExecStart=", "ExecStartPre=/bin/sleep 3\nExecStart=")
ENDS_S = 40
D2_MS = 4_000
AWAY_S = 3.0
CAPSULE = (sys.executable, "-m", "capsule")


class ControllerGone(BaseException):
    """The controller's process ends here, with all that it knew."""


class At(Silence):
    """Do something once at a moment of an operation, then perhaps let the controller be gone."""

    def __init__(self, moment: str, action: Callable[[Order], None], *, gone: bool = False) -> None:
        self._moment, self._action, self._gone = moment, action, gone
        self._order: Order | None = None
        self._done = False

    @property
    def order(self) -> Order:
        """The order that the host took."""
        assert self._order is not None, "no order was taken"
        return self._order

    def ordered(self, node: str, order: Order) -> None:
        """Remember the order; act if this is the moment."""
        del node
        self._order = order
        self._reached("ordered")

    def step(self, node: str, *, name: str, state: str, took_ms: int | None, why: str) -> None:
        """Act if this is the moment: the step's name and state in one word."""
        del node, took_ms, why
        self._reached(f"{name}-{state}")

    def _reached(self, moment: str) -> None:
        if moment == self._moment and not self._done:
            self._done = True
            self._action(self.order)
            if self._gone:
                raise ControllerGone


class Served:
    """The cases of a fleet that answers over HTTP, driven by the program's own commands."""

    def __init__(self, folder: Path, lab: Lab, nodes: int) -> None:
        folder.mkdir()
        self._fleet = Incident(folder, lab, nodes)

    def first(self) -> str:
        """Roll release 1 out to hosts that never had one."""
        self._fleet.first_release()
        return self._answers()

    def second(self) -> str:
        """Roll release 2 out; ask the processes themselves whose they are, and since when."""
        before = {node: self._invocation(host) for node, host in self._fleet.hosts.items()}
        generation = self._fleet.release(2)
        self._fleet.preflight(2, (0,))
        self._start(2)
        faults = [
            f"{node}: {fault}"
            for node, host in self._fleet.hosts.items()
            for fault in self._faults(host, generation, before[node])
        ]
        return "; ".join([self._answers(), *(faults or ["proved by the processes that run"])])

    def absent(self) -> str:
        """Let the first release of a host crash in its soak, and ask who counts it as serving."""
        fleet = self._fleet
        [fleet.crashing] = fleet.hosts
        fleet.release(2)
        fleet.preflight(2, (0,))
        code = self._start(2, codes=(6,))
        fleet.hosts[fleet.crashing].reboot()
        status = json.loads(fleet.run("status", "--json", codes=(5,)).stdout)
        epoch = json.loads(self._status().stdout)
        asked: Mapping[str, Any] = fleet.preflight(2, (0,))
        node, member = fleet.crashing, epoch["nodes"][fleet.crashing]
        told = [
            f"exit {code}", status["nodes"][node]["current"], status["nodes"][node]["state"],
            f"proved healthy {epoch['proved_healthy']}",
            f"serving {member['serving']}, {asked['nodes'][node]['serving']}",
        ]  # fmt: skip
        fleet.release(3)
        fleet.preflight(3, (0,))
        self._start(3)
        return f"{', '.join(told)}; then {self._answers()}"

    def _start(self, counter: int, codes: tuple[int, ...] = (0,)) -> int:
        words = self._fleet.words("rollout", "start", f"{counter}.capsule", "--allow-outage")
        return self._fleet.run(*words, codes=codes).returncode

    def _status(self) -> subprocess.CompletedProcess[str]:
        return self._fleet.run("rollout", "status", "--policy", "trust.json", "--json", codes=(6,))

    def _answers(self) -> str:
        return "answers " + ", ".join(answer(host) for host in self._fleet.hosts.values())

    @staticmethod
    def _invocation(host: LabHost) -> str:
        show = ("systemctl", "show", "--value", "--property=InvocationID")
        return host.run(*show, "hello.service").stdout.strip()

    def _faults(self, host: LabHost, generation: str, before: str) -> list[str]:
        """Say how what runs differs from what the host signed, and from the generation's files."""
        ops = sorted(host.path(OPS).iterdir(), key=lambda path: path.stat().st_mtime)
        signed = decode_record((ops[-1] / "proof").read_bytes(), where="proof")
        proof = decode_proof(signed.payload)
        [unit] = proof.units
        [pid] = host.pids_of("hello.service")
        environment = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
        folder = str(Path(f"/proc/{pid}/cwd").readlink())
        seen = {
            "proof": (proof.generation, generation),
            "invocation": (self._invocation(host), unit.invocation_id),
            "environment": (f"CAPSULE_GENERATION={generation}" in environment, True),
            "commit": (f"CAPSULE_COMMIT={unit.commit}" in environment, True),
            "folder": (folder.endswith(f"/generations/{generation}/app"), True),
            "restarted": (unit.invocation_id != before, True),
        }
        return [f"{name} {got!r}" for name, (got, wanted) in seen.items() if got != wanted]


class Restores:
    """The cases of one host that serves release 1, each under the next release counter."""

    def __init__(self, controller: LabController) -> None:
        self.controller = controller
        self._counter = 1
        self.old, first = controller.staged_and_installed(1)
        assert first.result == "committed", first

    def broken_release(self) -> str:
        """Install a release whose service ends at once."""
        self._counter += 1
        _, ended = self.controller.staged_and_installed(self._counter, BROKEN)
        assert ended.receipt is not None
        reason = "proof-failed" if "proof-failed" in ended.receipt.receipt.reason else "no reason"
        return f"{ended.result}, exit {int(ended.exit_code)}, {reason}; {self._serves()}"

    def cut_after_order(self) -> str:
        """Cut the cable when the order is taken; mend it later."""
        mini = self._staged()
        cable = self.controller.host.cable

        def away(order: Order) -> None:
            del order
            cable.cut()
            threading.Timer(AWAY_S, cable.mend).start()

        ended = self.controller.install(mini, At("ordered", away))
        self.old = mini
        return f"{ended.result}; {self._serves()}"

    def controller_gone(self) -> str:
        """Cut the cable and end the controller before the proof; confirm when D2 is past."""
        mini = self._staged(budgets=Budgets(d1_ms=40_000, d2_ms=D2_MS))
        cable = self.controller.host.cable
        # Not when it is done: by then a controller may have been told of the proof already.
        watch = At("prove-started", lambda _: cable.cut(), gone=True)
        began = time.monotonic()
        self._lost(mini, watch)
        folder = self._op(watch.order)
        wait_until((folder / "result").exists, timeout_s=ENDS_S, what="the op ended")
        took_s = time.monotonic() - began
        cable.mend()
        proof = decode_record((folder / "proof").read_bytes(), where="proof")
        said = self._late_confirm(watch.order, proof.digest)
        word = "restored" if is_restored(folder) else "not restored"
        late = "after D2" if took_s > D2_MS / 1000 else f"after {took_s:.1f} s only"
        return f"{word} {late}, late confirm {said}; {self._serves()}"

    def rescue_alone(self) -> str:
        """Break every Python in the middle of an install, kill the supervisor, run rescue.sh."""
        mini = self._staged(unit=SLOW_UNIT)
        host = self.controller.host

        def break_all(order: Order) -> None:
            host.cable.cut()
            host.signal_unit(f"capsule-{order.op_id}.service", signal.SIGKILL)
            break_programs(self.controller)

        watch = At("start-started", break_all, gone=True)
        self._lost(mini, watch)
        done = host.run("sh", RESCUE, "", watch.order.op_id, "now", check=False)
        host.cable.mend()
        return f"rescue ends with {done.returncode}; {self._serves()}"

    def fixed_forward(self) -> str:
        """Stage the next release on the host that has no working Python, then on one that has."""
        mini = self.controller.capsule(self._next())
        refused = self.controller.stage(mini)
        words = refused.error_id if isinstance(refused, CapsuleError) else "staged without Python"
        mend_python(self.controller)
        staged = self.controller.stage(mini)
        if not isinstance(staged, NodeStaged):
            return f"{words}; then {staged.error_id}: {staged}"
        ended = self.controller.install(mini)
        self.old = mini
        return f"{words}; then {ended.result}; {self._serves()}"

    def _next(self) -> int:
        self._counter += 1
        return self._counter

    def _staged(self, *, unit: str = UNIT, budgets: Budgets | None = None) -> MiniCapsule:
        mini = self.controller.capsule(self._next(), unit=unit, budgets=budgets)
        staged = self.controller.stage(mini)
        assert isinstance(staged, NodeStaged), staged
        return mini

    def _lost(self, mini: MiniCapsule, watch: At) -> None:
        try:
            ended = self.controller.install(mini, watch)
        except ControllerGone:
            return
        message = f"the moment never came: {ended.result}"
        raise LabError(message)

    def _op(self, order: Order) -> Path:
        return self.controller.host.path(f"{OPS}/{order.op_id}")

    def _late_confirm(self, order: Order, proof: str) -> str:
        confirm = Confirm(
            op_id=order.op_id, node=order.node, proof=proof, route=order.route, fence=order.fence
        )
        key = documents.CONTROLLER_KEY
        signed = sign(encode_confirm(confirm), payload_type=CONFIRM_TYPE, signer=key)
        try:
            self.controller.session.ask("confirm", answer="confirmed", stdin=encode_record(signed))
        except CapsuleError as error:
            return "refused" if error.error_id == "confirm-refused" else error.error_id
        return "taken"

    def _serves(self) -> str:
        """Say whether the release that should run is the one that does, and is all there is."""
        return what_serves(self.controller, self.old.generation)


def what_serves(controller: LabController, generation: str) -> str:
    """Return `old or new serves, not held`-like words about the host as it is now."""
    current = controller.host.path("/opt/capsule/current").readlink().name
    faults = [] if controller.serving() == generation else [f"serves {controller.serving()}"]
    faults += [] if current == generation else [f"current is {current}"]
    faults += ["held"] if controller.host.path("/var/lib/capsule/hold").exists() else []
    return ", ".join(faults) or "the right release serves"


def is_restored(folder: Path) -> bool:
    """Say whether the op in this folder ended as restored."""
    return (folder / "result").samefile(folder / "result.restored")


def break_programs(controller: LabController) -> None:
    """Empty the modules of the runtime, and take the interpreter's standard library away."""
    host = controller.host
    host.run("sh", "-c", "for f in $(find /opt/capsule/runtime -name '*.py'); do : > $f; done")
    host.run("find", "/opt/capsule/runtime", "-name", "*.pyc", "-delete")
    host.run("mv", "/usr/lib/python3.11", "/usr/lib/python3.11.away")


def mend_python(controller: LabController) -> None:
    """Bring the interpreter's standard library back, as its package would; not the runtime."""
    controller.host.run("mv", "/usr/lib/python3.11.away", "/usr/lib/python3.11")


def first_install_fails(controller: LabController) -> str:
    """Install a broken release on a host that never had one."""
    _, ended = controller.staged_and_installed(1, BROKEN)
    hello = controller.session.hello()
    active = controller.host.run("systemctl", "is-active", "hello.service", check=False).stdout
    held = "held" if hello.hold else "not held"
    return f"{ended.result}, exit {int(ended.exit_code)}; {hello.current}, {held}, {active.strip()}"


def too_long_for_d1() -> str:
    """Build a release whose units need longer than its first deadline."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "work"
        work.mkdir()

        def capsule(*words: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [*CAPSULE, *words], cwd=work, capture_output=True, text=True, check=False
            )

        repository = Repository(work)
        capsule("init", ".")
        release = work / "release.toml"
        release.write_text(release.read_text().replace("d1_s = 40", "d1_s = 20"))
        repository.commit({})
        locked = capsule("lock")
        assert locked.returncode == 0, locked.stderr
        repository.commit({})
        capsule("key", "generate", "--owner", "me", "--out", f"{folder}/release.key")
        built = capsule("build", "--key", f"{folder}/release.key", "--json")
        return f"exit {built.returncode}, " + (
            "budget-exceeded" if "budget-exceeded" in built.stdout + built.stderr else built.stdout
        )


def cases_of_a_fleet(rows: Rows, folder: Path) -> None:
    """Roll out to three hosts, and to one whose first release fails."""
    with Lab.open() as lab:
        three = Served(folder / "three", lab, 3)
        rows.case("release 1 on three hosts", expected="answers 1, 1, 1", run=three.first)
        rows.case(
            "release 2 after it",
            expected="answers 2, 2, 2; proved by the processes that run",
            run=three.second,
        )
    with Lab.open() as lab:
        rows.case(
            "first install that fails never counts as serving",
            expected="exit 6, absent, held, proved healthy 0, serving False, False; then answers 3",
            run=Served(folder / "one", lab, 1).absent,
        )


def cases_of_hosts(rows: Rows, folder: Path) -> None:
    """Break what an operator has to do with one host."""
    right = "the right release serves"
    with Lab.open() as lab:
        fresh, used = lab.grow(2)
        rows.case(
            "first install that fails",
            expected="restored-absent, exit 60; absent, held, failed",
            run=lambda: first_install_fails(LabController(fresh, folder / "fresh")),
        )
        cases = Restores(LabController(used, folder / "used"))
        for case, expected, run in (
            ("broken release", f"restored, exit 60, proof-failed; {right}",
             cases.broken_release),
            ("SSH cut right after the order", f"committed; {right}", cases.cut_after_order),
            ("SSH cut and controller gone before confirm",
             f"restored after D2, late confirm refused; {right}", cases.controller_gone),
            ("every Python broken in the middle, rescue.sh alone",
             f"rescue ends with 0; {right}", cases.rescue_alone),
            ("every Python broken, then the host's mended and first contact repeated",
             f"host-program-failed; then committed; {right}", cases.fixed_forward),
        ):  # fmt: skip
            rows.case(case, expected=expected, run=run)


def main() -> int:
    """Run every case and return 1 if one ended in something else."""
    parser = argparse.ArgumentParser(prog="./dev lab restore", description=__doc__)
    parser.add_argument("--json", action="store_true", help="for programs")
    rows = Rows(as_json=parser.parse_args().json)
    folder = Path(tempfile.mkdtemp(prefix="capsule-lab-"))
    try:
        rows.case(
            "units whose time-outs don't fit D1, at build",
            expected="exit 4, budget-exceeded",
            run=too_long_for_d1,
        )
        cases_of_a_fleet(rows, folder)
        cases_of_hosts(rows, folder)
    finally:
        shutil.rmtree(folder)
    return rows.end()


if __name__ == "__main__":
    sys.exit(main())
