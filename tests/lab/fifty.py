"""Fifty hosts at once, staged in lanes of eight: `./dev lab fifty [--hosts N] [--json]`.

Prints the wall time, and what the controller's process took of CPU and memory, of the first contact
with its 40 MB of host program for each host, of the next release, and of the same once more. Hosts
and controller come before what else runs here, which is not what is measured. The machine has to
stay usable: what a small command of the usual priority takes meanwhile is printed too.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from support.lab.command_line import CommandLine, Node
from support.lab.fleet import Lab

LANE_NODES = 8
WAITS_S = 0.2
FAVOURED_NICE = 10


def main() -> int:
    """Boot, stage three times, print; return 1 if a host was not staged."""
    parser = argparse.ArgumentParser(prog="./dev lab fifty", description=__doc__)
    parser.add_argument("--hosts", type=int, default=50)
    parser.add_argument("--json", action="store_true", help="for programs")
    told = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="capsule-lab-"))
    rows = []
    os.nice(-FAVOURED_NICE)
    try:
        with Lab.open() as lab:
            began = time.monotonic()
            hosts = lab.grow(told.hosts)
            hosts[0].favour()
            rows.append({"case": "boot", "wall_s": round(time.monotonic() - began, 1)})
            line = CommandLine(folder, lab.client_key)
            line.write_fleet([
                Node(
                    name=host.name, address=host.address, port=22, host_key=host.host_key,
                    lane=f"l{index // LANE_NODES}",
                )
                for index, host in enumerate(hosts)
            ])  # fmt: skip
            first = line.build_files(1, {"hello": b"1\n"})
            second = line.build_files(2, {f"f{index}": b"%d\n" % index for index in range(1000)})
            for case, capsule in (
                ("first contact", first), ("1,000 new files", second), ("no change", second)
            ):  # fmt: skip
                rows.append({"case": case, **staged(line, capsule)})
                print(rows[-1], file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(folder)
    if told.json:
        print(json.dumps({"hosts": told.hosts, "rows": rows, "load": os.getloadavg()[0]}))
    return 0 if all(row.get("staged", told.hosts) == told.hosts for row in rows) else 1


def staged(line: CommandLine, capsule: Path) -> dict[str, object]:
    """Stage a capsule on all nodes; return times, memory, and how many nodes have it."""
    waits: list[float] = []
    ended = threading.Event()

    def use_the_machine() -> None:
        while not ended.wait(WAITS_S):
            began = time.monotonic()
            subprocess.run(["nice", "-n", str(FAVOURED_NICE), "true"], check=True)
            waits.append(time.monotonic() - began)

    user = threading.Thread(target=use_the_machine)
    user.start()
    began = time.monotonic()
    with (line.folder / "answer.json").open("w+") as answer:
        argv = [sys.executable, "-m", "capsule", *line.stage_words(capsule)]
        process = subprocess.Popen(
            argv, cwd=line.folder, env=line.environment, stdout=answer, stderr=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall_s = time.monotonic() - began
        ended.set()
        user.join()
        answer.seek(0)
        nodes = json.loads(answer.read() or '{"nodes": {}}')["nodes"].values()
    return {
        "wall_s": round(wall_s, 1),
        "controller_cpu_s": round(usage.ru_utime + usage.ru_stime, 1),
        "controller_mb": round(usage.ru_maxrss / 1024),
        "slowest_small_command_ms": round(max(waits, default=0) * 1000),
        "staged": sum(node["state"] == "staged" for node in nodes),
    }


if __name__ == "__main__":
    sys.exit(main())
