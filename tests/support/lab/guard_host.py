"""Run the cases of the guard on a lab host: `python3 -m support.lab.guard_host ADDRESS [CASE…]`.

Every case is an order of its own: staged, installed under the guard, and once more without it. One
line of JSON each: what was expected, what came.
"""

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from capsule_installer import launch
from capsule_manifest.envelope import decode_record, encode_record, sign
from capsule_manifest.keys import b64decode
from capsule_manifest.records import Receipt, decode_receipt
from capsule_manifest.route import ROUTE_TYPE, encode_route
from support import documents
from support.lab.guard_outside import NAME_SERVICE, PORT, Outside
from support.lab.guard_programs import FOLDER, Program, programs, shows
from support.staged_host import Build, StagedHost, await_true

__all__ = ["main"]

SERVICE_PORT = 8080
_CTYPES = Path("/usr/lib/python3.11/ctypes")
_SEND = (
    "import os\n"
    "for number in range(3, 64):\n"
    "    try: os.write(number, b'{token}')\n"
    "    except OSError: pass\n"
)
_MAIN = "/usr/bin/python3 -I -S {{folder}}/app/serve.py {{port}} {{counter}}"


@dataclass(frozen=True, slots=True)
class Ended:
    """How one order ended: exit code of `follow`, and the receipt."""

    code: int
    receipt: Receipt
    steps: tuple[str, ...]


class Cases:
    """All cases on this host."""

    def __init__(self, address: str) -> None:
        Path(FOLDER).mkdir(exist_ok=True)
        self.outside = Outside(address)
        self.staged = StagedHost("/", port=SERVICE_PORT)
        self._counter = 0
        self._victim = subprocess.Popen(["/bin/sleep", "1000"])
        self.programs = programs(self.outside, self._victim.pid)
        assert self.order("L0", "fail", []).receipt.result == "committed"

    def end(self) -> None:
        """End what was started for them."""
        self._victim.kill()
        self._victim.wait()

    def order(
        self, level: str, policy: str, steps: Sequence[Sequence[str]], argv: str = ""
    ) -> Ended:
        """Stage a release with these steps and install it."""
        self._counter += 1
        build = Build(counter=self._counter, guarded_steps=tuple(map(tuple, steps)))
        marker = self.staged.stage(replace(build, argv=argv) if argv else build)
        op_id = f"{self._counter:032x}"
        code, records = self.staged.install(
            marker, op_id=op_id, guard_level=level, guard_policy=policy
        )
        [carried] = [str(record["receipt"]) for record in records if record["record"] == "receipt"]
        receipt = decode_receipt(decode_record(b64decode(carried, "lab"), where="lab").payload)
        return Ended(code, receipt, tuple(step.name for step in receipt.steps))

    def rows(self, names: Sequence[str]) -> Iterator[dict[str, object]]:
        """Run the named cases, all without a name, and yield a row each."""
        chosen = [program for program in self.programs if not names or program.case in names]
        for program in chosen:
            yield self.guarded(program)
        others = {
            "inherited descriptor": self.inherited,
            "all of them at report": self.reported,
            "L2: curl by address": lambda: self.counted("curl by address", "without a route"),
            "L2: curl by name": lambda: self.counted("curl by name", "resolve name"),
            "L1: curl by address": self.only_counted,
            "service after release-network": self.service,
            "guard that can't be armed": self.unarmed,
            "L0 without a waiver": self.unwaived,
        }
        for case, run in others.items():
            if not names or case in names:
                yield row(case, *run())

    def guarded(self, program: Program) -> dict[str, object]:
        """Run one program under the guard, then without."""
        if program.case == "name-service daemon":
            # Not before: the C library of every other program would ask it first.
            self.outside.serve_path(NAME_SERVICE)
        slug = program.case.replace(" ", "-").replace("/", "").lower()
        on, off = f"on-{slug}", f"off-{slug}"
        before = self.staged.get()
        ended = self.order("L3", "fail", [program.argv(on)])
        got = self._told(ended, program) if program.told else _exit_of(ended)
        if program.told:
            got += f", {ended.receipt.result}, exit {ended.code}"
            got += ", serves" if self.staged.get() == before else ", does not serve"
        control = self.order("L0", "fail", [program.argv(off)])
        reached = shows(program, off)
        got += "; control reached" if reached else f"; control failed: {control.receipt.reason}"
        inside = program.reached(on)
        got = ("REACHED, " if inside else "not reached, ") + got
        if program.case == "name-service daemon":
            Path(NAME_SERVICE).unlink()
        return row(program.case, _expected(program, ended), got)

    def _told(self, ended: Ended, program: Program) -> str:
        lines = ended.receipt.violations
        match = [line for line in lines if all(word in line for word in program.told)]
        return "told as " + " ".join(program.told) if match else f"told {lines}"

    def reported(self) -> tuple[str, str]:
        """Run every trapped program in one order that only reports."""
        trapped = [program for program in self.programs if program.told
                   and program.case != "name-service daemon"]  # fmt: skip
        steps = []
        for number, program in enumerate(trapped):
            words = program.argv(f"on-report-{number}")
            steps.append(["/bin/sh", "-c", '"$@"; true', "sh", *words])
        ended = self.order("L3", "report", steps)
        missing = [
            program.case
            for program in trapped
            if not any(all(word in line for word in program.told)
                       for line in ended.receipt.violations)
        ]  # fmt: skip
        reached = [program.case for number, program in enumerate(trapped)
                   if program.reached(f"on-report-{number}")]  # fmt: skip
        got = f"{ended.receipt.result}, exit {ended.code}, missing {missing}, reached {reached}"
        return "committed, exit 0, missing [], reached []", got

    def counted(self, case: str, words: str) -> tuple[str, str]:
        """Run a program at L2, where nobody is named."""
        [program] = [item for item in self.programs if item.case == case]
        token = f"on-counted-{words.split(maxsplit=1)[0]}"
        ended = self.order("L2", "fail", [program.argv(token)])
        told = any(words in line for line in ended.receipt.violations)
        got = f"{told}, {program.reached(token)}, {ended.receipt.guard}, exit {ended.code}"
        return "True, False, L2, exit 50", got

    def only_counted(self) -> tuple[str, str]:
        """Run a program at L1, which denies nothing and tells what the host sent."""
        [program] = [item for item in self.programs if item.case == "curl by address"]
        ended = self.order("L1", "fail", [program.argv("on-level-1")])
        [told] = ended.receipt.violations
        # The probe of another service may be among them, so at least one.
        sent = int(told.removeprefix("counted on the whole host: ").split(" ", 1)[0])
        got = f"{ended.receipt.result} at {ended.receipt.guard}, counted {sent > 0}, "
        got += f"reached {program.reached('on-level-1')}"
        return "committed at L1, counted True, reached True", got

    def inherited(self) -> tuple[str, str]:
        """Start the guard's own program, and a plain one, with a connection that they inherit."""
        answers = []
        for token in ("on-inherited", "off-inherited"):
            with socket.create_connection((self.outside.address, PORT)) as link:
                argv = ["/usr/bin/python3", "-I", "-S", "-c", _SEND.format(token=token)]
                if token.startswith("off"):
                    code = subprocess.run(argv, pass_fds=[link.fileno()], check=False).returncode
                else:
                    code = _run_guarded(argv, link.fileno())
            shown = Program(case="", argv=lambda _: [], reached=self.outside.has_heard)
            answers.append(f"{'reached' if shows(shown, token) else 'not reached'}, exit {code}")
        return "not reached, exit 0; control reached, exit 0", "; control ".join(answers)

    def service(self) -> tuple[str, str]:
        """Let the service of a guarded order reach its network as it starts."""
        token = "on-service"
        url = f"http://{self.outside.address}:{PORT}/{token}"
        main = _MAIN.replace("{{", "{").replace("}}", "}")
        ended = self.order("L3", "fail", [["/bin/true"]],
                           argv=f"/bin/sh -c 'curl -s {url}; exec {main}'")  # fmt: skip
        heard = self.outside.has_heard(token)
        got = f"{ended.receipt.result} at {ended.receipt.guard}, reached {heard}"
        return "committed at L3, reached True", got

    def unarmed(self) -> tuple[str, str]:
        """Take away what the guard's own program needs."""
        before = _main_pid()
        away = _CTYPES.with_name("ctypes.away")
        shutil.move(_CTYPES, away)
        try:
            ended = self.order("L3", "fail", [["/bin/true"]])
        finally:
            shutil.move(away, _CTYPES)
        same = _main_pid() == before
        _, records = self.staged.run("hello")
        got = f"exit {ended.code}, {ended.receipt.guard}, stop: {'stop' in ended.steps}"
        expected = "exit 51, L3: not armed, stop: False, same process True"
        then = f"then offers {records[0]['guard_levels']}"
        return f"{expected}, then offers ['L0', 'L1', 'L2']", f"{got}, same process {same}, {then}"

    def unwaived(self) -> tuple[str, str]:
        """Order L0 under a route that waives nothing."""
        staged = self.staged
        staged.route = replace(staged.route, waivers=())
        envelope = sign(
            encode_route(staged.route), payload_type=ROUTE_TYPE, signer=documents.ROUTE_KEY
        )
        staged.route_digest = envelope.digest
        staged.state.store_route(envelope)
        self._counter += 1
        marker = staged.stage(Build(counter=self._counter))
        order = staged.order_now(marker, op_id=f"{self._counter:032x}", guard_level="L0")
        code, records = staged.run("install", stdin=encode_record(order))
        known = staged.op(f"{self._counter:032x}").has("order")
        got = f"exit {code}, {records[0].get('error')}, accepted {known}"
        return "exit 51, guard-level-denied, accepted False", got


def row(case: str, expected: str, got: str) -> dict[str, object]:
    """Return one row as the lab prints it."""
    return {"case": case, "expected": expected, "got": got}


def _expected(program: Program, ended: Ended) -> str:
    if program.told:
        told = " ".join(program.told)
        return f"not reached, told as {told}, restored, exit 50, serves; control reached"
    return f"not reached, {_exit_of(ended)}; control reached"


def _exit_of(ended: Ended) -> str:
    """Return the step's own end, as the receipt has it."""
    reason = ended.receipt.reason
    _, _, rest = reason.partition("got exit ")
    return f"step exit {rest.split(':', 1)[0]}" if rest else f"step exit 0, {ended.receipt.result}"


def _run_guarded(argv: Sequence[str], descriptor: int) -> int:
    program = [sys.executable, "-I", "-S", launch.__file__, "--root", "/", "guard"]
    step = {"argv": list(argv), "folder": "/", "environment": {"PATH": "/usr/bin"}}
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[descriptor], text=True
    ) as guard:
        assert guard.stdin is not None
        assert guard.stdout is not None
        answer: dict[str, object] = {}
        for said in ({"level": "L3"}, {"run": step}):
            guard.stdin.write(json.dumps(said) + "\n")
            guard.stdin.flush()
            answer = json.loads(guard.stdout.readline())
        guard.stdin.close()
    code = answer["exit"]
    assert isinstance(code, int), answer
    return code


def _main_pid() -> str:
    argv = ["systemctl", "show", "--value", "--property=MainPID", "hello.service"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


def main(arguments: Sequence[str]) -> int:
    """Run and print; the rows judge themselves elsewhere."""
    address, *names = arguments
    cases = Cases(address)
    try:
        await_true(lambda: cases.staged.get() == "1")
        for found in cases.rows(names):
            print(json.dumps(found), flush=True)
    finally:
        cases.end()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
