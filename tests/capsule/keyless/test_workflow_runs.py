"""The page about signing in CI, carried out: its commands, in its order, on a release of its name.

Only the services are others: a loopback instance instead of the public one, named by a wrapper
around `capsule`, and no installation, because `capsule` is here.
"""

import json
import os
import re
import subprocess
import sys

import pytest
import yaml

from capsule.cli.init import IGNORED
from support.repositories import Repository
from support.sigstore_instance import RUNNER_SECRET
from support.sources import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PAGE = (ROOT / "docs" / "how-to" / "sign-in-ci.md").read_text()
GITHUB, GITLAB = (
    yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
)
INIT, _, COUNTER_SIGN = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
RELEASE = b"""\
format = 1
product = "acme/shop"
version = "1.0.0"
release_counter = 7
[installer]
min_version = "0.1.0"
reason = "the first release"
[platforms.bookworm]
machine = "x86_64"
glibc = "2.36"
python = "3.11"
[components.app]
kind = "source"
path = "."
include = ["app"]
[roles.web]
components = ["app"]
"""


class Shop:
    """A repository whose workflow releases, a person's desk with keys, and a CI system."""

    def __init__(self, folder, instance):
        self.folder = folder
        self.instance = instance
        self.desk = folder / "desk"
        self.work = folder / "work"
        (folder / "bin").mkdir()
        (folder / "instance").mkdir()
        program = folder / "bin" / "capsule"
        program.write_text(
            f'#!/bin/sh\ncase "$*" in *--keyless*) set -- "$@" --trust-config'
            f" '{folder}/instance/trust-config.json';; esac\n"
            f"exec '{sys.executable}' -m capsule \"$@\"\n"
        )
        program.chmod(0o755)
        instance.write(folder / "instance")

    def run(self, text, where, **variables):
        """Run lines as a CI system does: one shell, ended by the first that fails."""
        done = subprocess.run(
            ["bash", "-e", "-c", text], cwd=where, capture_output=True, text=True, check=False,
            env={
                "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
                "PYTHONPATH": ":".join(sys.path),
                "HOME": os.environ.get("HOME", "/"),
                **variables,
            },
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    def prepare(self, issuer, subject):
        """Write keys and the policy by the page's own command, lock and commit the release."""
        (self.desk / "trust").mkdir(parents=True)
        root = self.folder / "instance" / "trusted_root.json"
        (self.desk / "trust" / "trusted_root.json").write_bytes(root.read_bytes())
        for owner in ("qa", "ops", "root"):
            line = f"capsule key generate --owner {owner} --out {owner}; mv {owner} {owner}.key"
            assert self.run(line, self.desk)[0] == 0
        init = INIT
        for said, meant in (
            ("https://token.actions.githubusercontent.com", issuer),
            ("https://github.com/acme/shop/.github/workflows/release.yml@refs/heads/main", subject),
        ):
            assert init.count(said) == 1
            init = init.replace(said, meant)
        code, _, err = self.run(init, self.desk)
        assert code == 0, err
        repository = Repository(self.work)
        trust = {
            f"trust/{path.name}": path.read_bytes() for path in (self.desk / "trust").iterdir()
        }
        source = {"release.toml": RELEASE, "app/main.py": b"print(1)\n"}
        ignored = "".join(f"{name}\n" for name in IGNORED).encode()  # as `capsule init` leaves it
        repository.commit({**source, ".gitignore": ignored, **trust})
        code, _, err = self.run("capsule lock", self.work)
        assert code == 0, err
        repository.commit()

    def release(self, lines, **variables):
        """Run the commands of a job but the installation of `capsule` itself."""
        assert lines[0].startswith("python -m pip install --require-hashes")
        code, out, err = self.run("\n".join(lines[1:]), self.work, **variables)
        assert code == 0, out + err
        (capsule,) = (self.work / "dist").glob("*.capsule")
        return capsule

    def counter_sign(self, capsule):
        """Carry the artefact to the desk and do what the page says there."""
        target = self.desk / "dist" / capsule.name
        target.parent.mkdir()
        capsule.rename(target)
        commands = COUNTER_SIGN.replace("shop-7-0a1b2c3d.capsule", capsule.name)
        code, out, err = self.run(commands, self.desk)
        assert code == 0, err
        assert "hosts refuse it yet" in out
        line = f"capsule verify dist/{capsule.name} --policy trust/trust.json"
        code, out, err = self.run(line, self.desk)
        assert code == 0, err
        return out


@pytest.fixture
def shop(tmp_path, instance):
    return Shop(tmp_path, instance)


def test_the_workflow_of_github_releases_and_a_key_counter_signs(shop):
    issuer = "https://token.actions.githubusercontent.com"
    subject = "https://github.com/acme/shop/.github/workflows/release.yml@refs/heads/main"
    shop.prepare(issuer, subject)
    shop.instance.job.update(
        subject=subject, repository_id="123456789", runner_environment="github-hosted"
    )
    job = GITHUB["jobs"]["release"]
    lines = [line for step in job["steps"] for line in step.get("run", "").splitlines()]
    variables = {"GITHUB_ACTIONS": "true"}
    if job["permissions"].get("id-token") == "write":  # as the runner does
        variables["ACTIONS_ID_TOKEN_REQUEST_TOKEN"] = RUNNER_SECRET
        variables["ACTIONS_ID_TOKEN_REQUEST_URL"] = f"{shop.instance.url}/token?job=7"
    capsule = shop.release(lines, **variables)
    assert json.loads((capsule / "capsule.json").read_bytes())["release_counter"] == 7
    assert "hosts refuse it yet" not in shop.counter_sign(capsule)


def test_the_file_of_gitlab_releases_and_a_key_counter_signs(shop):
    issuer, subject = (
        "https://gitlab.com",
        ("https://gitlab.com/acme/shop//.gitlab-ci.yml@refs/heads/main"),
    )
    shop.prepare(issuer, subject)
    job = GITLAB["release"]
    claims = {"repository_id": "123456789", "runner_environment": "github-hosted"}
    tokens = {
        name: shop.instance.token(subject=subject, issuer=issuer, aud=asked["aud"], **claims)
        for name, asked in job["id_tokens"].items()
    }
    capsule = shop.release(job["script"], GITLAB_CI="true", **tokens)
    assert "hosts refuse it yet" not in shop.counter_sign(capsule)
