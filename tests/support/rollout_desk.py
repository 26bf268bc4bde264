"""A fleet of folder hosts with the real host program, driven by the commands that a user types."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from capsule.__main__ import main
from capsule.builder.keyfile import generate_key, load_signer
from capsule.session import HostSession
from capsule.transport.local import LocalTransport
from support.capsules import Files, MiniCapsule, real_runtime, write_capsule

__all__ = ["BROKEN", "GOOD", "RolloutDesk"]

UNIT = """\
[Unit]
Description=Sleeps
[Service]
Type=simple
WorkingDirectory=@{generation}/app
ExecStart=/bin/sh main.sh @{node.id}
TimeoutStartSec=2
TimeoutStopSec=2
"""
GOOD = {"app": {"main.sh": b"exec sleep 1000\n"}}
BROKEN = {"app": {"main.sh": b"exit 1\n"}}


class RolloutDesk:
    """`lanes` maps lane names to node names."""

    def __init__(
        self,
        folder: Path,
        capsys: pytest.CaptureFixture[str],
        lanes: Mapping[str, Sequence[str]],
        *,
        floor: int = 0,
        max_unavailable: int = 2,
    ) -> None:
        self.folder, self.capsys = folder, capsys
        self.lanes = lanes
        self.nodes = [node for nodes in lanes.values() for node in nodes]
        for name in ("release", "route", "trust", "controller"):
            generate_key(folder / f"{name}.key", owner=name)
        for node in self.nodes:
            self.root(node).mkdir(parents=True, mode=0o755)
        (folder / "fleet.toml").write_text(_fleet(lanes, floor, max_unavailable))
        self.run(
            "trust", "init", "--product", "acme/hello", "--release-key", "release.key.pub",
            "--route-key", "route.key.pub", "--trust-key", "trust.key.pub",
            "--output", "trust.json",
        )  # fmt: skip

    def root(self, node: str) -> Path:
        """Return the folder that is a host."""
        return self.folder / "hosts" / node

    def session(self, node: str) -> HostSession:
        """Return a session with a host."""
        return HostSession(LocalTransport(self.root(node)), node=node)

    def capsule(
        self, counter: int, components: Mapping[str, Files] | None = None, *, soak_ms: int = 100
    ) -> MiniCapsule:
        """Write the capsule of a release counter."""
        return write_capsule(
            self.folder / f"{counter}.capsule",
            counter=counter,
            components=components or GOOD,
            runtime=real_runtime(),
            unit=UNIT + f"Environment=COUNTER={counter}\n",
            signers=(load_signer(self.folder / "release.key"),),
            soak_ms=soak_ms,
        )

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Return (exit code, stdout, stderr)."""
        code = main(arguments)
        said = self.capsys.readouterr()
        return code, said.out, said.err

    def json(self, *arguments: str) -> tuple[int, Any]:
        """Return (exit code, the document on stdout)."""
        code, out, err = self.run(*arguments, "--json")
        assert out, err
        return code, json.loads(out)

    def stage(self, counter: int) -> None:
        """Stage on all hosts."""
        code, _, err = self.run(
            "stage", f"{counter}.capsule", "--lane", "all", "--policy", "trust.json",
            "--route-key", "route.key", "--controller-key", "controller.key",
        )  # fmt: skip
        assert code == 0, err

    def preflight(self, counter: int) -> tuple[int, Any]:
        """Look at all hosts."""
        return self.json("preflight", f"{counter}.capsule", "--policy", "trust.json")

    def rollout(self, verb: str, counter: int, *arguments: str) -> tuple[int, str, str]:
        """Run a verb of `capsule rollout`."""
        return self.run(
            "rollout", verb, f"{counter}.capsule", "--policy", "trust.json",
            "--controller-key", "controller.key", *arguments,
        )  # fmt: skip

    def lane(self, verb: str, lane: str, counter: int) -> tuple[int, str, str]:
        """Run a verb of `capsule lane`."""
        return self.run(
            "lane", verb, lane, f"{counter}.capsule", "--policy", "trust.json",
            "--controller-key", "controller.key",
        )  # fmt: skip

    def status(self) -> Any:
        """Return the report of the last epoch."""
        return self.json("rollout", "report", "--policy", "trust.json")[1]

    def states(self) -> dict[str, str]:
        """Return the state of each node in the last epoch."""
        return {node: fields["state"] for node, fields in self.status()["nodes"].items()}

    def current(self, node: str) -> str:
        """Return the generation that a host runs."""
        return self.session(node).hello().current

    def stop(self) -> None:
        """End all services."""
        for node in self.nodes:
            script = self.root(node) / "var/lib/capsule/recovery/service-process.sh"
            if script.exists():
                argv = ["sh", str(script), str(self.root(node)), "stop", "hello.service", "3000"]
                subprocess.run(argv, check=False)


def _fleet(lanes: Mapping[str, Sequence[str]], floor: int, max_unavailable: int) -> str:
    lines = [
        "format = 1", 'product = "acme/hello"', "[fleet]", f"floor = {floor}",
        f"max_unavailable = {max_unavailable}", 'guard_min = "L0"',
    ]  # fmt: skip
    for lane, nodes in lanes.items():
        for node in nodes:
            lines += [
                f"[nodes.{node}]", f'local = "hosts/{node}"', 'role = "web"',
                'platform = "bookworm"', f'lane = "{lane}"',
            ]  # fmt: skip
    return "\n".join(lines) + "\n"


def marker_path(root: Path) -> Path:
    """Return where a host keeps its installed marker."""
    return root / "var/lib/capsule/state/installed.json"
