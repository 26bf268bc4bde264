"""Know that a build would make the capsule that is there already.

A build is decided by a commit, the files beside it that git may ignore, and the program; its answer
is remembered with them. Whatever else could decide it is either pinned by digest or not remembered:
a tool from a path, and sources in other work trees, make a build that is always done.

This module is all that an unchanged build imports, so it knows files and names, not formats.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import Final

from capsule.builder.git_source import WorkTree, open_work_tree
from capsule.builder.remembered import Memory
from capsule_manifest.errors import CapsuleError

__all__ = ["BuildAnswer", "KnownBuilds", "inputs_beside"]

_TOPIC: Final = "build"
_MANIFEST_BYTES_MAX: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildAnswer:
    """What a build came to. `name` is of the capsule's folder; `waived_secrets` counts findings."""

    capsule: str
    name: str
    product: str
    version: str
    release_counter: int
    components: int
    content_bytes: int
    reused: int
    warnings: tuple[str, ...]
    waived_secrets: int


class KnownBuilds:
    """The answers of earlier builds of one release file, for one day: waivers end with a day."""

    def __init__(self, memory: Memory, release_path: Path, *, today: date) -> None:
        self._memory = memory
        self._release_path = release_path.resolve()
        self._today = today

    def recall(self, output: Path) -> BuildAnswer | None:
        """Return the answer if a build of what is there now would leave `output` as it is.

        Whatever is wrong with the work tree, there is none: the build itself says it better.
        """
        try:
            work_tree = open_work_tree(self._release_path.parent)
        except CapsuleError:
            return None
        raw = self._memory.recall(_TOPIC, self._key(work_tree))
        if raw is None:
            return None
        kept = json.loads(raw)
        if kept["inputs"] != _digests(map(Path, kept["inputs"])):
            return None
        answer = BuildAnswer(**{**kept["answer"], "warnings": tuple(kept["answer"]["warnings"])})
        if not _is_there(answer, output) or kept["members"] != _members(output / answer.name):
            return None
        return replace(answer, reused=answer.components)

    def keep(
        self, answer: BuildAnswer, folder: Path, work_tree: WorkTree, inputs: Iterable[Path]
    ) -> None:
        """Remember the answer to these files and this commit, which were read before the build.

        `folder` is the capsule's; a build is done again when it lacks one of its members.
        """
        digests = _digests(inputs)
        kept = {"inputs": digests, "members": _members(folder), "answer": asdict(answer)}
        self._memory.keep(_TOPIC, self._key(work_tree), json.dumps(kept).encode())

    def _key(self, work_tree: WorkTree) -> str:
        source = work_tree.source
        return f"{self._release_path} {work_tree.top} {source.commit} {source.tree} {self._today}"


def inputs_beside(release_path: Path, others: Iterable[Path]) -> tuple[Path, ...]:
    """Return the files that decide a build and that git may not have in the commit."""
    folder = release_path.resolve().parent
    names = (release_path.name, "release.lock", "secret-waivers.toml")
    return (*(folder / name for name in names), *(path.resolve() for path in others))


def _digests(paths: Iterable[Path]) -> dict[str, str]:
    """Return the SHA-256 of each file by its path; empty for one that is not there."""
    found = {}
    for path in paths:
        try:
            with path.open("rb") as stream:
                found[str(path)] = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError:
            found[str(path)] = ""
    return found


def _members(folder: Path) -> dict[str, int]:
    """Return the size of each file of a capsule by its name; signatures come and go."""
    return {
        str(path.relative_to(folder)): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.parent.name != "signatures"
    }


def _is_there(answer: BuildAnswer, output: Path) -> bool:
    """Say whether the capsule is in the folder, and none with its counter or a higher one is."""
    try:
        with (output / answer.name / "capsule.json").open("rb") as stream:
            manifest = stream.read(_MANIFEST_BYTES_MAX)
        # The id is the digest of these bytes.
        if f"sha256:{hashlib.sha256(manifest).hexdigest()}" != answer.capsule:
            return False
        product = re.escape(answer.product.rpartition("/")[2])
        name = re.compile(rf"{product}-([0-9]+)-[0-9a-f]{{8}}\.capsule")
        names = {path.name for path in output.iterdir()} - {answer.name}
        others = [name.fullmatch(other) for other in names]
    except OSError:
        return False
    return all(int(other[1]) < answer.release_counter for other in others if other)
