"""A site for tests of trust: keys, a controller with a trust folder, one host that is a folder."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from capsule.__main__ import main
from support.capsules import MiniCapsule, real_runtime, write_capsule
from support.wrong_clock import WrongClock

__all__ = ["Site"]

Files = Mapping[str, bytes]
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
    """Runs commands in this process, or with `clock` in processes that see another time.

    `surround` changes the host's program before it is put into a capsule.
    """

    def __init__(
        self,
        folder: Path,
        capsys: pytest.CaptureFixture[str],
        *,
        clock: WrongClock | None = None,
        surround: Callable[[Files], Files] = lambda runtime: runtime,
    ) -> None:
        self.folder = folder
        self._capsys = capsys
        self.clock = clock
        self._surround = surround
        self.host = folder / "n1"
        self.host.mkdir(mode=0o755, exist_ok=True)
        self.trust = folder / "etc"
        (folder / "fleet.toml").write_text(FLEET)
        for name in ("ci", "route", "root", "ctl"):
            self.run("key", "generate", "--owner", name, "--out", folder / name, "--json")
        self.run(
            "trust", "init", "--product", "acme/hello", "--release-key", folder / "ci.pub",
            "--route-key", folder / "route.pub", "--trust-key", folder / "root.pub",
            "--output", folder / "trust.json",
        )  # fmt: skip

    def run(self, *arguments: object) -> tuple[int, Any]:
        """Return the exit code and the JSON answer, if there was one."""
        words = [str(argument) for argument in arguments]
        if self.clock is None:
            code = main(words)
            out, err = self._capsys.readouterr()
        else:
            done = subprocess.run(
                [sys.executable, "-m", "capsule", *words], capture_output=True, text=True,
                env={**os.environ, "PYTHONPATH": ":".join(sys.path), **self.clock.environment},
                timeout=120, check=False,
            )  # fmt: skip
            code, out, err = done.returncode, done.stdout, done.stderr
        assert "Traceback" not in err, err
        return code, json.loads(out) if out.startswith("{") else out

    def capsule(self, counter: int, **options: Any) -> MiniCapsule:
        runtime = self._surround(real_runtime())
        folder = self.folder / f"{counter}.capsule"
        made = write_capsule(folder, counter=counter, runtime=runtime, signers=(), **options)
        assert self.run("sign", made.folder, "--key", self.folder / "ci")[0] == 0
        return made

    def stage(self, made: MiniCapsule, policy: Path) -> tuple[int, Any]:
        return self.run(
            "stage", made.folder, "--lane", "all", "--fleet", self.folder / "fleet.toml",
            "--policy", policy, "--route-key", self.folder / "route",
            "--controller-key", self.folder / "ctl", "--home", self.folder / "home", "--json",
        )  # fmt: skip

    def install(self, made: MiniCapsule, policy: Path) -> tuple[int, Any]:
        return self.run(
            "install", made.folder, "--node", "n1", "--policy", policy,
            "--controller-key", self.folder / "ctl", "--home", self.folder / "home", "--json",
        )  # fmt: skip

    def on_host(self, *words: str, stdin: bytes = b"") -> tuple[int, list[Any]]:
        """Run the host's own program; return its exit code and its records."""
        done = subprocess.run(
            [self.host / "opt/capsule/bin/capsule", *words], input=stdin, capture_output=True,
            check=False,
        )  # fmt: skip
        lines = done.stdout.decode().replace("\x1e", "").splitlines()
        return done.returncode, [json.loads(line) for line in lines if line.startswith("{")]

    def export(self, number: int, *changes: str) -> Any:
        """Write version `number` of the policy and put it on the medium."""
        before = self.folder / ("trust.json" if number == 2 else f"trust-{number - 1}.json")
        after = self.folder / f"trust-{number}.json"
        assert self.run("trust", "revise", before, *changes, "--output", after)[0] == 0
        code, answer = self.run(
            "trust", "export", after, "--key", self.folder / "root",
            "--medium", self.folder / "usb", "--json",
        )  # fmt: skip
        assert code == 0, answer
        return answer

    def update(self) -> tuple[int, Any]:
        """Take at the controller what the medium brings."""
        pin = () if (self.trust / "policy.json").exists() else ("--pin", self.folder / "trust.json")
        return self.run(
            "trust", "update", self.folder / "usb", "--trust-dir", self.trust, "--json", *pin
        )

    def carry(self, number: int, *changes: str) -> None:
        """Revise the policy, put it on the medium, and take it at the controller."""
        self.export(number, *changes)
        code, answer = self.update()
        assert code == 0, answer

    def stop(self) -> None:
        """Stop the service that was installed, if any."""
        script = self.host / "var/lib/capsule/recovery/service-process.sh"
        if script.exists():
            argv = ["sh", str(script), str(self.host), "stop", "hello.service", "3000"]
            subprocess.run(argv, check=False)

    @property
    def host_policy(self) -> Any:
        return json.loads((self.host / "etc/capsule/trust/policy.json").read_bytes())
