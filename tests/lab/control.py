"""Who controls a rollout of real hosts: `./dev lab control --json`.

First a rollout is paused and its epoch aborted while the cables of all untouched hosts are cut:
they are skipped at once. Then one on PostgreSQL is interrupted twice, so that its controller
detaches; a stranger's key is refused, and another environment with a listed key adopts and finishes
it.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from capsule.builder.keyfile import generate_key
from capsule.transport.ssh_entry import Timing
from lab.incident import Incident
from support.lab.fleet import Lab
from support.postgres import running_cluster

INTERRUPTED = 130
DENIED = 12
CURRENT = "/opt/capsule/current"


class Elsewhere:
    """Another environment: another home and another key, and the same files of the fleet."""

    def __init__(self, incident: Incident, name: str) -> None:
        self._incident = incident
        self._key = f"{name}.key"
        home = incident.folder / f"home-{name}"
        home.mkdir()
        kept = {key: incident.environment[key] for key in ("PATH", "CAPSULE_SSH_IDENTITY")}
        self._environment = {**kept, "HOME": str(home)}
        self.run("route", "import", "route.json", "--policy", "trust.json")

    def decide(self, verb: str, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run a verb of `capsule rollout` with this environment's key."""
        return self.run(
            "rollout", verb, "2.capsule", "--policy", "trust.json",
            "--controller-key", self._key, *words,
        )  # fmt: skip

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end."""
        return subprocess.run(
            [sys.executable, "-m", "capsule", *words], cwd=self._incident.folder,
            env=self._environment, capture_output=True, text=True, check=False,
        )  # fmt: skip


def until(process: "subprocess.Popen[str]", name: str) -> dict[str, object]:
    """Read events up to one of that name."""
    assert process.stdout is not None
    for line in process.stdout:
        event: dict[str, object] = json.loads(line)
        if event["event"] == name:
            return event
    message = f"no {name} before the end"
    raise AssertionError(message)


def abort(incident: Incident) -> dict[str, object]:
    """Abort while nobody who was not touched can be reached."""
    incident.release(1)
    incident.preflight(1, (0,))
    with incident.controller("start", "1.capsule") as rollout:
        touched = str(until(rollout, "StopSeen")["node"])
        untouched = [node for node in incident.hosts if node != touched]
        for node in untouched:
            incident.hosts[node].cable.cut()
        rollout.send_signal(signal.SIGINT)
        until(rollout, "Parked")
    began = time.monotonic()
    words = incident.words("rollout", "abort", "1.capsule", "--reason", "cables cut")
    # They run nothing yet, so the fleet does not serve.
    incident.run(*words, codes=(6,))
    took_s = time.monotonic() - began
    report = incident.report()
    for node in untouched:
        incident.hosts[node].cable.mend()
    states = {node: row["state"] for node, row in report["nodes"].items()}
    expected = {touched: "committed"} | dict.fromkeys(untouched, "skipped")
    changed = [node for node in untouched if os.path.lexists(incident.hosts[node].path(CURRENT))]
    return {
        "case": "abort with the cables of untouched hosts cut",
        "abort_s": round(took_s, 2),
        "one_connection_s": Timing().connect_s,
        "states": states,
        "changed": changed,
        "passed": states == expected and not changed and took_s < Timing().connect_s,
    }


def adopt(incident: Incident, ledger: str) -> dict[str, object]:
    """Interrupt twice, then adopt from elsewhere."""
    generation = incident.release(2)
    incident.preflight(2, (0,))
    with incident.controller("start", "2.capsule", "--ledger", ledger) as rollout:
        until(rollout, "StopSeen")
        rollout.send_signal(signal.SIGINT)
        until(rollout, "Paused")
        began = time.monotonic()
        rollout.send_signal(signal.SIGINT)
        code = rollout.wait()
        detach_s = time.monotonic() - began
    incident.run("route", "export", "route.json", "--policy", "trust.json")
    stranger, second = Elsewhere(incident, "stranger"), Elsewhere(incident, "second")
    refused = stranger.decide("adopt", "--takeover", "--ledger", ledger)
    adopted = second.decide("adopt", "--takeover", "--ledger", ledger)
    resumed = second.decide("resume", "--ledger", ledger)
    report = json.loads(
        second.run(
            "rollout", "report", "--policy", "trust.json", "--ledger", ledger, "--json"
        ).stdout
    )
    states = {node: row["state"] for node, row in report["nodes"].items()}
    current = {host.path(CURRENT).readlink().name for host in incident.hosts.values()}
    return {
        "case": "two interrupts, adopted on PostgreSQL from elsewhere",
        "interrupted": code,
        "detach_s": round(detach_s, 2),
        "stranger": refused.returncode,
        "adopted": adopted.returncode,
        "resumed": resumed.returncode,
        "states": states,
        "passed": (code, refused.returncode, resumed.returncode) == (INTERRUPTED, DENIED, 0)
        and "authority-denied" in refused.stderr
        and set(states.values()) == {"committed"}
        and current == {generation},
    }


def run(nodes: int) -> dict[str, object]:
    """Run both cases on one fleet."""
    with tempfile.TemporaryDirectory() as name, Lab.open() as lab, running_cluster() as cluster:
        incident = Incident(Path(name), lab, nodes)
        for key in ("second", "stranger"):
            generate_key(incident.folder / f"{key}.key", owner=key)
        fleet = incident.folder / "fleet.toml"
        listed = 'guard_min = "L0"\ncontrollers = ["second.key.pub"]'
        fleet.write_text(fleet.read_text().replace('guard_min = "L0"', listed))
        rows = [abort(incident), adopt(incident, cluster.new_database())]
    load = round(os.getloadavg()[0], 1)
    passed = all(row["passed"] for row in rows)
    return {"nodes": nodes, "rows": rows, "load": load, "passed": passed}


def main() -> int:
    """Run, print one object, and return 1 unless everything is what it must be."""
    parser = argparse.ArgumentParser(prog="./dev lab control", description=__doc__)
    parser.add_argument("--nodes", type=int, default=3, metavar="N")
    parser.add_argument("--json", action="store_true", help="one object; there is nothing else")
    found = run(parser.parse_args().nodes)
    print(json.dumps(found, indent=2))
    return 0 if found["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
