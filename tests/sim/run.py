"""Run the simulator: `tests/sim/run.py [--epochs N --nodes M] [--seed S] [--incident] [--json]`.

Without `--epochs` both standard sizes run: 10,000 epochs of 50 nodes and 20 of 5,000. Every broken
invariant is printed with the seed that repeats it: `--seed S --epochs 1 --nodes M`. How far it is
goes to stderr. `--list` prints what is checked, and the mutations that have to be caught.
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

from sim.audit import INVARIANTS  # noqa: E402
from sim.fleet import Result, run_epoch  # noqa: E402

STANDARD = ((10_000, 50), (20, 5_000))
PROCESSES = 2
TOLD_EVERY_S = 10


def run_one(work: tuple[int, int, str | None]) -> Result:
    seed, nodes, kind = work
    return run_epoch(seed, nodes, kind)


def run_many(work: list[tuple[int, int, str | None]], processes: int) -> Iterable[Result]:
    """Yield the results in order; one process runs here, so that a debugger works."""
    if processes == 1:
        yield from map(run_one, work)
        return
    with ProcessPoolExecutor(processes) as pool:
        # The big ones alone: a chunk of them would leave the other process idle.
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
    began = told = time.monotonic()
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
            if time.monotonic() - told > TOLD_EVERY_S:
                told = time.monotonic()
                print(
                    f"{result.seed - first_seed + 1:,} of {epochs:,} epochs of {nodes:,} nodes, "
                    f"{len(violations)} violations, {told - began:.0f} s",
                    file=sys.stderr,
                    flush=True,
                )
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


def measure_windows(nodes: Iterable[int], seed: int, processes: int) -> dict[str, object]:
    """Run one epoch with one bad node for each size, and return the longest window of each.

    What the bad node does is drawn anew for each size: where it hangs until its dead-man, the
    longest window is D1 and a restore, elsewhere a plain install. The bound is one for all sizes.
    """
    began = time.monotonic()
    work = [(seed, count, "one_bad") for count in nodes]
    windows: dict[int, int] = {}
    bounds: set[int] = set()
    violations: list[str] = []
    events = 0
    for (_, count, _), result in zip(work, run_many(work, processes), strict=True):
        windows[count] = result.window_ms_max
        bounds.add(result.window_bound_ms)
        events += result.events
        violations += [f"seed {seed} nodes {count}: {text}" for text in result.violations]
    return {
        "seeds": 1,
        "epochs": len(windows),
        "events": events,
        "violations": len(violations),
        "seconds": round(time.monotonic() - began, 1),
        "window_ms_max": max(windows.values()),
        "window_bounds_ms": sorted(bounds),
        "window_ms_max_by_nodes": windows,
        "first_violations": violations[:20],
    }


def tell_what_is_checked(*, as_json: bool) -> int:
    """Print the invariants and the named mutations."""
    from sim.mutations import MUTATIONS

    mutations = {mutation.name: mutation.seeds_max for mutation in MUTATIONS}
    if as_json:
        print(json.dumps({"invariants": list(INVARIANTS), "mutations": mutations}))
        return 0
    print("checked after every event, or at the end of every epoch:")
    print("\n".join(f"  {text}" for text in INVARIANTS))
    print("mutations, each caught within so many seeds of 16 nodes:")
    print("\n".join(f"  {seeds:4} {name}" for name, seeds in mutations.items()))
    return 0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--nodes", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--kind", help="of fleet, such as one_bad; default is the seed's choice")
    parser.add_argument("--until-broken", action="store_true", help="stop at the first violation")
    parser.add_argument("--processes", type=int, default=PROCESSES)
    parser.add_argument("--incident", action="store_true", help="replay the incident, old and new")
    parser.add_argument("--windows", action="store_true", help="measure 1 to 500 nodes")
    parser.add_argument("--list", action="store_true", help="print invariants and mutations")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.list:
        return tell_what_is_checked(as_json=options.json)
    if options.incident:
        from sim.incident import replay

        summary = replay()
    elif options.windows:
        summary = measure_windows(range(1, 501), options.seed, options.processes)
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
