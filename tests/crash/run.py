"""Try every crash point: `./dev crash`, minutes; the last line says how many there are.

Every write of every deed of both halves is stopped, and every write of the recovery after it; then
each fsync is left out, to see which loss it prevents. Fails with the first point after which a host
is neither the old nor the new, and with every fsync that nothing misses.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from crash import install, stage
from crash.memo import remember_pure_functions
from crash.points import NEEDED, NEEDED_ELSEWHERE, Half, Need, Report, Violation

# Deeds that take longest come first, so that no worker ends long after the others.
_LONGEST = ("first staging", "staging a second release", "staging over a damage", "collection")


@dataclass(frozen=True, slots=True)
class Tried:
    """What a worker found: about a deed, or about the fsync `label`."""

    half: Half
    deed: str
    label: str = ""
    points: int = 0
    recoveries: int = 0
    states: int = 0
    labels: frozenset[str] = frozenset()
    violation: str = ""
    seconds: float = 0.0


def try_deed(half: Half, name: str) -> Tried:
    """Stop one deed everywhere."""
    began = time.monotonic()
    report = Report(name=name)
    violation = ""
    try:
        _enumerate(half, name, report)
    except Violation as found:
        violation = str(found)
    return Tried(
        half,
        name,
        points=report.points,
        recoveries=report.recoveries,
        states=len(report.seen),
        labels=frozenset(report.labels),
        violation=violation,
        seconds=time.monotonic() - began,
    )


def try_label(half: Half, label: str) -> Tried:
    """Look for what goes wrong without one fsync; the deed known for it is tried first."""
    began = time.monotonic()
    find: Callable[[str, str], Need | None]
    find = install.find_need if half is Half.INSTALL else stage.find_need
    need = find(label, NEEDED[half].get(label, ""))
    deed, violation = (need.deed, need.violation) if need else ("", "")
    return Tried(half, deed, label=label, violation=violation, seconds=time.monotonic() - began)


def main() -> int:
    """Try all deeds of both halves, then all their fsyncs; return the exit code."""
    began = time.monotonic()
    work = [(Half.INSTALL, deed.name) for deed in install.deeds()]
    work += [(Half.STAGE, deed.name) for deed in stage.stage_deeds()]
    work.sort(key=lambda item: item[1] not in _LONGEST)
    workers = max(2, os.cpu_count() or 2)
    print(f"{len(work)} deeds on {workers} processes", flush=True)
    with ProcessPoolExecutor(workers, initializer=remember_pure_functions) as pool:
        deeds = [pool.submit(try_deed, half, name) for half, name in work]
        tried = [_told(done.result()) for done in as_completed(deeds)]
        labels = {(item.half, label) for item in tried for label in item.labels}
        asked = [pool.submit(try_label, half, label) for half, label in sorted(labels)]
        needs = [_told(done.result()) for done in as_completed(asked)]
    return _conclude(tried, needs, time.monotonic() - began)


def _enumerate(half: Half, name: str, report: Report) -> None:
    if half is Half.INSTALL:
        (deed,) = (deed for deed in install.deeds() if deed.name == name)
        install.enumerate_deed(deed, report)
    else:
        (staging,) = (deed for deed in stage.stage_deeds() if deed.name == name)
        stage.enumerate_stage(staging, report)


def _told(tried: Tried) -> Tried:
    if tried.label:
        found = f"needed, {tried.deed}" if tried.violation else "NOTHING GOES WRONG"
        print(f"without {tried.half} {tried.label!r}: {found} ({tried.seconds:.0f} s)", flush=True)
    else:
        print(
            f"{tried.deed}: {tried.points} points, {tried.states} different hosts, "
            f"{tried.recoveries} recoveries, {tried.seconds:.0f} s"
            + (f"\n  VIOLATION {tried.violation}" if tried.violation else ""),
            flush=True,
        )
    return tried


def _conclude(tried: Iterable[Tried], needs: Iterable[Tried], seconds: float) -> int:
    tried, needs = list(tried), sorted(needs, key=lambda need: (need.half, need.label))
    print("\nEach fsync, and what is lost without it:")
    for need in needs:
        print(f"  {need.half}, {need.label}: {need.violation or 'NOTHING'}")
    for label, test in sorted(NEEDED_ELSEWHERE.items()):
        print(f"  elsewhere, {label}: {test}")
    broken = [item for item in tried if item.violation]
    useless = [need for need in needs if not need.violation]
    print(f"\nfsyncs: {len(needs)}, needed: {len(needs) - len(useless)}")
    print(f"violations with all fsyncs: {len(broken)}")
    print(f"different hosts: {sum(item.states for item in tried)}")
    print(f"recoveries checked: {sum(item.recoveries for item in tried)}")
    print(f"seconds: {seconds:.0f}")
    print(f"crash points: {sum(item.points for item in tried)}")
    return 1 if broken or useless else 0


if __name__ == "__main__":
    sys.exit(main())
