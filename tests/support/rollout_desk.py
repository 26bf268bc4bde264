"""A fleet of folder hosts with the real host program, driven by the commands that a user types."""

import json
import subprocess
from pathlib import Path

from capsule.__main__ import main
from capsule.builder.keyfile import generate_key, load_signer
from capsule.session import HostSession
from capsule.transport.local import LocalTransport
from support.capsules import real_runtime, write_capsule

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

    def __init__(self, folder, capsys, lanes, *, floor=0, max_unavailable=2):
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

    def root(self, node):
        return self.folder / "hosts" / node

    def session(self, node):
        return HostSession(LocalTransport(self.root(node)), node=node)

    def capsule(self, counter, components=None, **options):
        return write_capsule(
            self.folder / f"{counter}.capsule",
            counter=counter,
            components=components or GOOD,
            runtime=real_runtime(),
            unit=UNIT + f"Environment=COUNTER={counter}\n",
            signers=(load_signer(self.folder / "release.key"),),
            **options,
        )

    def run(self, *arguments):
        """Return (exit code, stdout, stderr)."""
        code = main(arguments)
        said = self.capsys.readouterr()
        return code, said.out, said.err

    def json(self, *arguments):
        code, out, err = self.run(*arguments, "--json")
        assert out, err
        return code, json.loads(out)

    def stage(self, counter):
        code, _, err = self.run(
            "stage", f"{counter}.capsule", "--lane", "all", "--policy", "trust.json",
            "--route-key", "route.key", "--controller-key", "controller.key",
        )  # fmt: skip
        assert code == 0, err

    def preflight(self, counter):
        return self.json("preflight", f"{counter}.capsule", "--policy", "trust.json")

    def rollout(self, verb, counter, *arguments):
        return self.run(
            "rollout", verb, f"{counter}.capsule", "--policy", "trust.json",
            "--controller-key", "controller.key", *arguments,
        )  # fmt: skip

    def lane(self, verb, lane, counter):
        return self.run(
            "lane", verb, lane, f"{counter}.capsule", "--policy", "trust.json",
            "--controller-key", "controller.key",
        )  # fmt: skip

    def status(self):
        return self.json("rollout", "report", "--policy", "trust.json")[1]

    def states(self):
        return {node: fields["state"] for node, fields in self.status()["nodes"].items()}

    def current(self, node):
        return self.session(node).hello().current

    def stop(self):
        for node in self.nodes:
            script = self.root(node) / "var/lib/capsule/recovery/service-process.sh"
            if script.exists():
                argv = ["sh", str(script), str(self.root(node)), "stop", "hello.service", "3000"]
                subprocess.run(argv, check=False)


def _fleet(lanes, floor, max_unavailable):
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
