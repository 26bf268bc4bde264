"""Every class of identity, made for real on a host: `./dev lab identity --json`.

Hosts run release 1. Each defect is made on a fresh state of a host and undone again. Before and
after each preflight a snapshot of the host is taken: preflight changes nothing.

`--cost` does something else: it stages on all hosts and compares the time of a preflight of all
with as many bare `ssh host true`, eight at a time, three times in turn. From `GATED_NODES` hosts on
the median may be at most twice as long; with fewer the controller's own start is most of it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lab.incident import Incident
from support.lab.fleet import Lab
from support.lab.host import LabHost

MARKER = "/var/lib/capsule/state/installed.json"
CURRENT = "/opt/capsule/current"
KEY = "/var/lib/capsule/state/node.key"
PLACES = ("/opt/capsule", "/var/lib/capsule", "/etc/capsule", "/usr/local/lib/systemd/system")
REPAIRED = "repairable"
GATED_NODES = 50
RATIO_MAX = 2.0
ROUNDS = 3


def shell(script: str) -> Callable[[LabHost], None]:
    """Return what runs a shell line on a host."""

    def act(host: LabHost) -> None:
        host.run("sh", "-c", script)

    return act


KEEP = f"cp -a {MARKER} /root/marker && "
BACK = f"rm -rf {MARKER} && cp -a /root/marker {MARKER}"
UNIT = "/usr/local/lib/systemd/system/hello.service"
CASES: dict[str, tuple[str, str, str]] = {
    # name: (class, how to make it, how to undo it)
    "whole": ("coherent", "true", "true"),
    "marker absent": ("repairable", f"{KEEP} rm {MARKER}", BACK),
    "marker is a link": ("contradictory", f"{KEEP} ln -sf /root/marker {MARKER}", BACK),
    "marker writable": ("contradictory", f"{KEEP} chmod 0666 {MARKER}", BACK),
    "marker of another owner": ("contradictory", f"{KEEP} chown nobody {MARKER}", BACK),
    "marker with two names": ("contradictory", f"{KEEP} ln {MARKER} /var/lib/capsule/x", BACK
                              + " && rm -f /var/lib/capsule/x"),
    "marker with an extra key": (
        "contradictory", f"{KEEP} sed -i 's/^{{/{{\"a\":1,/' {MARKER}", BACK,
    ),
    "marker is a folder": ("contradictory", f"{KEEP} rm {MARKER} && mkdir {MARKER}", BACK),
    "current link gone": (
        "contradictory", f"cp -a {CURRENT} /root/current && rm {CURRENT}",
        f"cp -a /root/current {CURRENT}",
    ),
    "current link leads elsewhere": (
        "contradictory", f"cp -a {CURRENT} /root/current && ln -sfn /etc {CURRENT}",
        f"rm {CURRENT} && cp -a /root/current {CURRENT}",
    ),
    "node key open to others": ("contradictory", f"chmod 0644 {KEY}", f"chmod 0600 {KEY}"),
    "unit file changed": (
        "contradictory", f"cp -a {UNIT} /root/unit && echo '#' >> {UNIT}",
        f"cp -a /root/unit {UNIT}",
    ),
    "process of nothing known": (
        "contradictory",
        f"cp -a {MARKER} /root/marker && rm {MARKER} && systemctl stop hello.service",
        f"{BACK} && systemctl start hello.service",
    ),
}  # fmt: skip


def snapshot(host: LabHost) -> str:
    """Return every name below capsule's folders with mode, owner, size and time of change."""
    listing = host.run(
        "find", *PLACES, "-printf", "%p %m %u %s %T@ %C@ %i %l\\n", timeout_s=60
    ).stdout
    return "\n".join(sorted(listing.splitlines()))


def classify(incident: Incident) -> dict[str, dict[str, object]]:
    """Run one preflight and return what it says of each node."""
    nodes = incident.preflight(1, (0, 3))["nodes"]
    assert isinstance(nodes, dict)
    return nodes


def case(incident: Incident, node: str, name: str) -> dict[str, object]:
    """Make one defect, look, undo it."""
    expected, make, undo = CASES[name]
    host = incident.hosts[node]
    shell(make)(host)
    try:
        before = snapshot(host)
        found = classify(incident)[node]
        unchanged = snapshot(host) == before
        repaired = repair(incident, node) if expected == REPAIRED else None
        refused = repair(incident, node) if expected == "contradictory" else 3
    finally:
        shell(undo)(host)
    return {
        "case": name,
        "expected": expected,
        "class": found["class"],
        "disagreements": found["disagreements"],
        "unchanged": unchanged,
        "repair": repaired if repaired is not None else refused,
        "passed": found["class"] == expected and unchanged and repaired in {None, 0}
        and refused == 3,
    }  # fmt: skip


def repair(incident: Incident, node: str) -> int:
    """Ask for a repair and return its exit code."""
    return incident.run(*incident.words("node", "repair", node), codes=(0, 3, 10)).returncode


def run_cost(nodes: int) -> dict[str, object]:
    """Stage on all hosts; return what a preflight of them takes beside bare connections."""
    with tempfile.TemporaryDirectory() as name, Lab.open() as lab:
        incident = Incident(Path(name), lab, nodes)
        incident.release(1)
        rounds = [times(incident) for _ in range(ROUNDS)]
        digests = {str(incident.preflight(1, (0,))["digest"]) for _ in range(2)}
    ratio = statistics.median(row["preflight_s"] / row["ssh_true_s"] for row in rounds)
    return {
        "nodes": nodes,
        "rounds": rounds,
        "ratio": round(ratio, 2),
        "same_digest": len(digests) == 1,
        "load": round(os.getloadavg()[0], 1),
        "passed": len(digests) == 1 and (nodes < GATED_NODES or ratio <= RATIO_MAX),
    }


def times(incident: Incident) -> dict[str, float]:
    """Return how long a preflight of all takes, and as many bare connections in lanes of eight."""
    began = time.monotonic()
    classify(incident)
    ours = time.monotonic() - began
    began = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(bare, incident.hosts.values()))
    plain = time.monotonic() - began
    return {"preflight_s": round(ours, 2), "ssh_true_s": round(plain, 2)}


def bare(host: LabHost) -> None:
    """Do nothing on a host, over SSH."""
    subprocess.run(host.ssh("true"), check=True, capture_output=True, timeout=30)


def run(nodes: int) -> dict[str, object]:
    """Make every class and return what was found."""
    with tempfile.TemporaryDirectory() as name, Lab.open() as lab:
        incident = Incident(Path(name), lab, nodes)
        incident.first_release()
        node, other = list(incident.hosts)[:2]
        rows = [case(incident, node, known) for known in CASES]
        incident.hosts[other].kill()
        rows.append(plain_row("host off", "unreachable", classify(incident)[other]))
        incident.hosts[other].boot()
        new = "openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256"
        shell(f"cp -a {KEY} /root/key && {new} -out {KEY} && chmod 0600 {KEY}")(
            incident.hosts[other]
        )
        rows.append(plain_row("another node key", "foreign", classify(incident)[other]))
    passed = all(row["passed"] for row in rows)
    return {"nodes": nodes, "cases": rows, "passed": passed}


def plain_row(name: str, expected: str, found: dict[str, object]) -> dict[str, object]:
    """Return a row of a case that is only looked at."""
    return {
        "case": name,
        "expected": expected,
        "class": found["class"],
        "disagreements": found["disagreements"],
        "passed": found["class"] == expected,
    }


def main() -> int:
    """Run, print one object, and return 1 unless everything is what it must be."""
    parser = argparse.ArgumentParser(prog="./dev lab identity", description=__doc__)
    parser.add_argument("--nodes", type=int, default=3, metavar="N")
    parser.add_argument("--cost", action="store_true", help="compare the time with bare ssh")
    parser.add_argument("--json", action="store_true", help="one object; there is nothing else")
    told = parser.parse_args()
    found = run_cost(told.nodes) if told.cost else run(told.nodes)
    print(json.dumps(found, indent=2))
    return 0 if found["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
