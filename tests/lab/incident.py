"""The incident on real hosts: `./dev lab incident --nodes N --json`.

Every node runs release 1. Then release 2 is rolled out, while one node lacks its marker, one's sshd
is frozen with its children after its order, one's first connection times out, one's new service
crashes after three seconds, one is down from the start, and the controller is killed in the middle;
another process adopts. Nobody helps but by `lane resume` at the end. One object is printed;
`passed` says whether it is what it must be, and `failed` what is not.
"""

import argparse
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from capsule.builder.keyfile import generate_key, load_signer
from capsule.home import ProductHome
from capsule.transport.base import QUICK
from capsule_manifest.errors import CapsuleError
from capsule_manifest.release import Budgets
from lab.incident_measured import Fields, events_of
from lab.incident_outside import Outside, answer
from lab.incident_told import Evidence, Run, told
from support.capsules import real_runtime, write_capsule
from support.lab.commands import command, wait_until
from support.lab.fleet import Lab
from support.lab.transport import SshTransport

__all__ = ["Incident", "answer"]

LANE = 8
SILENT_S = 20.0
STAND_S = 5.0
LEAST_NODES = 9
WIDE_NODES = 40  # from here on lanes are of eight, below of two
PRODUCT = "acme/hello"
# D2 is longer than a lease and an adoption: a proof waits for the next controller that long.
BUDGETS = Budgets(d1_ms=30_000, d2_ms=120_000)
SOAK_MS = 4_000
SETTLE_MS = 500
UNIT = """\
[Unit]
Description=Answers with its release
StartLimitIntervalSec=0
[Service]
WorkingDirectory=@{generation}/app
ExecStart=/usr/bin/python3 serve.py @{node.id}
Restart=on-failure
RestartSec=1
TimeoutStartSec=10
TimeoutStopSec=5
[Install]
WantedBy=multi-user.target
"""
SERVE = """\
import os, socket, sys, threading
if "@COUNTER@" == "2" and sys.argv[1] == "@CRASHES@":
    threading.Timer(3, lambda: os._exit(1)).start()
listener = socket.create_server(("0.0.0.0", 8080), backlog=64)
while True:
    link, _ = listener.accept()
    try:
        with link:
            link.settimeout(1)
            link.recv(4096)
            link.sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\n@COUNTER@")
    except OSError:
        continue
"""


class Incident:
    """The fleet, its controller's folder, and what is done to both."""

    def __init__(self, folder: Path, lab: Lab, nodes: int) -> None:
        self.folder = folder
        self.hosts = {f"n{place:02}": host for place, host in enumerate(lab.grow(nodes))}
        self.permits = min(8, max(2, nodes // 4))
        # Four nodes can be lost to the floor, and so many may be out all the same.
        self.floor = max(nodes - 4 - self.permits, 0)
        names = list(self.hosts)
        # Not the first of the first lanes: the canaries are to be healthy.
        places = [1, 25, 33, 17, 9] if nodes >= WIDE_NODES else [1, 7, 8, 5, 3]
        spread = [names[place] for place in places] if nodes >= LEAST_NODES else [""] * 5
        self.drifted, self.frozen, self.late, self.crashing, self.down = spread
        self.staged: Fields = {}
        self.frozen_programs: list[str] = []
        self.environment = {**os.environ, "CAPSULE_SSH_IDENTITY": str(lab.client_key),
                            "XDG_STATE_HOME": str(folder / "state")}  # fmt: skip
        for name in ("release", "route", "trust", "controller"):
            generate_key(folder / f"{name}.key", owner=name)
        (folder / "fleet.toml").write_text(self._fleet())
        self.run(
            "trust", "init", "--product", PRODUCT, "--release-key", "release.key.pub",
            "--route-key", "route.key.pub", "--trust-key", "trust.key.pub",
            "--output", "trust.json",
        )  # fmt: skip

    def _fleet(self) -> str:
        lines = [
            "format = 1", f'product = "{PRODUCT}"', "[fleet]", f"floor = {self.floor}",
            f"max_unavailable = {self.permits}", 'guard_min = "L0"',
        ]  # fmt: skip
        for place, (node, host) in enumerate(self.hosts.items()):
            lines += [
                f"[nodes.{node}]", f'address = "{host.address}"', 'user = "root"',
                f'host_key = "{host.host_key}"', 'role = "web"', 'platform = "bookworm"',
                f'lane = "l{place // LANE}"' if len(self.hosts) >= WIDE_NODES
                else f'lane = "l{place // 2}"',
            ]  # fmt: skip
        return "\n".join(lines) + "\n"

    def run(self, *words: str, codes: tuple[int, ...] = (0,)) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "capsule", *words], cwd=self.folder, env=self.environment,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode not in codes:
            message = f"capsule {words[0]} ended with {done.returncode}: {done.stderr[-3000:]}"
            raise AssertionError(message)
        return done

    def release(self, counter: int) -> str:
        serve = SERVE.replace("@COUNTER@", str(counter)).replace("@CRASHES@", self.crashing)
        mini = write_capsule(
            self.folder / f"{counter}.capsule",
            counter=counter,
            components={"app": {"serve.py": serve.encode()}},
            runtime=real_runtime(),
            unit=UNIT + f"[Service]\nEnvironment=COUNTER={counter}\n",
            signers=(load_signer(self.folder / "release.key"),),
            interpreter=None,
            budgets=BUDGETS,
            soak_ms=SOAK_MS if counter > 1 else SETTLE_MS,
            # As UNIT says: fifty hosts on two cores take seconds for what takes one milliseconds.
            start_ms=10_000,
            stop_ms=5_000,
        )
        if counter == 1:
            self._meet_all()
        codes = (0,) if counter == 1 else (0, 6, 30)
        self.staged = self._stage(counter, "--lane", "all", codes=codes)
        return mini.generation

    def _stage(self, counter: int, *selected: str, codes: tuple[int, ...] = (0,)) -> Fields:
        done = self.run(
            "stage", f"{counter}.capsule", *selected, "--policy", "trust.json",
            "--route-key", "route.key", "--controller-key", "controller.key", "--json",
            codes=codes,
        )  # fmt: skip
        return self._read(done.stdout)

    def _meet_all(self) -> None:
        """Meet one host, and give the others its program, which is the same 45 MB for each.

        How a fleet came to its first release is no part of what is measured.
        """
        first, *others = self.hosts
        self._stage(1, "--node", first)
        source = self.hosts[first].path("/opt/capsule")
        for node in others:
            target = self.hosts[node].path("/opt/capsule")
            if target.exists():
                continue
            target.mkdir(mode=0o755, parents=True)
            for part in ("runtime", "bin"):
                command("cp", "-a", source / part, target / part)

    def preflight(self, counter: int, codes: tuple[int, ...]) -> Fields:
        done = self.run(
            "preflight", f"{counter}.capsule", "--policy", "trust.json", "--json", codes=codes
        )
        return self._read(done.stdout)

    @staticmethod
    def _read(text: str) -> Fields:
        fields: Fields = json.loads(text)
        return fields

    def words(self, *verb: str) -> list[str]:
        return [*verb, "--policy", "trust.json", "--controller-key", "controller.key"]

    def identities(self) -> dict[str, tuple[str, ...]]:
        """Return who each node is, by ledger, controller and the host's own disk, off or not.

        A part that is gone is missing from the answer: two answers that differ are a loss.
        """
        home = ProductHome(home=self.folder / "state" / "capsule", product=PRODUCT)
        with closing(sqlite3.connect(home.ledger_path)) as ledger:
            rows = {str(row[0]) for row in ledger.execute("select node from nodes")}
        pinned = home.node_keys(tuple(self.hosts))
        return {
            node: (
                "in the ledger" if node in rows else "",
                pinned.get(node, ""),
                _text(host.path("/etc/machine-id")),
                _text(host.path("/var/lib/capsule/state/node.key")),
            )
            for node, host in self.hosts.items()
        }

    # --- the run --------------------------------------------------------------------------------
    def first_release(self) -> None:
        self.release(1)
        self.preflight(1, (0,))
        self.run(*self.words("rollout", "start", "1.capsule"))

    def controller(self, *verb: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "capsule", *self.words("rollout", *verb), "--json"],
            cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=(self.folder / f"{verb[0]}.log").open("w"), text=True,
        )  # fmt: skip

    def trouble(self, event: Fields) -> None:
        """Do to hosts what is due at an event."""
        if event["event"] == "StopSeen" and event["node"] == self.frozen:
            self.freeze_sshd()
        if event["event"] == "HoldTaken" and event["node"] == self.late:
            threading.Timer(SILENT_S, self.continue_sshd, (self.late,)).start()

    def freeze_sshd(self) -> None:
        """Stop the sshd of the frozen node and all that it started, and check that they stand."""
        host = self.hosts[self.frozen]
        self.stop_sshd(self.frozen)
        states: dict[int, tuple[str, str]] = {}

        def all_stand() -> bool:
            states.clear()
            try:
                states.update({pid: _name_and_state(pid) for pid in host.pids_of("ssh.service")})
            except OSError:
                return False  # one has ended just now
            return bool(states) and {state for _, state in states.values()} == {"T"}

        wait_until(all_stand, timeout_s=STAND_S, what=f"all of {self.frozen}'s sshd stands")
        self.frozen_programs = [name for name, _ in states.values()]

    def stop_sshd(self, node: str) -> None:
        self.hosts[node].signal_unit("ssh.service", signal.SIGSTOP)

    def continue_sshd(self, node: str) -> None:
        self.hosts[node].signal_unit("ssh.service", signal.SIGCONT)

    def silence_ms(self) -> int:
        """Return after how long a connection to the frozen node is given up, tries included."""
        began = time.monotonic()
        try:
            with SshTransport(self.hosts[self.frozen]).open(["true"], limits=QUICK):
                message = f"{self.frozen} is not silent"
                raise AssertionError(message)
        except CapsuleError:
            return round((time.monotonic() - began) * 1000)

    def second_release(self, kill_after: int) -> tuple[int, str]:
        """Roll out with a controller that is killed, and another that adopts.

        Return (exit code, the epoch's name).
        """
        commits, epoch = 0, ""
        with self.controller("start", "2.capsule", "--without-unfit") as first:
            assert first.stdout is not None
            for line in first.stdout:
                event = self._read(line)
                epoch = event["epoch"]
                self.trouble(event)
                commits += event["event"] == "CommitSeen"
                if commits >= kill_after and event["event"] == "StopIntended":
                    break
            first.kill()
        with self.controller("adopt", "2.capsule", "--takeover") as second:
            assert second.stdout is not None
            for line in second.stdout:
                self.trouble(self._read(line))
        assert first.returncode == -signal.SIGKILL, "the first controller ended by itself"
        return second.returncode, epoch

    def report(self) -> Fields:
        done = self.run("rollout", "report", "--policy", "trust.json", "--json", codes=(0, 5, 6))
        return self._read(done.stdout)

    def resume_lanes(self, report: Fields) -> list[str]:
        resumed = [lane for lane, state in report["lanes"].items() if state in {"held", "waiting"}]
        for lane in resumed:
            self.run(*self.words("lane", "resume", lane, "2.capsule"), codes=(0, 5, 6))
        return resumed

    def window_bound_s(self) -> float:
        """Return W of the rollout that would be planned now: what the product itself promises."""
        done = self.run("rollout", "plan", "2.capsule", "--policy", "trust.json",
                        "--without-unfit", "--json")  # fmt: skip
        return float(self._read(done.stdout)["window_ms"]) / 1000

    def receipts(self) -> list[Fields]:
        """Return the signed receipts of release 2's installs, as the controller checked them."""
        done = self.run("receipts", "list", "--lane", "all", "--controller-key", "controller.key",
                        "--json")  # fmt: skip
        return [
            {**receipt, "node": node}
            for node, receipts in self._read(done.stdout)["nodes"].items()
            for receipt in receipts
            if receipt["kind"] == "install" and receipt["to"].startswith("2-")
        ]

    def evidence(self) -> dict[str, Evidence]:
        """Return what was done to each node that is in trouble."""
        programs = ", ".join(sorted(set(self.frozen_programs)))
        return {
            self.drifted: Evidence(done="marker missing, all else installed", may_commit=False),
            self.frozen: Evidence(
                done=f"sshd and its children frozen after the order: {len(self.frozen_programs)} "
                f"processes ({programs})", may_commit=False,
            ),
            self.late: Evidence(done=f"sshd silent for {SILENT_S:g} s", may_commit=True),
            self.crashing: Evidence(done="service crashes after 3 s", may_commit=False),
            self.down: Evidence(done="down from the start", may_commit=False),
        }  # fmt: skip


def _name_and_state(pid: int) -> tuple[str, str]:
    """Return the name and the state of a process; T is stopped."""
    name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
    return name, rest.split()[0]


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def run(nodes: int, *, say: bool) -> dict[str, Any]:
    """Boot, roll out, break, and return the object that is printed."""
    began = time.monotonic()

    def tell(text: str) -> None:
        if say:
            print(f"{time.monotonic() - began:6.1f} s  {text}", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as name, Lab.open() as lab:
        incident = Incident(Path(name), lab, nodes)
        tell(f"{nodes} hosts are up; release 1")
        incident.first_release()
        before = incident.identities()
        incident.hosts[incident.drifted].path("/var/lib/capsule/state/installed.json").unlink()
        incident.hosts[incident.down].kill()
        tell("release 2 is staged")
        incident.release(2)
        preflight = incident.preflight(2, (3,))
        window_bound_s = incident.window_bound_s()
        incident.stop_sshd(incident.late)
        tell("release 2 is rolled out")
        with Outside(incident.hosts, {incident.down}) as outside:
            rolled = time.monotonic()
            code, epoch = incident.second_release(max(3, nodes // 4))
            wall_s = time.monotonic() - rolled
            first = incident.report()
            tell(f"exit {code}; {first['committed']} committed; a silent sshd is timed")
            timeout_ms = incident.silence_ms()
            incident.continue_sshd(incident.frozen)
            tell("its sshd answers again; lanes are resumed")
            resumed = incident.resume_lanes(first)
        tell("told")
        return told(
            Run(
                permits=incident.permits,
                evidence=incident.evidence(),
                outside=outside,
                staged=incident.staged,
                preflight=preflight,
                first=first,
                last=incident.report(),
                events=events_of(Path(name) / "state", epoch),
                receipts=incident.receipts(),
                resumed=resumed,
                code=code,
                wall_s=wall_s,
                timeout_ms=timeout_ms,
                window_bound_s=window_bound_s,
                before=before,
                after=incident.identities(),
                serving={node: answer(host) for node, host in incident.hosts.items()},
                old_trouble=(incident.drifted, incident.frozen, incident.late),
            )
        )


def main() -> int:
    """Run and print; return 1 if a part is not what it must be."""
    parser = argparse.ArgumentParser(prog="./dev lab incident", description=__doc__)
    parser.add_argument("--nodes", type=int, default=50, metavar="N")
    parser.add_argument("--json", action="store_true", help="print one object and nothing else")
    options = parser.parse_args()
    if options.nodes < LEAST_NODES:
        parser.error(f"at least {LEAST_NODES} nodes: five of them are in trouble")
    found = run(options.nodes, say=not options.json)
    print(json.dumps(found, indent=2))
    return 0 if found["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
