"""A folder from which commands that work with hosts are run, on hosts that only keep the wire."""

import json
from pathlib import Path
from typing import Any

import pytest

from capsule.__main__ import main
from capsule.builder.keyfile import generate_key, load_signer
from support.capsules import MiniCapsule, write_capsule

__all__ = ["FLEET", "NODE", "Desk"]

FLEET = """\
format = 1
product = "acme/hello"
[fleet]
floor = 0
max_unavailable = 1
guard_min = "L0"
"""
NODE = """
[nodes.{0}]
local = "hosts/{0}"
role = "web"
platform = "bookworm"
lane = "{1}"
"""


class Desk:
    """A folder with keys, a policy, an inventory of two hosts and a capsule."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = folder, capsys
        for name in ("release", "route", "trust", "controller"):
            generate_key(folder / f"{name}.key", owner=name)
        for node in ("n1", "n2"):
            (folder / "hosts" / node).mkdir(parents=True, mode=0o755)
        text = FLEET + NODE.format("n1", "a") + NODE.format("n2", "b")
        (folder / "fleet.toml").write_text(text)
        self.run(
            "trust", "init", "--product", "acme/hello", "--release-key", "release.key.pub",
            "--route-key", "route.key.pub", "--trust-key", "trust.key.pub",
            "--output", "trust.json",
        )  # fmt: skip
        self.mini = self.capsule(1)

    def capsule(self, counter: int) -> MiniCapsule:
        """Write the capsule of a release counter."""
        signers = (load_signer(self.folder / "release.key"),)
        return write_capsule(self.folder / f"{counter}.capsule", counter=counter, signers=signers)

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Return (exit code, stdout, stderr)."""
        code = main(arguments)
        said = self.capsys.readouterr()
        return code, said.out, said.err

    def json(self, *arguments: str) -> tuple[int, Any]:
        """Return (exit code, the document on stdout)."""
        code, out, _ = self.run(*arguments, "--json")
        return code, json.loads(out)

    def stage(self, *arguments: str, counter: int = 1) -> tuple[str, ...]:
        """Return the arguments that stage a capsule."""
        return (
            "stage", f"{counter}.capsule", *arguments, "--policy", "trust.json",
            "--route-key", "route.key", "--controller-key", "controller.key",
        )  # fmt: skip

    def install(self, *arguments: str, counter: int = 1) -> tuple[str, ...]:
        """Return the arguments that install a capsule."""
        return (
            "install", f"{counter}.capsule", *arguments, "--policy", "trust.json",
            "--controller-key", "controller.key",
        )  # fmt: skip

    def behave(self, node: str, **behaviour: object) -> None:
        """Tell a host that only keeps the wire how to answer."""
        (self.folder / "hosts" / node / "behave.json").write_text(json.dumps(behaviour))
