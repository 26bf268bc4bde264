"""Podman as an `Engine`: its store of root, reached through its program.

An image is copied from the layout in its generation: its layers are plain there, so its manifest
stays, and its id is the digest of its configuration. Every digest is checked by podman while it
copies. No command here can reach a registry: `oci:` names a folder.

Source: podman-pull(1), podman-image-exists(1), podman-tag(1), podman-rmi(1), podman-ps(1).
"""

import re
from collections.abc import Callable, Sequence
from typing import Final

from capsule_installer.engines.base import PIN_PREFIX, Container
from capsule_installer.system.processes import Completed, Processes
from capsule_manifest.errors import Failed

__all__ = ["Podman"]

_ASK_MS: Final = 20_000
_ABSENT: Final = 1  # of `image exists`; every other failure has another code
_SAID_CHARACTERS: Final = 400
_ROW: Final = re.compile(r"(?:sha256:)?([0-9a-f]{64}) (\S+)")
_RUNNING: Final = re.compile(r"([0-9a-f]{64}) (?:sha256:)?([0-9a-f]{64}) ([0-9]+)")


class Podman:
    """The podman of this host, as root.

    `program` is its absolute path; `sync` makes the file system of a folder durable.
    """

    def __init__(self, *, processes: Processes, program: str, sync: Callable[[str], None]) -> None:
        self._processes = processes
        self._program = program
        self._sync = sync

    @property
    def name(self) -> str:
        """Return `podman`."""
        return "podman"

    def holds(self, image: str) -> bool:
        """Ask whether an image exists. Source: `Engine.holds`."""
        completed = self._run(["image", "exists", image], _ASK_MS)
        if completed.exit_code not in {0, _ABSENT}:
            raise self._failed("podman does not say whether it has an image", completed, image)
        return completed.exit_code == 0

    def load(self, layout: str, timeout_ms: int) -> None:
        """Copy the image of a layout into podman's store. Source: `Engine.load`."""
        completed = self._run(["pull", "--quiet", f"oci:{layout}"], timeout_ms)
        if completed.exit_code != 0:
            raise Failed(
                "image-load-failed", "podman does not take an image", got=_said(completed),
                where=layout,
            )  # fmt: skip
        # Podman names what it copies after the folder: a name that nobody would ever take away.
        named = f"localhost{layout}:latest"
        if named in self._names():
            self._do(["untag", named, named], "podman does not drop a name", named)

        # Podman says that it is done when layers are in the page cache: after a power loss it would
        # hold an image whose files are empty, and loading it again would change nothing.
        self._sync(self._store())

    def discard(self, image: str) -> None:
        """Remove an image. Source: `Engine.discard`."""
        if self.holds(image):
            what = "podman does not drop an image"
            # By its id it is only removed when it has one name or none.
            self._do(["untag", image], what, image)
            self._do(["rmi", image], what, image)

    def pin(self, image: str, name: str) -> None:
        """Tag an image. Source: `Engine.pin`."""
        self._do(["tag", image, name], "podman does not name an image", name)

    def unpin(self, name: str) -> None:
        """Remove a tag, with the image if that was its last one. Source: `Engine.unpin`."""
        if self._run(["rmi", name], _ASK_MS).exit_code != 0 and name in self._names():
            # A container still uses it: the image stays until podman's own collector finds it.
            self._do(["untag", name, name], "podman does not drop a name", name)

    def pins(self) -> dict[str, str]:
        """Return our names. Source: `Engine.pins`."""
        names = self._names().items()
        return {name: image for name, image in names if name.startswith(PIN_PREFIX)}

    def containers(self) -> tuple[Container, ...]:
        """Ask what runs. Source: `Engine.containers`."""
        form = "{{.ID}} {{.ImageID}} {{.Pid}}"
        completed = self._do(
            ["ps", "--no-trunc", "--format", form], "podman does not say what runs", "ps"
        )
        found = (_RUNNING.fullmatch(line.strip()) for line in completed.output.splitlines())
        return tuple(
            Container(id=match[1], image=f"sha256:{match[2]}", pid=int(match[3]))
            for match in found
            if match
        )

    def _store(self) -> str:
        form = "{{.Store.GraphRoot}}"
        what = "podman does not say where its store is"
        completed = self._do(["info", "--format", form], what, "info")
        found = [line for line in completed.output.splitlines() if line.startswith("/")]
        if len(found) != 1:
            raise self._failed(what, completed, "info")
        return found[0]

    def _names(self) -> dict[str, str]:
        form = "{{.ID}} {{.Repository}}:{{.Tag}}"
        completed = self._do(
            ["images", "--no-trunc", "--format", form], "podman does not list its images", "images"
        )
        found = (_ROW.fullmatch(line.strip()) for line in completed.output.splitlines())
        return {match[2]: f"sha256:{match[1]}" for match in found if match}

    def _do(self, words: Sequence[str], what: str, where: str) -> Completed:
        completed = self._run(words, _ASK_MS)
        if completed.exit_code != 0:
            raise self._failed(what, completed, where)
        return completed

    def _run(self, words: Sequence[str], timeout_ms: int) -> Completed:
        # In a group of its own: killed with all that it started when its time is over.
        return self._processes.run([self._program, *words], timeout_ms=timeout_ms)

    def _failed(self, what: str, completed: Completed, where: str) -> Failed:
        got = f"{completed.exit_code}: {_said(completed)}"
        return Failed("engine-failed", what, got=got, where=where)


def _said(completed: Completed) -> str:
    return completed.output.strip()[-_SAID_CHARACTERS:]
