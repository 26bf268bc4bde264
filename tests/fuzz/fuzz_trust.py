"""Feed damaged trust to whoever takes it: media, policies, bundles, signed routes and orders.

Half of the targets damage what was signed; half sign what was damaged.

    python tests/fuzz/fuzz_trust.py --seconds 60 --seed 1
    python tests/fuzz/fuzz_trust.py --seed 1 --case 4711      (one case again)

A case depends on seed and number only. An exception that is no `CapsuleError` fails it, and so does
damage that is accepted and changes what is trusted.
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.trust_fuzzing import TrustFuzzer


def main(arguments: list[str]) -> int:
    """Run cases and print what they ended with."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    parser.add_argument("--case", type=int, help="run only this case")
    options = parser.parse_args(arguments)
    print(f"seed {options.seed}", flush=True)
    fuzzer = TrustFuzzer(options.seed)
    if options.case is not None:
        fuzzer.case(options.case)
    else:
        fuzzer.run(options.seconds)
    for (target, ended), count in sorted(fuzzer.ended.items()):
        print(f"{target}: {ended} {count}")
    print(f"{fuzzer.cases} cases")
    if fuzzer.failure:
        print(fuzzer.failure, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
