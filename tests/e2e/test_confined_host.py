"""A host with no network namespace, a read-only root and a refusing hook decides as any other.

The same steps run on a host as it is and on a confined one; what both answer is compared.
"""

import subprocess
import sys

import pytest

from support.confined_host import LAUNCHER, PROGRAM, ConfinedHost
from support.trust_site import Site

pytestmark = [pytest.mark.timeout(180), pytest.mark.root]

UNIT = """\
[Unit]
Description=Sleeps
[Service]
Type=simple
WorkingDirectory=@{generation}/app
ExecStart=/bin/sh main.sh
"""


def lived(site):
    """Return what a host answers to good and to bad: stage, install, verify, the next policy."""
    answers = []
    first = site.folder / "trust.json"
    made = site.capsule(7, components={"app": {"main.sh": b"exec sleep 1000\n"}}, unit=UNIT)
    for step in (site.stage, site.install):
        code, answer = step(made, first)
        answers.append((step.__name__, code, answer.get("error")))
    answers.append(("verify", site.on_host("verify", "--json")[0]))
    site.carry(2, "--revoke-capsule", made.capsule)
    update = (site.trust / "policy-update.json").read_bytes()
    for raw in (update.replace(b"A", b"B", 40), update, update):
        code, records = site.on_host("trust", "update", stdin=raw)
        answers.append(("trust update", code, [r.get("error", r["record"]) for r in records]))
    answers.append(("policy", site.host_policy["version"]))
    older = site.capsule(6, components={"app": {"main.sh": b"exit 1\n"}}, unit=UNIT)
    code, answer = site.stage(older, site.trust / "policy.json")
    answers.append(
        ("an older release", code, [node.get("error") for node in answer["nodes"].values()])
    )
    return answers


def test_the_hook_itself_ends_a_program_that_connects(tmp_path):
    program = ConfinedHost(tmp_path / "n1").runtime(
        {
            LAUNCHER: b"exec env -i true",
            PROGRAM: b"import socket; socket.create_connection(ADDRESS)",
        }
    )[PROGRAM]
    code = b"ADDRESS = ('127.0.0.1', 9)\n" + program
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 99


def test_a_confined_host_gives_the_same_answers_as_a_free_one(tmp_path, capsys):
    confined = ConfinedHost(tmp_path / "confined" / "n1")
    answers = []
    for name, surround in (("free", lambda runtime: runtime), ("confined", confined.runtime)):
        (tmp_path / name).mkdir(exist_ok=True)
        site = Site(tmp_path / name, capsys, surround=surround)
        try:
            answers.append(lived(site))
        finally:
            site.stop()
    free, shut_in = answers
    assert shut_in == free
    assert confined.starts >= 8, "the program ran outside"
    assert free[:3] == [("stage", 0, None), ("install", 0, None), ("verify", 0)]
