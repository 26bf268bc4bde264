"""How long a host takes to decide about a capsule's signatures, in a process that starts cold.

Interleaved in one run, so that a busy machine slows all alike: `python -c pass`, the key path as
the host's launcher starts it (`-I -S`), and `openssl dgst -verify` of the same
signature. Medians of twenty, wall time and processor time. The gates are on processor time, which a
neighbour on the machine can't change: ends with 1 when the key path costs more than the gate above
Python, or the decision itself more than its own.

    ./dev bench trust
    ./dev bench trust --json
"""

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_public_key,
)

from capsule_manifest.envelope import IN_TOTO, decode_bundle, pre_authentication_encoding
from capsule_manifest.policy import encode_policy
from support import documents
from support.capsules import write_capsule

RUNS = 20
GATE_KEY_PATH_MS = 130.0
GATE_CHECK_MS = 2.0

# What the host does with a capsule before the first byte of content, and nothing else.
HOST = """
import sys
sys.path[:0] = sys.argv[2].split(":")
import time
from capsule_manifest.policy import decode_policy
from capsule_manifest.trust import verify_packing, verify_release
folder = sys.argv[1]
def read(name):
    with open(f"{folder}/{name}", "rb") as file:
        return file.read()
import os
names = sorted(os.listdir(f"{folder}/signatures"))
found = {name: read(f"signatures/{name}") for name in names}
policy = decode_policy(read("policy.json"))
manifest, packing = read("capsule.json"), read("packing.json")
releases = {n: b for n, b in found.items() if n.startswith("release-")}
took = []
for _ in range(2):  # the first one also starts what it calls for the first time
    started = time.process_time()
    verified = verify_release(policy, manifest, releases, counter_floor=0)
    took.append((time.process_time() - started) * 1000)
verify_packing(
    policy, packing, verified.capsule, {n: b for n, b in found.items() if n.startswith("packing-")}
)
print(*took, flush=True)
os._exit(0)  # as `launch.py` ends
"""


def run(*arguments: str) -> tuple[float, float, str]:
    """Return a process's wall and processor time in milliseconds, and what it printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    done = subprocess.run(arguments, check=True, capture_output=True, text=True)
    wall_ms = (time.perf_counter() - started) * 1000
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall_ms, used_s * 1000, done.stdout


def prepare(folder: Path) -> dict[str, tuple[str, ...]]:
    """Write a capsule that two owners signed, and return the commands to compare."""
    made = write_capsule(
        folder / "web.capsule", signers=(documents.RELEASE_KEY, documents.SECOND_RELEASE_KEY)
    )
    (made.folder / "policy.json").write_bytes(encode_policy(documents.make_policy()))
    short = documents.RELEASE_KEY.public.short
    raw = (made.folder / f"signatures/release-{short}.sigstore.json").read_bytes()
    envelope = decode_bundle(raw, where="bench")
    assert envelope is not None, "the bundle is by a key"
    public = load_der_public_key(documents.RELEASE_KEY.public.spki).public_bytes(
        Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
    )
    (folder / "key.pem").write_bytes(public)
    (folder / "signature").write_bytes(envelope.signature)
    (folder / "message").write_bytes(pre_authentication_encoding(IN_TOTO, envelope.payload))
    path = ":".join(entry for entry in sys.path if entry and Path(entry).is_dir())
    commands = {
        "python": (sys.executable, "-I", "-S", "-c", "pass"),
        "key path": (sys.executable, "-I", "-S", "-c", HOST, str(made.folder), path),
    }
    if shutil.which("openssl"):
        commands["openssl"] = (
            "openssl", "dgst", "-sha256", "-verify", str(folder / "key.pem"),
            "-signature", str(folder / "signature"), str(folder / "message"),
        )  # fmt: skip
    return commands


def main(arguments: list[str]) -> int:
    """Measure, print, compare with the gates."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="capsule-bench-") as name:
        commands = prepare(Path(name))
        walls: dict[str, list[float]] = {command: [] for command in commands}
        times: dict[str, list[float]] = {command: [] for command in commands}
        firsts: list[float] = []
        checks: list[float] = []
        for command in commands.values():
            run(*command)  # once for the page cache and the bytecode, which a host has from staging
        for _ in range(RUNS):
            for command, words in commands.items():
                wall_ms, used_ms, said = run(*words)
                walls[command].append(wall_ms)
                times[command].append(used_ms)
                if command == "key path":
                    first, again = map(float, said.split())
                    firsts.append(first)
                    checks.append(again)
    medians = {command: statistics.median(values) for command, values in times.items()}
    extra_ms = medians["key path"] - medians["python"]
    check_ms = statistics.median(checks)
    passed = extra_ms <= GATE_KEY_PATH_MS and check_ms <= GATE_CHECK_MS
    if options.json:
        print(
            json.dumps(
                {
                    "schema": 1,
                    "runs": RUNS,
                    "median_wall_ms": {
                        key: round(statistics.median(values), 2) for key, values in walls.items()
                    },
                    "median_ms": {key: round(value, 2) for key, value in medians.items()},
                    "key_path_above_python_ms": round(extra_ms, 2),
                    "key_path_gate_ms": GATE_KEY_PATH_MS,
                    "policy_check_ms": round(check_ms, 3),
                    "policy_check_first_ms": round(statistics.median(firsts), 3),
                    "policy_check_gate_ms": GATE_CHECK_MS,
                    "passed": passed,
                }
            )
        )
        return int(not passed)
    for command, value in medians.items():
        wall_ms = statistics.median(walls[command])
        print(f"{command:<10} {value:7.1f} ms of processor time, {wall_ms:7.1f} ms by the wall")
    print(f"key path above python: {extra_ms:.1f} ms (gate {GATE_KEY_PATH_MS:.0f} ms)")
    print(
        f"policy check, two signers: {check_ms:.2f} ms (gate {GATE_CHECK_MS:.0f} ms), "
        f"the first in a process {statistics.median(firsts):.2f} ms"
    )
    return int(not passed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
