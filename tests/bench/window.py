"""Outage of a rollout beside a plain restart, on real hosts: `./dev bench window --json`.

For each fleet size the same service is first restarted on all hosts, so many at a time as a rollout
may take out, and then a new release is rolled out. Both are seen from outside, every 5 ms, in one
run; only the difference of the medians says something: at most 60 ms.
"""

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from lab.incident import Incident, answer
from support.lab.fleet import Lab
from support.lab.host import LabHost

MORE_MS_MAX = 60.0
SAMPLE_S = 0.005
SETTLE_S = 1.0


class Outages:
    """Watch hosts from outside and keep the longest silence of each, in milliseconds."""

    def __init__(self, hosts: dict[str, LabHost]) -> None:
        self.longest_ms = dict.fromkeys(hosts, 0.0)
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._watch, args=item, daemon=True) for item in hosts.items()
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        time.sleep(SETTLE_S)
        return self

    def __exit__(self, *_: object) -> None:
        time.sleep(SETTLE_S)
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _watch(self, node: str, host: LabHost) -> None:
        last_good = time.monotonic()
        while not self._ended.is_set():
            began = time.monotonic()
            if answer(host):
                silent_ms = (time.monotonic() - last_good) * 1000
                self.longest_ms[node] = max(self.longest_ms[node], silent_ms)
                last_good = time.monotonic()
            self._ended.wait(max(0.0, SAMPLE_S - (time.monotonic() - began)))


def restart_all(incident: Incident) -> None:
    """Restart the service everywhere, as many hosts at a time as a rollout may take out."""

    def restart(host: LabHost) -> None:
        host.run("systemctl", "restart", "hello.service")
        while not answer(host):
            time.sleep(SAMPLE_S)

    with ThreadPoolExecutor(incident.permits) as pool:
        list(pool.map(restart, incident.hosts.values()))


def measure(nodes: int) -> dict[str, object]:
    """Return the medians of one fleet size."""
    with tempfile.TemporaryDirectory() as name, Lab.open() as lab:
        incident = Incident(Path(name), lab, nodes)
        incident.crashing = ""
        incident.first_release()
        with Outages(incident.hosts) as plain:
            restart_all(incident)
        incident.release(2)
        incident.preflight(2, (0,))
        with Outages(incident.hosts) as ours:
            words = ("rollout", "start", "2.capsule", "--allow-outage")
            incident.run(*incident.words(*words))
    restart = statistics.median(plain.longest_ms.values())
    rollout = statistics.median(ours.longest_ms.values())
    return {
        "restart_median_ms": round(restart),
        "rollout_median_ms": round(rollout),
        "more_ms": round(rollout - restart),
        "rollout_max_ms": round(max(ours.longest_ms.values())),
        "at_once": incident.permits,
        "passed": rollout - restart <= MORE_MS_MAX,
    }


def main() -> int:
    """Measure each size, print one object, and return 1 if a difference is above its limit."""
    parser = argparse.ArgumentParser(prog="./dev bench window", description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="*", default=[1, 8, 50], metavar="N")
    parser.add_argument("--json", action="store_true", help="one object; there is nothing else")
    told = parser.parse_args()
    found = {f"outage-{nodes}": measure(nodes) for nodes in told.nodes}
    passed = all(row["passed"] for row in found.values())
    print(json.dumps({**found, "more_ms_max": MORE_MS_MAX, "passed": passed}, indent=2))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
