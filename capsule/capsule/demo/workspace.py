"""The folder of a demo: a git repository made from the example, keys, hosts, an inventory.

Everything lies below one folder, which the user may name; nothing outside of it is touched but the
cache of downloaded wheels, which every build shares.
"""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from capsule_manifest.errors import Failed

__all__ = ["NODES", "Workspace", "example_folder", "free_ports"]

NODES: Final = ("n1", "n2", "n3")

_AUTHOR: Final = {"name": "demo", "email": "demo@example.invalid"}
_COMMAND_S: Final = 280.0


def example_folder() -> Path | None:
    """Return the example of the checkout that this package lies in, if it lies in one."""
    folder = Path(__file__).resolve().parents[3] / "examples" / "hello"
    return folder if (folder / "release.toml").is_file() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """Paths and commands of one demo."""

    folder: Path
    example: Path
    ports: Mapping[str, int]

    @property
    def source(self) -> Path:
        """Return the git repository of the service."""
        return self.folder / "source"

    @property
    def policy(self) -> Path:
        """Return the trust policy."""
        return self.folder / "trust.json"

    @property
    def fleet(self) -> Path:
        """Return the inventory."""
        return self.folder / "fleet.toml"

    def key(self, name: str) -> Path:
        """Return where a private key lies."""
        return self.folder / "keys" / f"{name}.key"

    def host(self, node: str) -> Path:
        """Return the folder that is a host."""
        return self.folder / "hosts" / node

    def prepare(self) -> None:
        """Make the folders, the inventory, and the repository with release 1 in it.

        Raises:
            Failed: `demo-failed` when git does not work.
        """
        for folder in (self.folder / "keys", *(self.host(node) for node in NODES)):
            folder.mkdir(parents=True, mode=0o755)
        self.fleet.write_text(_fleet(self.ports), encoding="utf-8")
        shutil.copytree(
            self.example,
            self.source,
            ignore=shutil.ignore_patterns("releases", "fleet.toml", "__pycache__", "release.lock"),
        )
        self._git("init", "--quiet", "--initial-branch=main")

    def apply(self, release: int) -> None:
        """Lay the changes of a later release over the repository."""
        changes = self.example / "releases" / str(release)
        shutil.copytree(changes, self.source, dirs_exist_ok=True)

    def commit(self, message: str) -> None:
        """Commit everything in the repository. Raises: `demo-failed`."""
        self._git("add", "--all")
        self._git("commit", "--quiet", "--message", message)

    def run(self, *arguments: str) -> tuple[int, str]:
        """Run one command of capsule as a user would; return its exit code and its output.

        Raises:
            Failed: `demo-failed` when it takes too long.
        """
        argv = [sys.executable, "-m", "capsule", *arguments]
        environment = {**os.environ, "XDG_STATE_HOME": str(self.folder / "state")}
        try:
            done = subprocess.run(
                argv,
                cwd=self.source,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=_COMMAND_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise Failed(
                "demo-failed",
                "a command took too long",
                expected=f"at most {_COMMAND_S:g} s",
                got=" ".join(arguments),
            ) from error
        return done.returncode, done.stdout.decode("utf-8", errors="replace")

    def stop_services(self) -> None:
        """Stop what the hosts run, with the script that they keep for rescue."""
        for node in NODES:
            root = self.host(node)
            script = root / "var/lib/capsule/recovery/service-process.sh"
            if script.is_file():
                argv = ["sh", str(script), str(root), "stop", "hello.service", "5000"]
                subprocess.run(argv, check=False, stdin=subprocess.DEVNULL, timeout=30)

    def _git(self, *arguments: str) -> None:
        # No configuration of the user: hooks, signing and templates have no place in a demo.
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "LC_ALL": "C.UTF-8",
            **{f"GIT_{who}_NAME": _AUTHOR["name"] for who in ("AUTHOR", "COMMITTER")},
            **{f"GIT_{who}_EMAIL": _AUTHOR["email"] for who in ("AUTHOR", "COMMITTER")},
        }
        argv: Sequence[str] = ["git", *arguments]
        try:
            done = subprocess.run(
                argv, cwd=self.source, env=environment, capture_output=True, check=False
            )
        except FileNotFoundError as error:
            raise Failed("demo-failed", "git is not installed") from error
        if done.returncode != 0:
            said = done.stderr.decode("utf-8", errors="replace").strip()
            raise Failed("demo-failed", f"git {arguments[0]} failed", got=said)


def free_ports(count: int) -> list[int]:
    """Return ports of loopback that nobody listens on now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [int(item.getsockname()[1]) for item in sockets]
    finally:
        for item in sockets:
            item.close()


def _fleet(ports: Mapping[str, int]) -> str:
    lines = [
        "# Three hosts that are folders of this machine.",
        "format = 1",
        'product = "example/hello"',
        "",
        "[fleet]",
        "floor = 2",
        "max_unavailable = 1",
    ]
    for node, port in ports.items():
        lines += [
            "",
            f"[nodes.{node}]",
            f'local = "hosts/{node}"',
            'role = "web"',
            'platform = "linux"',
            'lane = "a"',
            f'vars = {{ port = "{port}" }}',
            "",
            "[[waivers]]",
            f'node = "{node}"',
            'rule = "guard-level"',
            'value = "L0"',
            'reason = "a folder has no network namespace of its own"',
        ]
    return "\n".join(lines) + "\n"
