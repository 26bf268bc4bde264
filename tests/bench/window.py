"""Outage of a rollout beside a plain restart, on real hosts: `./dev bench window --json`.

For each fleet size the same service is first restarted, as a rollout goes: one host, then two, then
so many at a time as may be out, which is a lane of eight. Then a new release is rolled out. Both
are seen from outside, every 5 to 10 ms and only those hosts whose turn it is, in one run, so only
the difference of the medians says something: at most 60 ms. Small fleets take several rounds. The
hosts and this bench come before the rest of the machine, which is not what is measured.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from lab.incident import LANE, Incident, answer
from support.lab.fleet import Lab
from support.lab.host import LabHost

MORE_MS_MAX = 60.0
SAMPLE_S = 0.005
CROWD_SAMPLE_S = 0.010  # eight hosts asked more often than this take a core for themselves
SETTLE_S = 0.2
TURN_S = 120.0
ROUNDS_SAMPLES = 5
CANARIES = (1, 2)
FAVOURED_NICE = -10


class Fleet(Incident):
    """Hosts in lanes of eight, of which a whole lane may be out, and nothing in trouble."""

    def _fleet(self) -> str:
        self.permits, self.floor, self.crashing = min(LANE, len(self.hosts)), 0, ""
        lines = [
            "format = 1", 'product = "acme/hello"', "[fleet]", "floor = 0",
            f"max_unavailable = {self.permits}", 'guard_min = "L0"',
        ]  # fmt: skip
        for place, (node, host) in enumerate(self.hosts.items()):
            lines += [
                f"[nodes.{node}]", f'address = "{host.address}"', 'user = "root"',
                f'host_key = "{host.host_key}"', 'role = "web"', 'platform = "bookworm"',
                f'lane = "l{place // LANE}"',
            ]  # fmt: skip
        return "\n".join(lines) + "\n"


class Turn:
    """The longest silence of one host while it is its turn, asked in a thread."""

    def __init__(self, host: LabHost, *, every_s: float) -> None:
        self._host = host
        self._every_s = every_s
        self._ended = threading.Event()
        self.answered = ""
        self.longest_ms = 0.0
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def end(self, last: str) -> float:
        """Return the longest silence up to the answer `last`, and a moment longer."""
        until = time.monotonic() + TURN_S
        while self.answered != last and time.monotonic() < until:
            time.sleep(self._every_s)
        time.sleep(SETTLE_S)
        self._ended.set()
        self._thread.join()
        assert self.answered == last, f"{self._host.name} answers {self.answered!r}, not {last!r}"
        return self.longest_ms

    def _watch(self) -> None:
        last_good = time.monotonic()
        while not self._ended.is_set():
            began = time.monotonic()
            said = answer(self._host)
            if said:
                now = time.monotonic()
                self.longest_ms = max(self.longest_ms, (now - last_good) * 1000)
                last_good, self.answered = now, said
            self._ended.wait(max(0.0, self._every_s - (time.monotonic() - began)))


class Measured:
    """The silences of one fleet, by restarts and by rollouts."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._every_s = SAMPLE_S if len(fleet.hosts) == 1 else CROWD_SAMPLE_S
        self.restarts: list[float] = []
        self.rollouts: list[float] = []

    def restart_all(self, release: str) -> None:
        """Restart the service everywhere in the waves of a rollout."""

        def restart(host: LabHost) -> float:
            turn = Turn(host, every_s=self._every_s)
            time.sleep(SETTLE_S)
            host.run("systemctl", "restart", "hello.service")
            turn.answered = ""
            return turn.end(release)

        hosts = list(self._fleet.hosts.values())
        for width in (*CANARIES, len(hosts)):
            wave, hosts = hosts[:width], hosts[width:]
            with ThreadPoolExecutor(self._fleet.permits) as pool:
                self.restarts += pool.map(restart, wave)

    def roll_out(self, counter: int) -> None:
        """Roll a release out; a host's turn is from the intent to stop it to its first answer."""
        ends = []
        with (
            ThreadPoolExecutor(len(self._fleet.hosts)) as pool,
            self._fleet.controller("start", f"{counter}.capsule", "--allow-outage") as controller,
        ):
            assert controller.stdout is not None
            for line in controller.stdout:
                event = json.loads(line)
                if event["event"] == "StopIntended":
                    turn = Turn(self._fleet.hosts[event["node"]], every_s=self._every_s)
                    ends.append(pool.submit(turn.end, str(counter)))
        assert controller.returncode == 0, f"the rollout ended with {controller.returncode}"
        assert len(ends) == len(self._fleet.hosts), f"{len(ends)} hosts had a turn"
        self.rollouts += [end.result() for end in ends]


@contextmanager
def fleet_of(nodes: int) -> Iterator[Fleet]:
    """Boot hosts that serve release 1."""
    with tempfile.TemporaryDirectory() as name, Lab.open() as lab:
        fleet = Fleet(Path(name), lab, nodes)
        fleet.hosts["n00"].favour()
        fleet.first_release()
        yield fleet


def measure(nodes: int) -> dict[str, object]:
    """Return the medians of one fleet size."""
    began = time.monotonic()
    with fleet_of(nodes) as fleet:
        measured = Measured(fleet)
        for counter in range(2, 2 + max(1, ROUNDS_SAMPLES // nodes)):
            fleet.release(counter)
            fleet.preflight(counter, (0,))
            measured.restart_all(str(counter - 1))
            measured.roll_out(counter)
    restart, rollout = map(statistics.median, (measured.restarts, measured.rollouts))
    return {
        "restart_median_ms": round(restart),
        "rollout_median_ms": round(rollout),
        "more_ms": round(rollout - restart),
        "restart_max_ms": round(max(measured.restarts)),
        "rollout_max_ms": round(max(measured.rollouts)),
        "samples": len(measured.rollouts),
        "at_once": fleet.permits,
        "wall_s": round(time.monotonic() - began),
        "load": round(os.getloadavg()[0], 1),
        "passed": rollout - restart <= MORE_MS_MAX,
    }


def main() -> int:
    """Measure each size, print one object, and return 1 if a difference is above its limit."""
    parser = argparse.ArgumentParser(prog="./dev bench window", description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="*", default=[1, 8, 50], metavar="N")
    parser.add_argument("--json", action="store_true", help="one object; there is nothing else")
    told = parser.parse_args()
    os.nice(FAVOURED_NICE)
    found = {}
    for nodes in told.nodes:
        found[f"outage-{nodes}"] = measure(nodes)
        print(f"outage-{nodes}: {found[f'outage-{nodes}']}", file=sys.stderr, flush=True)
    passed = all(row["passed"] for row in found.values())
    print(json.dumps({**found, "more_ms_max": MORE_MS_MAX, "passed": passed}, indent=2))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
