"""The incident on real hosts: `./dev lab incident --nodes N --json`.

Every node runs release 1. Then release 2 is rolled out, while one node lacks its marker, one's sshd
is frozen after its order, one doesn't answer its first connection, one's new service crashes after
three seconds, one is down from the start, and the controller is killed in the middle; another
process adopts. One object is printed; `passed` says whether it is what it must be.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Self

from capsule.builder.keyfile import generate_key, load_signer
from capsule_manifest.release import Budgets
from sim.incident import run_old
from support.capsules import real_runtime, write_capsule
from support.lab.fleet import Lab
from support.lab.host import LabHost

LANE = 8
PORT = 8080
SAMPLE_S = 0.1
SILENT_S = 20.0
LEAST_NODES = 9
WIDE_NODES = 40  # from here on lanes are of eight, below of two
BUDGETS = Budgets(d1_ms=20_000, d2_ms=30_000)
SOAK_MS = 4_000
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
import http.server, os, sys, threading
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"@COUNTER@")
    def log_message(self, *arguments):
        pass
if "@COUNTER@" == "2" and sys.argv[1] == "@CRASHES@":
    threading.Timer(3, lambda: os._exit(1)).start()
http.server.ThreadingHTTPServer(("0.0.0.0", 8080), Answer).serve_forever()
"""


class Outside:
    """Ask every node from outside, every 100 ms, and remember who did not answer."""

    def __init__(self, hosts: dict[str, LabHost], without: set[str]) -> None:
        self._hosts = {node: host for node, host in hosts.items() if node not in without}
        self._ended = threading.Event()
        self._down: dict[str, float] = {}
        self._lock = threading.Lock()
        self.outages: dict[str, float] = {}
        self.out_max = 0
        self._threads = [
            threading.Thread(target=self._watch, args=(node, host), daemon=True)
            for node, host in self._hosts.items()
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _watch(self, node: str, host: LabHost) -> None:
        last_good = time.monotonic()
        while not self._ended.is_set():
            now = time.monotonic()
            if answer(host):
                with self._lock:
                    if self._down.pop(node, None) is not None:
                        self.outages[node] = max(self.outages.get(node, 0.0), now - last_good)
                last_good = now
            else:
                with self._lock:
                    self._down.setdefault(node, last_good)
                    self.out_max = max(self.out_max, len(self._down))
            self._ended.wait(max(0.0, SAMPLE_S - (time.monotonic() - now)))


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
        self.environment = {**os.environ, "CAPSULE_SSH_IDENTITY": str(lab.client_key),
                            "XDG_STATE_HOME": str(folder / "state")}  # fmt: skip
        for name in ("release", "route", "trust", "controller"):
            generate_key(folder / f"{name}.key", owner=name)
        (folder / "fleet.toml").write_text(self._fleet())
        self.run(
            "trust", "init", "--product", "acme/hello", "--release-key", "release.key.pub",
            "--route-key", "route.key.pub", "--trust-key", "trust.key.pub",
            "--output", "trust.json",
        )  # fmt: skip

    def _fleet(self) -> str:
        lines = [
            "format = 1", 'product = "acme/hello"', "[fleet]", f"floor = {self.floor}",
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
            soak_ms=SOAK_MS,
        )
        codes = (0, 6, 30) if counter > 1 else (0,)
        self.run(
            "stage", f"{counter}.capsule", "--lane", "all", "--policy", "trust.json",
            "--route-key", "route.key", "--controller-key", "controller.key", codes=codes,
        )  # fmt: skip
        return mini.generation

    def preflight(self, counter: int, codes: tuple[int, ...]) -> dict[str, object]:
        done = self.run(
            "preflight", f"{counter}.capsule", "--policy", "trust.json", "--json", codes=codes
        )
        told: dict[str, object] = json.loads(done.stdout)
        return told

    def words(self, *verb: str) -> list[str]:
        return [*verb, "--policy", "trust.json", "--controller-key", "controller.key"]

    def identities(self) -> dict[str, str]:
        """Return what each host that is up says it is, read on its disk."""
        return {
            node: host.path("/etc/machine-id").read_text()
            + host.path("/var/lib/capsule/state/node.key").read_text()
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

    def trouble(self, event: dict[str, object]) -> None:
        """Do to hosts what is due at an event."""
        if event["event"] == "StopSeen" and event["node"] == self.frozen:
            self.stop_sshd(self.frozen)
        if event["event"] == "HoldTaken" and event["node"] == self.late:
            threading.Timer(SILENT_S, self.continue_sshd, (self.late,)).start()

    def stop_sshd(self, node: str) -> None:
        self.hosts[node].signal_unit("ssh.service", signal.SIGSTOP)

    def continue_sshd(self, node: str) -> None:
        self.hosts[node].signal_unit("ssh.service", signal.SIGCONT)

    def second_release(self, kill_after: int) -> tuple[int, int, float]:
        """Roll out with a controller that is killed; return (exit code, first commits, wall)."""
        began = time.monotonic()
        commits = 0
        with self.controller("start", "2.capsule", "--without-unfit") as first:
            assert first.stdout is not None
            for line in first.stdout:
                event = json.loads(line)
                self.trouble(event)
                commits += event["event"] == "CommitSeen"
                if commits >= kill_after and event["event"] == "StopIntended":
                    break
            first.kill()
        with self.controller("adopt", "2.capsule", "--takeover") as second:
            assert second.stdout is not None
            for line in second.stdout:
                self.trouble(json.loads(line))
        return second.returncode, commits, time.monotonic() - began

    def report(self) -> dict[str, object]:
        done = self.run("rollout", "report", "--policy", "trust.json", "--json", codes=(0, 5, 6))
        told: dict[str, object] = json.loads(done.stdout)
        return told

    def resume_lanes(self, report: dict[str, object]) -> None:
        lanes = report["lanes"]
        assert isinstance(lanes, dict)
        for lane, state in lanes.items():
            if state in {"held", "waiting"}:
                self.run(*self.words("lane", "resume", lane, "2.capsule"), codes=(0, 5, 6))


def answer(host: LabHost) -> str:
    """Return the release that a node serves, empty when it does not answer."""
    try:
        with urllib.request.urlopen(f"http://{host.address}:{PORT}/", timeout=1) as got:
            text: bytes = got.read(10)
            return text.decode()
    except OSError:
        return ""


def run(nodes: int, *, say: bool) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as name, Lab.open() as lab:

        def tell(text: str) -> None:
            if say:
                print(text, file=sys.stderr, flush=True)

        incident = Incident(Path(name), lab, nodes)
        tell(f"{nodes} hosts are up; release 1")
        incident.first_release()
        before = incident.identities()
        incident.hosts[incident.drifted].path("/var/lib/capsule/state/installed.json").unlink()
        incident.hosts[incident.down].kill()
        tell("release 2 is staged")
        incident.release(2)
        preflight = incident.preflight(2, (3,))
        incident.stop_sshd(incident.late)
        tell("release 2 is rolled out")
        with Outside(incident.hosts, {incident.down}) as outside:
            code, _, wall_s = incident.second_release(max(3, nodes // 4))
            first = incident.report()
            tell("its sshd answers again; lanes are resumed")
            incident.continue_sshd(incident.frozen)
            incident.resume_lanes(first)
        last = incident.report()
        tell("done")
        serving = {node: answer(host) for node, host in incident.hosts.items()}
        return summary(incident, outside, preflight, first, last, code, wall_s, before, serving)


def summary(
    incident: Incident,
    outside: Outside,
    preflight: dict[str, object],
    first: dict[str, object],
    last: dict[str, object],
    code: int,
    wall_s: float,
    before: dict[str, str],
    serving: dict[str, str],
) -> dict[str, object]:
    states = {node: item["state"] for node, item in last["nodes"].items()}  # type: ignore[attr-defined]
    classes = {node: item["class"] for node, item in preflight["nodes"].items()}  # type: ignore[attr-defined]
    after = incident.identities()
    bad = {incident.drifted, incident.frozen, incident.crashing, incident.down}
    committed = [node for node, state in states.items() if state == "committed"]
    outages = sorted(outside.outages.get(node, 0.0) for node in committed)
    healthy = set(incident.hosts) - bad
    answer: dict[str, object] = {
        "nodes": len(incident.hosts),
        "committed": first["committed"],
        "committed_after_resume": last["committed"],
        "held": sorted(node for node, state in states.items() if state == "held"),
        "skipped": sorted(node for node, state in states.items() if state == "skipped"),
        "unknown_before_resume": first["unknown"],
        "quarantined": sorted(node for node, kind in classes.items() if kind == "repairable"),
        "unreachable": sorted(node for node, kind in classes.items() if kind == "unreachable"),
        "identities_lost": sum(after[node] != text for node, text in before.items()),
        "permits": incident.permits,
        "out_of_service_max": outside.out_max,
        "outage_median_s": round(statistics.median(outages), 3) if outages else None,
        "outage_max_s": round(max(outages, default=0.0), 3),
        "window_max_s": round(max(outside.outages.values(), default=0.0), 3),
        "window_bound_s": (max(BUDGETS.d1_ms, BUDGETS.d2_ms) + BUDGETS.d1_ms) / 1000,
        "wall_s": round(wall_s, 1),
        "exit_code": code,
        "serving": serving,
        "old_algorithm": run_old(),
    }
    answer["passed"] = (
        healthy <= set(committed)
        and all(serving[node] == "2" for node in committed)
        and outside.out_max <= incident.permits
        and answer["identities_lost"] == 0
        and not bad & set(committed)
        and max(outside.outages.values(), default=0.0) <= float(str(answer["window_bound_s"]))
        and code == 6
        and first["unknown"] == 1
    )
    return answer


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev lab incident", description=__doc__)
    parser.add_argument("--nodes", type=int, default=50, metavar="N")
    parser.add_argument("--json", action="store_true", help="print one object and nothing else")
    told = parser.parse_args()
    if told.nodes < LEAST_NODES:
        parser.error(f"at least {LEAST_NODES} nodes: five of them are in trouble")
    found = run(told.nodes, say=not told.json)
    print(json.dumps(found, indent=2))
    return 0 if found["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
