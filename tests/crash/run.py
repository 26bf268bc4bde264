"""Try every crash point: `python tests/crash/run.py`, minutes; ends with how many there are.

Fails with the first point after which a host is neither the old nor the new, and with every fsync
whose removal nothing notices.
"""

import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from crash import install, stage

WORKERS = 2
Tried = tuple[str, install.Report, str]


def try_install(name: str) -> Tried:
    """Enumerate one deed of the install half; return what was tried and what went wrong."""
    (deed,) = (deed for deed in install.deeds() if deed.name == name)
    report = install.Report()
    return name, report, _violation(lambda: install.enumerate_deed(deed, report))


def try_stage(name: str) -> Tried:
    """Enumerate one deed of the stage half; return what was tried and what went wrong."""
    (deed,) = (deed for deed in stage.stage_deeds() if deed.name == name)
    report = install.Report()
    return name, report, _violation(lambda: stage.enumerate_stage(deed, report))


def _violation(enumerate_all: Callable[[], None]) -> str:
    try:
        enumerate_all()
    except install.Violation as violation:
        return str(violation)
    return ""


def main() -> int:
    """Try all deeds, then every fsync of the install half."""
    began = time.monotonic()
    points = recoveries = failures = 0
    labels: set[str] = set()
    with ProcessPoolExecutor(WORKERS) as pool:
        deeds = [deed.name for deed in install.deeds()]
        installs = pool.map(try_install, deeds)
        stages = pool.map(try_stage, [deed.name for deed in stage.stage_deeds()])
        for name, report, wrong in chain(installs, stages):
            print(f"{name}: {report.points} points {wrong}".rstrip(), flush=True)
            points += report.points
            recoveries += report.recoveries
            failures += bool(wrong)
            labels |= report.labels if name in deeds else set()
        needs = pool.map(install.find_need, sorted(labels))
        for label, need in zip(sorted(labels), needs, strict=True):
            failures += not need
            print(f"without {label}: {need or 'NOTHING GOES WRONG'}", flush=True)
    print(f"fsyncs of an op, each needed: {len(labels)}")
    print(f"recoveries: {recoveries}, seconds: {time.monotonic() - began:.0f}")
    print(f"failures: {failures}" if failures else f"crash points: {points}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
