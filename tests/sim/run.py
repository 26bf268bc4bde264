"""Run the simulator: `tests/sim/run.py [--epochs N --nodes M] [--seed S] [--incident] [--json]`.

Without `--epochs` both standard sizes run: 10,000 epochs of 50 nodes and 20 of 5,000. Every broken
invariant is printed with the seed that repeats it: `--seed S --epochs 1 --nodes M`.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / part) for part in ("tests", "manifest", "installer", "capsule")]

from sim.fleet import Result, run_epoch  # noqa: E402

STANDARD = ((10_000, 50), (20, 5_000))
PROCESSES = 2


def run_one(work: tuple[int, int, str | None]) -> Result:
    seed, nodes, kind = work
    return run_epoch(seed, nodes, kind)


def run_many(work: list[tuple[int, int, str | None]], processes: int) -> Iterable[Result]:
    """Yield the results in order; one process runs here, so that a debugger works."""
    if processes == 1:
        yield from map(run_one, work)
        return
    with ProcessPoolExecutor(processes) as pool:
        # The big ones last and alone: a chunk of them would leave the other process idle.
        yield from pool.map(run_one, work, chunksize=1 if len(work) < 100 else 25)


def simulate(
    sizes: Iterable[tuple[int, int]],
    first_seed: int,
    processes: int,
    *,
    kind: str | None = None,
    until_broken: bool = False,
) -> dict[str, object]:
    """Run `sizes`, pairs of epochs and nodes, and return the summary."""
    began = time.monotonic()
    seeds = events = committed = 0
    window_ms_max = 0
    violations: list[str] = []
    ends: dict[str, int] = {}
    for epochs, nodes in sizes:
        work = [(seed, nodes, kind) for seed in range(first_seed, first_seed + epochs)]
        for result in run_many(work, processes):
            seeds += 1
            events += result.events
            committed += result.committed
            window_ms_max = max(window_ms_max, result.window_ms_max)
            ends[result.end] = ends.get(result.end, 0) + 1
            violations += [
                f"seed {result.seed} nodes {nodes}: {text}" for text in result.violations
            ]
            if violations and until_broken:
                break
    return {
        "seeds": seeds,
        "epochs": seeds,
        "events": events,
        "violations": len(violations),
        "seconds": round(time.monotonic() - began, 1),
        "committed_nodes": committed,
        "window_ms_max": window_ms_max,
        "ends": dict(sorted(ends.items())),
        "first_violations": violations[:20],
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--nodes", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--kind", help="of fleet, such as one_bad; default is the seed's choice")
    parser.add_argument("--until-broken", action="store_true", help="stop at the first violation")
    parser.add_argument("--processes", type=int, default=PROCESSES)
    parser.add_argument("--incident", action="store_true", help="replay the incident, old and new")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.incident:
        from sim.incident import replay

        summary = replay()
    else:
        sizes = STANDARD if options.epochs is None else ((options.epochs, options.nodes),)
        summary = simulate(
            sizes,
            options.seed,
            options.processes,
            kind=options.kind,
            until_broken=options.until_broken,
        )
    if options.json:
        print(json.dumps(summary))
    else:
        for name, value in summary.items():
            print(f"{name:18} {value}")
    return 1 if summary["violations"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
