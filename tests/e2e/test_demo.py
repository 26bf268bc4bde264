"""The demo is the end-to-end test: a real build, three hosts, two releases, one restored."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.network, pytest.mark.timeout(600)]


def running_below(folder):
    """Return the command lines of processes that run something below `folder`."""
    found = []
    for place in Path("/proc").iterdir():
        try:
            command = (place / "cmdline").read_bytes()
        except OSError:
            continue
        if os.fsencode(folder) in command and place.name != str(os.getpid()):
            found.append(command.replace(b"\0", b" ").decode())
    return found


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Run the demo once; return (its last table, what it said, its folder)."""
    folder = tmp_path_factory.mktemp("demo") / "d"
    done = subprocess.run(
        [sys.executable, "-m", "capsule", "demo", "--json", "--folder", str(folder)],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout), done.stderr, folder


def test_all_hosts_end_with_the_second_release(told):
    rows = told[0]["nodes"]
    assert [(row["node"], row["release"], row["state"]) for row in rows] == [
        (node, "2.0.0", "installed") for node in ("n1", "n2", "n3")
    ]


def test_the_broken_release_is_restored_on_one_host_and_touches_no_other(told):
    assert "exit code 5: as it should be" in told[1]
    assert "n1: held, serves" in told[1]
    assert "epoch: halted: the canary n1 failed" in told[1]


def test_every_host_has_signed_what_it_did(told):
    counts = {row["node"]: row["receipts"] for row in told[0]["nodes"]}
    # enrolled, staged three times and more, installed twice; n1 also restored
    assert counts["n2"] == counts["n3"] >= 6
    assert counts["n1"] == counts["n2"] + 1


def test_no_outage_is_longer_than_its_budget(told):
    assert all(0 < row["outage_ms"] < 40_000 for row in told[0]["nodes"])


def test_nothing_runs_when_it_has_ended(told):
    assert running_below(told[2]) == []
