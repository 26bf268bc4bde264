"""All that decides a release, each with its digest, and what has none yet.

A release is complete when every input is resolved to a digest. What is open can't be built: the
same commit could become another release tomorrow.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

from capsule.builder.config import (
    GitSource,
    ReleaseSource,
    ToolSource,
    UrlOrigin,
)
from capsule.builder.git_source import is_of_work_tree, open_work_tree
from capsule.builder.images.component import image_pins
from capsule.builder.lockfile import LockFile
from capsule.builder.nix.component import closure_pins
from capsule.builder.resolve import is_plain_tool, questions
from capsule.builder.wheels import check_pins
from capsule_manifest.errors import Refused
from capsule_manifest.release import Release

__all__ = ["Pin", "capsule_pins", "check_complete", "incomplete", "release_pins"]

_EMPTY = LockFile(locked_at="never", locked_by="nobody")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """One input. `where` is a component and its platform, `name` what it is in its own world.

    `digest` is None while it is open, and `why` says what is missing.
    """

    where: str
    kind: str
    name: str
    digest: str | None
    why: str = ""


def release_pins(release: ReleaseSource, lock: LockFile | None) -> tuple[Pin, ...]:
    """Return all inputs of a release, in order of their places.

    Raises:
        Refused: `requirement-*`, `requirements-*`, `wheel-*`, `marker-unknowable`.
    """
    known = lock or _EMPTY
    found = [
        *_source_pins(release, known),
        *_wheel_pins(release, known),
        *_tool_pins(release, known),
        *_image_pins(release, known),
        *_closure_pins(release, known),
    ]
    return tuple(sorted(found, key=lambda pin: (pin.where, pin.kind, pin.name)))


def capsule_pins(release: Release) -> tuple[Pin, ...]:
    """Return what a built release names by digest: trees, and what other ecosystems call them."""
    source = release.source
    found = [
        Pin(where="source", kind="git-commit", name="commit", digest=_git(source.commit)),
        Pin(where="source", kind="git-tree", name="tree", digest=_git(source.tree)),
    ]
    for item in release.components:
        where = _where(item.name, ", ".join(item.platforms) or "all platforms")
        tree = f"blake3:{item.tree.hex()}"
        found.append(Pin(where=where, kind="tree", name=item.kind.value, digest=tree))
        found += [
            Pin(where=where, kind=other.type, name=other.name, digest=other.digest)
            for other in item.external
        ]
    return tuple(sorted(found, key=lambda pin: (pin.where, pin.kind, pin.name)))


def check_complete(release: ReleaseSource, lock: LockFile) -> None:
    """Refuse a release of which something was never resolved to a digest.

    A pin that answers an older question is `lock-stale`, and is found where it is used.

    Raises:
        Refused: `manifest-incomplete` with all that is open; as `release_pins`.
    """
    pins = [*_source_pins(release, lock), *_wheel_pins(release, lock), *_tool_pins(release, lock),
            *_image_pins(release, lock), *_closure_pins(release, lock)]  # fmt: skip
    missing = [pin for pin in pins if pin.digest is None and pin.why == _UNPINNED]
    if missing:
        raise incomplete(missing)


def incomplete(pins: "list[Pin]") -> Refused:
    """Return the refusal of a release of which these pins are open."""
    return Refused(
        "manifest-incomplete",
        "the release is not complete: an input is not resolved to a digest",
        expected="a digest for every input",
        got=", ".join(f"{pin.where}: {pin.name} ({pin.why})" for pin in pins),
        where="release.lock",
    )


_UNPINNED = "the lock has no pin"


def _source_pins(release: ReleaseSource, lock: LockFile) -> Iterator[Pin]:
    top = yield from _committed("source", release.folder, None)
    for item in release.components:
        if isinstance(item, GitSource):
            folder = release.folder / item.path
            is_own = top is not None and is_of_work_tree(folder, top)
            pin = lock.sources.get(item.name)
            wanted = "" if is_own else pin.commit if pin else _UNPINNED
            yield from _committed(_where(item.name, "all platforms"), folder, wanted)


def _committed(where: str, folder: Path, wanted: str | None) -> Generator[Pin, None, Path | None]:
    """Yield commit and tree of a source, or why it has none; return the top of its work tree.

    `wanted` is the commit that is pinned for a source of another work tree, or why there is none.
    """
    try:
        work_tree = open_work_tree(folder)
    except Refused as error:
        yield Pin(where=where, kind="git-commit", name="commit", digest=None, why=error.what)
        return None
    source = work_tree.source
    if wanted and wanted != source.commit:
        why = wanted if wanted == _UNPINNED else _STALE
        yield Pin(where=where, kind="git-commit", name="commit", digest=None, why=why)
        return work_tree.top
    yield Pin(where=where, kind="git-commit", name="commit", digest=_git(source.commit))
    yield Pin(where=where, kind="git-tree", name="tree", digest=_git(source.tree))
    return work_tree.top


def _wheel_pins(release: ReleaseSource, lock: LockFile) -> Iterator[Pin]:
    for question in questions(release):
        where = _where(question.name, question.target.name)
        pins = question.pins_in(lock)
        why = _UNPINNED
        if pins is not None:
            try:
                check_pins(
                    question.wanted,
                    pins,
                    question.target,
                    input_sha256=question.input_sha256,
                    where=question.where,
                )
            except Refused as error:
                why = error.what
            else:
                for wheel in pins.wheels:
                    digest = f"sha256:{wheel.sha256}"
                    yield Pin(where=where, kind="wheel", name=wheel.file, digest=digest)
                continue
        for item in question.wanted:
            name = f"{item.name} {item.version}"
            yield Pin(where=where, kind="wheel", name=name, digest=None, why=why)


def _tool_pins(release: ReleaseSource, lock: LockFile) -> Iterator[Pin]:
    for item in release.components:
        if not is_plain_tool(item):
            continue
        assert isinstance(item, ToolSource), "only tools are plain tools"
        where = _where(item.name, ", ".join(sorted(item.platforms)) or "all platforms")
        is_url = isinstance(item.origin, UrlOrigin)
        name = item.origin.url if isinstance(item.origin, UrlOrigin) else item.name
        pin = lock.tools.get(item.name)
        digest = f"sha256:{pin.sha256}" if pin else None
        why = "" if pin else _UNPINNED
        kind = "url" if is_url else "path"
        yield Pin(where=where, kind=kind, name=name, digest=digest, why=why)


def _image_pins(release: ReleaseSource, lock: LockFile) -> Iterator[Pin]:
    for name, platform, sha256 in image_pins(release, lock.images):
        is_there = (name, platform) in lock.images
        yield Pin(
            where=_where(name, platform),
            kind="image",
            name="manifest",
            digest=f"sha256:{sha256}" if sha256 else None,
            why="" if sha256 else _STALE if is_there else _UNPINNED,
        )


def _closure_pins(release: ReleaseSource, lock: LockFile) -> Iterator[Pin]:
    for name, platform, pin in closure_pins(release, lock.closures):
        where = _where(name, platform)
        if pin is None:
            why = _STALE if (name, platform) in lock.closures else _UNPINNED
            yield Pin(where=where, kind="nar", name="closure", digest=None, why=why)
            continue
        for path in pin.paths:
            digest = f"sha256:{path.nar_sha256}"
            yield Pin(where=where, kind="nar", name=path.name, digest=digest)


_STALE = "the lock has a pin of something else"


def _where(component: str, platform: str) -> str:
    return f"{component} for {platform}"


def _git(digest: str) -> str:
    return f"{'sha1' if len(digest) == 40 else 'sha256'}:{digest}"
