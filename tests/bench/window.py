"""How long an install keeps a service silent, beside a plain restart: `./dev bench window`.

The service is asked every 2 ms, on many hosts every 10, by a program beside it: the outage is the
longest time between two good answers. Both ways run in turns on the same hosts, all hosts at once,
so the peer meets the same concurrency. An install may take at most 60 ms more than a restart, which
knows no proof and no way back.

`--json` prints `{"cases": [{"case", "metric", "unit", "ours", "peers": {name: number}}]}`. Needs
root; hosts are those of the lab.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial

from support.lab.fleet import Lab
from support.lab.installs import InstallHost

PEER = "systemctl-restart"
UNIT = "hello.service"
MORE_MAX_S = 0.060
QUIET_S = 1.0
RESTART_S = 3.0
INSTALL_S = 6.0
FEW_HOSTS = 2
# Many hosts that are asked every 2 ms fill two cores with the asking.
EVERY_FEW_S, EVERY_MANY_S = 0.002, 0.010


def main() -> int:
    """Measure each size of fleet, print, and return 1 if an install takes too much longer."""
    parser = argparse.ArgumentParser(prog="./dev bench window", description=__doc__)
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--nodes", default="1", help="sizes of fleet, such as 1,8,50")
    parser.add_argument("--rounds", type=int, default=7, help="how often, at least 5")
    told = parser.parse_args()
    if told.rounds < 5:
        parser.error("a median needs at least 5 rounds")
    cases, passed = [], True
    for nodes in (int(word) for word in told.nodes.split(",")):
        restarts, installs = measure(nodes, told.rounds)
        peer, ours = statistics.median(restarts), statistics.median(installs)
        passed &= ours <= peer + MORE_MAX_S
        cases.append(
            {
                "case": f"outage-{nodes}",
                "metric": "seconds",
                "unit": "s",
                "ours": round(ours, 4),
                "peers": {PEER: round(peer, 4)},
            }
        )
        if not told.json:
            print(f"outage-{nodes}: {PEER} {in_ms(restarts)}; install {in_ms(installs)}")
            print(
                f"  an install is {(ours - peer) * 1000:+.0f} ms, at most {MORE_MAX_S * 1000:.0f}"
            )
    if told.json:
        print(json.dumps({"cases": cases}))
    return 0 if passed else 1


def measure(nodes: int, rounds: int) -> tuple[list[float], list[float]]:
    """Return the outages of all restarts and of all installs, in seconds."""
    restarts: list[float] = []
    installs: list[float] = []
    every_s = EVERY_FEW_S if nodes <= FEW_HOSTS else EVERY_MANY_S
    with Lab.open() as lab, ThreadPoolExecutor(nodes) as pool:
        ons = [InstallHost(host=host) for host in lab.grow(nodes)]

        def at_once(work: Callable[[InstallHost], object]) -> None:
            list(pool.map(work, ons))

        at_once(InstallHost.put_program)
        at_once(lambda on: on.stage(1))
        at_once(lambda on: on.install(1))
        for counter in range(2, rounds + 2):
            number = str(counter)
            at_once(partial(InstallHost.stage, counter=counter))
            with watched(ons, RESTART_S, every_s, restarts):
                at_once(lambda on: on.host.run("systemctl", "restart", UNIT))
            with watched(ons, INSTALL_S, every_s, installs):
                at_once(partial(InstallHost.begin, counter=counter, confirm="local"))
            for on in ons:
                assert on.drive("finish", number)["result"] == "committed"
    return restarts, installs


@contextmanager
def watched(
    ons: Sequence[InstallHost], seconds: float, every_s: float, outages: list[float]
) -> Iterator[None]:
    """Ask the service of every host for some seconds; then add each one's longest silence."""
    with ExitStack() as stack:
        found = [stack.enter_context(on.watch(seconds, every_s=every_s)) for on in ons]
        time.sleep(QUIET_S)
        yield
    outages += [silence for silences in found for silence in silences]


def in_ms(seconds: Sequence[float]) -> str:
    """Return median and range for people."""
    low, high = min(seconds), max(seconds)
    return f"{statistics.median(seconds) * 1000:.0f} ms ({low * 1000:.0f} to {high * 1000:.0f})"


if __name__ == "__main__":
    sys.exit(main())
