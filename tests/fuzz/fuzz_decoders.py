"""Feed mutated samples to every decoder of `capsule_manifest` and see that only refusals leave.

    python tests/fuzz/fuzz_decoders.py --seconds 600 --seed 1
    python tests/fuzz/fuzz_decoders.py --seed 1 --case 4711       (one case again)

A case depends on seed and number only. Three things fail it: an exception that is no
`CapsuleError`, an accepted value that doesn't encode to the bytes it came from (where a format has
one form), and a case that takes longer than two seconds.
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.decoders import all_decoders
from support.fuzzing import Report, fuzz, run_case


def main(arguments: list[str]) -> int:
    """Run the fuzzer and print what it saw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    parser.add_argument("--case", type=int, help="run only this case")
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}", flush=True)
    if options.case is None:
        report = fuzz(options.seed, seconds=options.seconds)
    else:
        report = Report(seed=options.seed)
        run_case(report, all_decoders(), options.case)
    for name in sorted({*report.accepted, *(name for name, _ in report.refused)}):
        refusals = {i: n for (d, i), n in sorted(report.refused.items()) if d == name}
        print(f"{name}: {report.accepted[name]} accepted, refused {refusals}")
    print(f"{report.cases} cases")
    if report.failure:
        print(report.failure, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
