"""Run fuzz cases: one decoder, one mutated sample, three ways to fail."""

import random
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from itertools import count

from capsule_manifest.error_table import ROWS
from capsule_manifest.errors import CapsuleError, render
from support.decoders import Decoder, all_decoders

__all__ = ["Report", "fuzz", "run_case"]

_CASE_SECONDS_MAX = 2.0
_SHOWN_BYTES_MAX = 2000


@dataclass(slots=True, kw_only=True)
class Report:
    """Count what happened, by decoder and by error id; keep the first failure."""

    seed: int
    cases: int = 0
    accepted: Counter[str] = field(default_factory=Counter)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    failure: str = ""


def fuzz(seed: int, *, seconds: float) -> Report:
    """Run cases for `seconds` or until one fails."""
    decoders = all_decoders()
    report = Report(seed=seed)
    deadline = time.monotonic() + seconds
    for case in count():
        if time.monotonic() >= deadline:
            return report
        run_case(report, decoders, case)
        if report.failure:
            return report
    raise AssertionError


def run_case(report: Report, decoders: tuple[Decoder, ...], case: int) -> None:
    """Run one case and write what it did into `report`."""
    rng = random.Random(f"{report.seed}/{case}")
    decoder = decoders[case % len(decoders)]
    raw = rng.choice(decoder.mutators)(rng, rng.choice(decoder.samples))
    report.cases += 1
    started = time.process_time()  # CPU time: a loaded machine is no finding
    problem = ""
    try:
        value = decoder.decode(raw)
        if decoder.encode is not None and decoder.encode(value) != raw:
            problem = "was accepted, but encodes to other bytes"
        report.accepted[decoder.name] += 1
    except CapsuleError as error:
        report.refused[decoder.name, error.error_id] += 1
        problem = _check_error(error)
    except Exception:  # noqa: BLE001 - whatever leaves a decoder is what this program looks for
        problem = traceback.format_exc()
    took_s = time.process_time() - started
    if took_s > _CASE_SECONDS_MAX:
        problem = problem or f"took {took_s:.1f} s"
    if problem:
        shown = raw[:_SHOWN_BYTES_MAX].hex() + ("…" if len(raw) > _SHOWN_BYTES_MAX else "")
        report.failure = (
            f"{decoder.name}: {problem}\n"
            f"repeat: python tests/fuzz/fuzz_decoders.py --seed {report.seed} --case {case}\n"
            f"input ({len(raw)} bytes): {shown}"
        )


def _check_error(error: CapsuleError) -> str:
    """Return what is wrong with an error as a person or a record would see it."""
    if error.error_id not in ROWS:
        return f"has no row for {error.error_id}"
    lines = render(error).splitlines()
    if not all(line.isprintable() for line in lines):
        return f"prints control characters: {lines!r}"
    return ""
