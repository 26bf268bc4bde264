"""A policy from a trust owner's desk to a host, by medium and controller, all programs real."""

import json
from pathlib import Path

import pytest

from capsule.__main__ import main
from support.capsules import real_runtime, write_capsule

FLEET = """
format = 1
product = "acme/hello"
[fleet]
floor = 0
max_unavailable = 1
[nodes.n1]
local = "n1"
role = "web"
platform = "bookworm"
lane = "a"
[[waivers]]
node = "n1"
rule = "guard-level"
value = "L0"
reason = "a folder"
"""


class Site:
    """A site: keys, a controller with a trust folder, and one host that is a folder."""

    def __init__(self, folder: Path, capsys):
        self.folder = folder
        self._capsys = capsys
        (folder / "n1").mkdir(mode=0o755)
        (folder / "fleet.toml").write_text(FLEET)
        for name in ("ci", "route", "root", "ctl"):
            self.run("key", "generate", "--owner", name, "--out", folder / name, "--json")
        self.run(
            "trust", "init", "--product", "acme/hello", "--release-key", folder / "ci.pub",
            "--route-key", folder / "route.pub", "--trust-key", folder / "root.pub",
            "--output", folder / "trust.json",
        )  # fmt: skip
        self.trust = folder / "etc"

    def run(self, *arguments):
        """Return the exit code and the JSON answer, if there was one."""
        code = main([str(argument) for argument in arguments])
        out, err = self._capsys.readouterr()
        assert "Traceback" not in err
        return code, json.loads(out) if out.startswith("{") else out

    def capsule(self, counter):
        made = write_capsule(
            self.folder / f"{counter}.capsule", counter=counter, runtime=real_runtime(), signers=()
        )
        assert self.run("sign", made.folder, "--key", self.folder / "ci")[0] == 0
        return made

    def stage(self, made, policy):
        return self.run(
            "stage", made.folder, "--lane", "all", "--fleet", self.folder / "fleet.toml",
            "--policy", policy, "--route-key", self.folder / "route",
            "--controller-key", self.folder / "ctl", "--home", self.folder / "home", "--json",
        )  # fmt: skip

    def carry(self, number, *changes):
        """Revise the policy, put it on the medium, and take it at the controller."""
        before = self.folder / ("trust.json" if number == 2 else f"trust-{number - 1}.json")
        after = self.folder / f"trust-{number}.json"
        steps = (
            ("trust", "revise", before, *changes, "--output", after),
            ("trust", "export", after, "--key", self.folder / "root", "--medium",
             self.folder / "usb"),
            ("trust", "update", self.folder / "usb", "--trust-dir", self.trust,
             *(("--pin", self.folder / "trust.json") if number == 2 else ())),
        )  # fmt: skip
        for step in steps:
            assert self.run(*step)[0] == 0, step

    @property
    def host_policy(self):
        return json.loads((self.folder / "n1/etc/capsule/trust/policy.json").read_bytes())


@pytest.fixture
def site(tmp_path, capsys):
    return Site(tmp_path, capsys)


def only(answer):
    (node,) = answer["nodes"].values()
    return node.get("error")


def test_a_host_takes_the_next_policy_from_its_controller_and_never_an_older_one(site):
    made = site.capsule(7)
    assert site.stage(made, site.folder / "trust.json")[0] == 0
    assert site.host_policy["version"] == 1
    site.carry(2, "--floor", "7")
    newest = site.trust / "policy.json"
    assert site.stage(made, newest)[0] == 0
    assert site.host_policy["version"] == 2
    receipts = sorted((site.folder / "n1/var/lib/capsule/receipts").glob("[0-9]*"))
    assert len(receipts) >= 3, "enrolled, staged, trust"
    code, answer = site.stage(made, site.folder / "trust.json")
    assert (code, only(answer)) == (40, "policy-differs"), answer
    assert site.host_policy["version"] == 2


def test_a_capsule_that_the_next_policy_revokes_is_not_staged_again(site):
    made = site.capsule(7)
    assert site.stage(made, site.folder / "trust.json")[0] == 0
    site.carry(2, "--revoke-capsule", made.capsule)
    code, answer = site.stage(made, site.trust / "policy.json")
    assert (code, answer["error"]) == (12, "capsule-revoked")
