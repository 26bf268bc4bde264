"""The product's own commands against lab hosts, as an operator runs them."""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from support.lab.commands import LabError, command
from support.repositories import Repository

__all__ = ["CommandLine", "Node"]

_RELEASE = """\
format = 1
product = "acme/lab"
version = "{counter}.0.0"
release_counter = {counter}
[installer]
min_version = "0.1.0"
reason = "a release of the lab"
[platforms.bookworm]
machine = "x86_64"
glibc = "2.36"
python = "3.11"
[components.content]
{content}
[roles.web]
components = ["content"]
"""
_FLEET = """\
format = 1
product = "acme/lab"
[fleet]
floor = 0
max_unavailable = 1
"""
_NODE = """
[nodes.{name}]
address = "{address}"
port = {port}
host_key = "{host_key}"
user = "root"
role = "web"
platform = "bookworm"
lane = "{lane}"
[[waivers]]
node = "{name}"
rule = "guard-level"
value = "L0"
reason = "a host of the lab"
"""
_OWNERS = ("release", "route", "trust", "controller")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One entry of the inventory."""

    name: str
    address: str
    port: int
    host_key: str
    lane: str


class CommandLine:
    """A folder of keys, releases, inventory and controller state, and the program."""

    def __init__(self, folder: Path, client_key: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.environment = {**os.environ, "CAPSULE_SSH_IDENTITY": str(client_key)}
        (folder / "keys").mkdir(parents=True)
        for owner in _OWNERS:
            self.run("key", "generate", "--owner", owner, "--out", str(self.key(owner)))
        words = [f"--{owner}-key={self.key(owner)}.pub" for owner in ("release", "route", "trust")]
        self.run("trust", "init", "--product", "acme/lab", *words, "--output", "policy.json")

    def key(self, owner: str) -> Path:
        """Return the private key file of an owner."""
        return self.folder / "keys" / f"{owner}.key"

    def run(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run one command to its end.

        Raises:
            LabError: it failed, and `check` is true.
        """
        done = subprocess.run(
            [sys.executable, "-m", "capsule", *words],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if check and done.returncode:
            message = f"capsule {' '.join(words)} ended with {done.returncode}: {done.stderr}"
            raise LabError(f"{message}{done.stdout}")
        return done

    def write_fleet(self, nodes: Sequence[Node]) -> None:
        """Write the inventory."""
        entries = [
            _NODE.format(
                name=node.name,
                address=node.address,
                port=node.port,
                host_key=node.host_key,
                lane=node.lane,
            )
            for node in nodes
        ]
        (self.folder / "fleet.toml").write_text(_FLEET + "".join(entries))

    def build_wheel(self, counter: int, requirement: str) -> tuple[Path, Path]:
        """Build a capsule with one wheel, unpacked as it is; return it and the unpacked wheel."""
        wheels = self.folder / "wheels" / str(counter)
        pip = ("-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:")
        command(sys.executable, *pip, "--dest", wheels, requirement, timeout_s=300)
        [wheel] = wheels.iterdir()
        capsule = self._build(counter, f'kind = "toolchain"\nwheel = "{requirement}"', {})
        tree = self.folder / "trees" / str(counter)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(tree)
        return capsule, tree

    def build_files(self, counter: int, files: dict[str, bytes]) -> Path:
        """Build a capsule with these files."""
        content = 'kind = "source"\npath = "."\ninclude = ["content"]'
        return self._build(
            counter, content, {f"content/{name}": data for name, data in files.items()}
        )

    def _build(self, counter: int, content: str, files: dict[str, bytes]) -> Path:
        repository = Repository(self.folder / "releases" / str(counter))
        text = _RELEASE.format(counter=counter, content=content)
        repository.commit({"release.toml": text.encode(), **files})
        release = f"--release={repository.folder}/release.toml"
        self.run("lock", release)
        repository.commit()
        out = self.folder / "capsules" / str(counter)
        self.run("build", release, f"--key={self.key('release')}", f"--output={out}")
        [capsule] = out.glob("*.capsule")
        return capsule

    def stage(self, capsule: Path) -> dict[str, object]:
        """Stage a capsule on every node; return the program's own answer.

        Raises:
            LabError: a node failed.
        """
        done = self.run(*self.stage_words(capsule))
        answer: dict[str, object] = json.loads(done.stdout)
        return answer

    def stage_words(self, capsule: Path) -> tuple[str, ...]:
        """Return the words of the command that stages a capsule on every node."""
        return (
            "stage",
            str(capsule),
            "--lane=all",
            "--policy=policy.json",
            f"--route-key={self.key('route')}",
            f"--controller-key={self.key('controller')}",
            f"--home={self.home}",
            "--json",
        )
