"""Programs that try to leave the network guard of a real host: `./dev lab guard --json`.

Each is a declared step of a release that is ordered at level L3, and once more without a guard,
where it must succeed: what can't get out anyway would prove nothing. `--json` prints
`{"rows": [{"case", "expected", "got", "ok"}]}`. The case of cron takes a minute.
"""

import argparse
import sys

from support.lab.fleet import Lab
from support.lab.guard_run import ready_host, run_cases
from support.lab.rows import Rows


def main() -> int:
    """Run the cases on one host, print a row each, and return 1 unless all are good."""
    parser = argparse.ArgumentParser(prog="./dev lab guard", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="these only; all without a name")
    parser.add_argument("--json", action="store_true", help="one object, for programs")
    told = parser.parse_args()
    rows = Rows(as_json=told.json)
    with Lab.open() as lab:
        host = lab.new_host()
        ready_host(host)
        for found in run_cases(host, *told.cases):
            rows.add(found["case"], expected=found["expected"], got=found["got"])
    return rows.end()


if __name__ == "__main__":
    sys.exit(main())
