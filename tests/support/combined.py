"""A release with everything in it: source, wheels, a closure of Nix, an image; all of them real.

`CombinedRelease` is its folder, a git work tree, and how a user runs `capsule` there. Nothing here
decides what is right: it makes the inputs, and says what they are.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from capsule.builder.keyfile import generate_key
from support.greeting import greeting_flake
from support.repositories import Repository
from support.sources import ROOT

__all__ = ["TARGETS", "WHEELS", "CombinedRelease", "locked_wheels"]

# platform -> (glibc, Python). The first is what hosts of the lab are.
TARGETS = {
    "bookworm": ("2.36", "3.11"),
    "bookworm-py312": ("2.36", "3.12"),
    "older": ("2.28", "3.11"),
    "older-py312": ("2.28", "3.12"),
}
WHEELS = 60
# All that this project imports, a server, and six that complete the number.
_LOCKS = ("requirements.lock", "examples/hello/requirements.lock")
_MORE = ("attrs", "defusedxml", "pyparsing", "pyyaml", "six", "sortedcontainers")
_NOT_ON_LINUX = ("tzdata",)
_BLOCK = re.compile(r"^([A-Za-z0-9._-]+)==.*(?:\n[ ]+--hash=.*)*", re.MULTILINE)

_RELEASE = """\
format = 1
product = "acme/combined"
version = "1.0.0"
release_counter = 1
[installer]
min_version = "0.1.0"
reason = "the first release"
{platforms}
[components.project]
kind = "source"
path = "project"
[components.app]
kind = "source"
path = "."
include = ["serve.py", "example.pem"]
[components.deps]
kind = "wheels"
requirements = "requirements.lock"
[components.greet]
kind = "toolchain"
nix.flake = "."
[components.base]
kind = "image"
reference = "{image}"
[components.web]
kind = "service"
[[components.web.units]]
file = "web.service"
soak_s = 1.0
probe = {{ http = "http://127.0.0.1:@{{node.port}}/", timeout_s = 5.0 }}
{greet}[roles.web]
components = ["project", "app", "deps", "greet", "base", "web"]
[budgets]
d1_s = 60
d2_s = 60
"""
_GREETS = """\
[[components.web.units]]
file = "greet.service"
soak_s = 1.0
"""
_PLATFORM = """\
[platforms.{name}]
machine = "x86_64"
glibc = "{glibc}"
python = "{python}"
"""
# Its answer names the wheels that it runs on, and which of them it could import.
_SERVE = """\
import importlib
import importlib.metadata
import json
import sys

MODULES = {modules!r}
imported = [name for name in MODULES if importlib.import_module(name)]
found = sorted({{item.name for item in importlib.metadata.distributions()}})
told = {{"python": sys.version_info[:2], "wheels": found, "imported": imported}}
body = json.dumps(told).encode()


async def app(scope, receive, send):
    if scope["type"] == "http":
        kind = [(b"content-type", b"application/json")]
        await send({{"type": "http.response.start", "status": 200, "headers": kind}})
        await send({{"type": "http.response.body", "body": body}})
"""
_WEB = """\
[Unit]
Description=Answers with its wheels
[Service]
WorkingDirectory=@{generation}/app
Environment=PYTHONDONTWRITEBYTECODE=1
ExecStart=@{generation}/deps/bin/uvicorn --host 0.0.0.0 --port @{node.port} --lifespan off serve:app
TimeoutStartSec=20
TimeoutStopSec=5
[Install]
WantedBy=multi-user.target
"""
_GREET = """\
[Unit]
Description=Greets from a closure
[Service]
BindReadOnlyPaths=@{generation}/greet/nix/store:/nix/store
ExecStart=@{generation}/greet/bin/greet
TimeoutStartSec=5
TimeoutStopSec=2
[Install]
WantedBy=multi-user.target
"""
# A secret that is meant to be there, as an example may have one.
_EXAMPLE = "example.pem"
_WAIVERS = f"""\
[[waivers]]
component = "app"
path = "{_EXAMPLE}"
rule = "private-key"
reason = "made for this release, trusted by nobody"
until = 2100-01-01
"""


def locked_wheels() -> dict[str, str]:
    """Return the lines of each requirement, by name: versions and digests as this tree has them."""
    found: dict[str, list[str]] = {}
    texts = [(ROOT / name).read_text() for name in (*_LOCKS, "requirements-dev.lock")]
    for place, text in enumerate(texts):
        known = set(found)
        for match in _BLOCK.finditer(text):
            name = match[1]
            is_wanted = place < len(_LOCKS) or name in _MORE
            if is_wanted and name not in known and name not in _NOT_ON_LINUX:
                # One name may have two versions, each for some Pythons.
                found.setdefault(name, []).append(match[0])
    return {name: "\n".join(lines) for name, lines in sorted(found.items())}


@dataclass(kw_only=True)
class CombinedRelease:
    """The release below `folder`; `environment` is what its user's programs are started with.

    `greets` says whether the closure's program is a unit, which needs hosts with mount namespaces.
    """

    folder: Path
    image: str
    numbers: int
    requirements: str
    modules: tuple[str, ...]
    targets: tuple[str, ...] = tuple(TARGETS)
    greets: bool = True
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))

    @property
    def work(self) -> Path:
        """The work tree."""
        return self.folder / "release"

    @property
    def project(self) -> Path:
        """The clone of this project, whose files are a component."""
        return self.work / "project"

    def write(self, source: Path = ROOT) -> str:
        """Write and commit it; return the commit of `source`, which it has as a component."""
        repository = Repository(self.work)
        subprocess.run(
            ["git", "clone", "--quiet", "--no-hardlinks", str(source), str(self.project)],
            check=True, capture_output=True,
        )  # fmt: skip
        platforms = "".join(
            _PLATFORM.format(name=name, glibc=TARGETS[name][0], python=TARGETS[name][1])
            for name in self.targets
        )
        greet = _GREETS if self.greets else ""
        text = _RELEASE.format(platforms=platforms, image=self.image, greet=greet)
        repository.commit(
            {
                # The clone is a work tree of its own, so it is no content of this one.
                ".gitignore": b"/project/\n",
                _EXAMPLE: _private_key(),
                "flake.nix": greeting_flake(self.numbers),
                "greet.service": _GREET.encode(),
                "release.toml": text.encode(),
                "requirements.lock": self.requirements.encode(),
                "secret-waivers.toml": _WAIVERS.encode(),
                "serve.py": _SERVE.format(modules=self.modules).encode(),
                "web.service": _WEB.encode(),
            }
        )
        for name in ("release", "route", "trust", "controller"):
            generate_key(self.folder / f"{name}.key", owner=name)
        return self.git(self.project, "rev-parse", "HEAD")

    def git(self, folder: Path, *words: str) -> str:
        """Run git in a folder and return what it prints."""
        done = subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)
        return done.stdout.decode().strip()

    def commit_all(self) -> None:
        """Commit all that is there: what `capsule lock` wrote, what was changed."""
        Repository(self.work).commit()

    def trust(self) -> None:
        """Write the first policy, which trusts the keys of this folder."""
        self.run(
            "trust", "init", "--product", "acme/combined", "--release-key", "release.key.pub",
            "--route-key", "route.key.pub", "--trust-key", "trust.key.pub",
            "--output", "trust.json",
        )  # fmt: skip

    def required_on(self, platform: str) -> set[str]:
        """Return `name==version` of what the requirements ask for on a platform, by `packaging`."""
        environment = {
            "implementation_name": "cpython",
            "os_name": "posix",
            "platform_machine": "x86_64",
            "platform_python_implementation": "CPython",
            "platform_system": "Linux",
            "python_full_version": f"{TARGETS[platform][1]}.5",
            "python_version": TARGETS[platform][1],
            "sys_platform": "linux",
        }
        lines = [line.removesuffix("\\") for line in self.requirements.splitlines()]
        asked = [Requirement(line) for line in lines if "==" in line and "--hash" not in line]
        return {
            f"{canonicalize_name(item.name)}{item.specifier}"
            for item in asked
            if item.marker is None or item.marker.evaluate(environment)
        }

    def reaches(self, name: str, *, is_offline: bool) -> str:
        """Say whether HOST:PORT is reached from where `run` runs programs."""
        host, _, port = name.rpartition(":")
        script = f"import socket; socket.create_connection(({host!r}, {port}), timeout=2)"
        apart = ["unshare", "--net"] if is_offline else []
        done = subprocess.run(
            [*apart, sys.executable, "-c", script], check=False, capture_output=True
        )
        return "unreachable" if done.returncode else "reached"

    def run(
        self, *words: str, codes: tuple[int, ...] = (0,), is_offline: bool = False
    ) -> "subprocess.CompletedProcess[str]":
        """Run `capsule` as of the commit that is in the release.

        Offline is in a network namespace that has no way out.
        """
        apart = ["unshare", "--net"] if is_offline else []
        parts = (str(self.project / part) for part in ("manifest", "installer", "capsule"))
        done = subprocess.run(
            [*apart, sys.executable, "-m", "capsule", *words], cwd=self.folder,
            env={**self.environment, "PYTHONPATH": os.pathsep.join(parts)},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode not in codes:
            told = f"{done.stderr[-2000:]}\n{done.stdout[-2000:]}"
            message = f"capsule {words[0]} ended with {done.returncode}: {told}"
            raise AssertionError(message)
        return done


def _private_key() -> bytes:
    argv = ["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]
    return subprocess.run(argv, check=True, capture_output=True).stdout
