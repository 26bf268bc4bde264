"""How long `capsule --help` takes beyond the start of Python itself.

Interleaved, so that a busy machine slows both alike; medians of twenty. Ends with 1 above the gate.
"""

import statistics
import subprocess
import sys
import time

RUNS = 20
GATE_MS = 100.0


def run_ms(*arguments: str) -> float:
    """Return how long one Python process takes."""
    started = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - started) * 1000


def main() -> int:
    """Measure, print, compare."""
    bare: list[float] = []
    helped: list[float] = []
    for arguments in (("-c", "pass"), ("-m", "capsule", "--help")):
        run_ms(*arguments)  # once for the page cache and the bytecode
    for _ in range(RUNS):
        bare.append(run_ms("-c", "pass"))
        helped.append(run_ms("-m", "capsule", "--help"))
    base_ms, help_ms = statistics.median(bare), statistics.median(helped)
    extra_ms = help_ms - base_ms
    print(
        f"python -c pass: {base_ms:.1f} ms, capsule --help: {help_ms:.1f} ms, "
        f"difference {extra_ms:.1f} ms (gate {GATE_MS:.0f} ms), medians of {RUNS}"
    )
    return 0 if extra_ms <= GATE_MS else 1


if __name__ == "__main__":
    sys.exit(main())
