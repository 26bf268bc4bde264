"""A small release in a git work tree: source, wheels, tools, and a host program's wheels."""

import hashlib
from pathlib import Path

from capsule.builder.config import ReleaseSource, load_release
from support.repositories import Repository
from support.wheels import WheelFile

__all__ = ["ReleaseFolder"]

_TOML = """\
format = 1
product = "acme/hello"
version = "1.0.0"
release_counter = 1
[installer]
min_version = "0.1.0"
reason = "the first release"
[platforms.bookworm]
machine = "x86_64"
glibc = "2.36"
python = "3.11"
[platforms.trixie]
machine = "x86_64"
glibc = "2.41"
python = "3.13"
[components.app]
kind = "source"
path = "."
include = ["app"]
[components.deps]
kind = "wheels"
requirements = "requirements.lock"
[components.linter]
kind = "helper"
wheel = "linter==1.0"
member = "*.data/scripts/*"
[components.fetched]
kind = "helper"
url = "https://example.org/bin/fetched"
sha256 = "{fetched}"
[components.script]
kind = "helper"
path = "tools/script"
[roles.web]
components = ["app", "deps", "linter", "fetched", "script"]
"""

FETCHED = b"\x7fELF fetched"


class ReleaseFolder:
    """A committed release below `folder`, with an index beside it that has its wheels."""

    url = "https://example.org/bin/fetched"

    def __init__(self, folder: Path) -> None:
        self.index = folder / "index"
        self.index.mkdir(parents=True)
        self.repository = Repository(folder / "work")
        self.work = self.repository.folder
        self.files = {self.url: FETCHED}
        self.repository.commit(
            {
                "release.toml": _TOML.format(fetched=hashlib.sha256(FETCHED).hexdigest()).encode(),
                "app/main.py": b"print(1)\n",
                "tools/script": b"#!/bin/sh\n",
                ".gitignore": b"release.lock\n",
            }
        )
        self.put(WheelFile(name="pure", files={"pure.py": b""}))
        for tag in ("cp311-cp311", "cp313-cp313"):
            self.put(
                WheelFile(
                    name="native",
                    tag=f"{tag}-manylinux_2_17_x86_64",
                    files={"native.so": tag.encode()},
                    metadata="Requires-Dist: pure\n",
                )
            )
        self.put(
            WheelFile(
                name="linter",
                tag="py3-none-manylinux_2_17_x86_64",
                files={"linter-1.0.data/scripts/linter": b"\x7fELF linter"},
            )
        )
        self.require("pure", "native")

    @property
    def release(self) -> ReleaseSource:
        """Return the release as it is now."""
        return load_release(self.work / "release.toml")

    def put(self, wheel: WheelFile) -> Path:
        """Put a wheel into the index."""
        return wheel.write(self.index)

    def require(self, *names: str) -> None:
        """Lock these distributions with the digests of all their wheels, and commit."""
        lines = []
        for name in names:
            hashes = " ".join(
                f"--hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
                for path in sorted(self.index.glob(f"{name}-*.whl"))
            )
            lines.append(f"{name}==1.0 {hashes}\n")
        self.repository.commit({"requirements.lock": "".join(lines).encode()})

    def edit(self, old: str, new: str) -> None:
        """Change release.toml and commit."""
        path = self.work / "release.toml"
        text = path.read_text()
        assert old in text
        self.repository.commit({"release.toml": text.replace(old, new).encode()})
