"""Hosts to look at by hand: `./dev lab up 3`, `./dev lab status`, `./dev lab down`.

They stay until `down`. The runs of tests are their own and not touched while their process lives;
what a killed one left is shown and taken down as well.
"""

import argparse
import json
import sys

from support.lab.commands import LabError
from support.lab.fleet import Lab


def main() -> int:
    """Do what the arguments say and return the exit code."""
    parser = argparse.ArgumentParser(prog="./dev lab", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    up = verbs.add_parser("up", help="boot hosts until so many are up")
    up.add_argument("count", type=int, nargs="?", default=3, metavar="N")
    status = verbs.add_parser("status", help="list the hosts")
    status.add_argument("--json", action="store_true", help="for programs")
    verbs.add_parser("down", help="take all of them down")
    told = parser.parse_args()
    try:
        if told.verb == "up":
            return run_up(told.count)
        if told.verb == "down":
            return run_down()
        return run_status(as_json=told.json)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1


def run_up(count: int) -> int:
    """Bring the kept run to `count` hosts that are up."""
    lab = Lab.keep()
    for host in lab.hosts():
        host.boot()
    missing = count - len(lab.hosts())
    if missing > 0:
        lab.grow(missing)
    return run_status(as_json=False)


def run_status(*, as_json: bool) -> int:
    """Print one line a host, and how to reach it."""
    lab = Lab.kept()
    left = Lab.left_behind()
    rows = [
        {
            "name": host.name,
            "run": run.run,
            "left_behind": run in left,
            "address": host.address,
            "state": host.state(),
            "pid": host.pid,
            "host_key": host.host_key,
            "ssh": host.ssh(),
        }
        for run in (*([lab] if lab else []), *left)
        for host in run.hosts()
    ]
    if as_json:
        print(json.dumps(rows))
        return 0
    if not rows:
        print("no hosts; next: ./dev lab up 3")
    for row in rows:
        note = ", left by a killed process" if row["left_behind"] else ""
        print(f"{row['name']}  {row['state']:8}{row['address']:15} pid {row['pid']}{note}")
    if lab and lab.hosts():
        print(f"\nto one of them:  {' '.join(lab.hosts()[0].ssh())}")
    return 0


def run_down() -> int:
    """Take down the kept run, and those that a killed process left."""
    runs = [run for run in (Lab.kept(), *Lab.left_behind()) if run]
    for run in runs:
        run.down()
    print("down" if runs else "nothing was up")
    return 0


if __name__ == "__main__":
    sys.exit(main())
