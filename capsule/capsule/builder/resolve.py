"""Turn the sources of `release.toml` and the pins of `release.lock` into component inputs.

Only what comes from elsewhere is resolved here: commits, wheels, tools, images, the host program.
Services, managed files and recovery material are read by their own modules. The network is reached
only through the cache, and only for content that is pinned.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard
from urllib.parse import unquote, urlsplit

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from capsule.builder.archive import archive_entries, path_entries, path_pin
from capsule.builder.config import (
    ComponentSource,
    GitSource,
    PathOrigin,
    ReleaseSource,
    ToolSource,
    UrlOrigin,
    WheelOrigin,
    WheelsSource,
)
from capsule.builder.content_cache import ContentCache
from capsule.builder.git_source import is_of_work_tree, open_work_tree, source_input
from capsule.builder.images.component import image_inputs
from capsule.builder.lockfile import LockFile, ToolPin, WheelPin, WheelSet
from capsule.builder.model import ComponentInput, External, InputEntry
from capsule.builder.nix.component import nix_inputs
from capsule.builder.pylock import parse_pylock
from capsule.builder.remembered import Memory
from capsule.builder.runtime_wheels import runtime_input, runtime_name, runtime_wanted
from capsule.builder.spool import Spool
from capsule.builder.target import Target
from capsule.builder.wheel_file import Wheel, read_wheels
from capsule.builder.wheel_install import external_of, install_wheels, picked_members
from capsule.builder.wheels import (
    Wanted,
    check_pins,
    input_digest,
    parse_requirements,
    pinned,
    read_locked,
)
from capsule_manifest.errors import Refused
from capsule_manifest.release import Source

__all__ = [
    "Question",
    "Resolved",
    "is_plain_tool",
    "open_wheels",
    "questions",
    "resolve_release",
    "target_of",
    "tool_entries",
    "wheel_entries",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The wheels that one component wants on one platform, before and after they are pinned.

    `component` is None for the host program itself. `base` is the folder of the lock.
    """

    component: WheelsSource | ToolSource | None
    target: Target
    wanted: tuple[Wanted, ...]
    input_sha256: str
    base: Path

    @property
    def name(self) -> str:
        """Return the component's name."""
        return self.component.name if self.component else runtime_name(self.target.name)

    @property
    def where(self) -> str:
        """Return what this is about, for messages."""
        return f"release.lock: {self.name} for {self.target.name}"

    def pins_in(self, lock: LockFile) -> WheelSet | None:
        """Return the lock's answer, if it has one."""
        if self.component is None:
            return lock.runtime.get(self.target.name)
        return lock.wheels.get((self.component.name, self.target.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What a build is made of. One name may have several components, for disjoint platforms.

    `source` is the commit of the work tree that holds `release.toml`.
    """

    source: Source
    components: tuple[ComponentInput, ...]


def resolve_release(
    release: ReleaseSource,
    lock: LockFile,
    cache: ContentCache,
    *,
    report: Callable[[str], None],
) -> Resolved:
    """Resolve sources, wheels, tools and the host program from pins alone, in order of names.

    Raises:
        Refused: `source-*`, `lock-stale`, `wheel-*`, `requirement-*`, `requirements-*`, `tool-*`,
            `archive-refused`, `zip-refused`, `image-*`, `nix-*`, `path-invalid`, `link-escapes`.
        Failed: `source-git-failed`, `wheel-fetch-failed`, `url-fetch-failed`,
            `image-fetch-failed`, `nix-path-unavailable`, `cache-failed`.
    """
    work_tree = open_work_tree(release.folder)
    components: list[ComponentInput] = []
    for component in release.components:
        platforms = tuple(sorted(component.platforms))
        if isinstance(component, GitSource):
            report(component.name)
            folder = release.folder / component.path
            item, source = source_input(
                component.name, folder, include=component.include, platforms=platforms
            )
            if not is_of_work_tree(folder, work_tree.top):
                _check_source(component, source, lock)
            components.append(item)
        elif is_plain_tool(component):
            report(component.name)
            pin, entries, external = tool_entries(component, release.folder, cache)
            _check_tool(component, pin, lock)
            components.append(
                ComponentInput(
                    name=component.name,
                    kind=component.kind.value,
                    platforms=platforms,
                    entries=entries,
                    external=external,
                )
            )
    components += _from_wheels(release, lock, cache, report)
    components += image_inputs(release, cache, lock.images, report=report)
    components += nix_inputs(release, cache, lock.closures, report=report)
    components.sort(key=lambda item: (item.name, item.platforms))
    return Resolved(source=work_tree.source, components=tuple(components))


def questions(release: ReleaseSource) -> tuple[Question, ...]:
    """Return all that wheels must answer: components by platform, then the host program.

    Raises:
        Refused: `requirements-*`, `requirement-*`, `wheel-*`, `marker-unknowable`.
    """
    asked: list[Question] = []
    for component in release.components:
        if isinstance(component, WheelsSource) or (
            isinstance(component, ToolSource) and isinstance(component.origin, WheelOrigin)
        ):
            asked += [_question(component, release, p) for p in release.platforms_of(component)]
    for platform in sorted(release.platforms):
        target = target_of(release, platform)
        wanted, input_sha256 = runtime_wanted(target)
        asked.append(
            Question(
                component=None,
                target=target,
                wanted=wanted,
                input_sha256=input_sha256,
                base=release.folder,
            )
        )
    return tuple(asked)


def is_plain_tool(component: ComponentSource) -> TypeGuard[ToolSource]:
    """Say whether a component is a file or an archive as it is, from a path or an address."""
    return isinstance(component, ToolSource) and isinstance(
        component.origin, PathOrigin | UrlOrigin
    )


def target_of(release: ReleaseSource, platform: str) -> Target:
    """Return a platform of the release as packaging tools see it."""
    return Target(name=platform, platform=release.platforms[platform])


def open_wheels(
    found: Mapping[str, tuple[WheelPin, Path]],
    memory: Memory,
    spool: Spool | None = None,
) -> tuple[Wheel, ...]:
    """Read and check wheels that a cache has, in order of names.

    Raises:
        Refused: `wheel-*`, `zip-refused`, `path-invalid`.
    """
    return read_wheels([(path, pin) for _, (pin, path) in sorted(found.items())], memory, spool)


def wheel_entries(question: Question, wheels: Sequence[Wheel]) -> tuple[InputEntry, ...]:
    """Return what these wheels become in the tree of the question's component.

    Raises:
        Refused: `wheel-*`, `requirement-editable`, `tool-member-missing`, `path-invalid`.
    """
    component = question.component
    origin = component.origin if isinstance(component, ToolSource) else None
    if isinstance(origin, WheelOrigin) and origin.member is not None:
        (wheel,) = wheels
        return picked_members(wheel, origin.member)
    return install_wheels(wheels, question.target)


def tool_entries(
    component: ToolSource, folder: Path, cache: ContentCache
) -> tuple[ToolPin, tuple[InputEntry, ...], tuple[External, ...]]:
    """Return a tool that comes from a path or an address, and its pin.

    Raises:
        Refused: `tool-*`, `archive-refused`, `zip-refused`, `url-digest-mismatch`,
            `path-invalid`, `link-escapes`.
        Failed: `url-fetch-failed`, `cache-failed`.
    """
    origin = component.origin
    if isinstance(origin, UrlOrigin):
        pin, path = cache.obtain_file(origin.url, origin.sha256)
        name = unquote(urlsplit(origin.url).path).rpartition("/")[2]
        external = External(type="url", name=name, digest=f"sha256:{origin.sha256}")
        return pin, archive_entries(path, name, origin.member), (external,)
    assert isinstance(origin, PathOrigin), "only plain tools are asked for here"
    entries = path_entries(folder / origin.path)
    return path_pin(entries), entries, ()


def _from_wheels(
    release: ReleaseSource, lock: LockFile, cache: ContentCache, report: Callable[[str], None]
) -> list[ComponentInput]:
    """Return components made of wheels; platforms with the same pins and Python share one."""
    answers: dict[tuple[object, ...], list[tuple[Question, WheelSet]]] = {}
    for question in questions(release):
        pins = question.pins_in(lock)
        if pins is None:
            raise Refused(
                "lock-stale", "the lock has no pins", expected="wheels", where=question.where
            )
        check_pins(
            question.wanted,
            pins,
            question.target,
            input_sha256=question.input_sha256,
            where=question.where,
        )
        key = (question.name, pins.wheels, _library_of(question))
        answers.setdefault(key, []).append((question, pins))
    components = []
    spool = cache.spool()
    for group in answers.values():
        question, pins = group[0]
        report(question.name)
        found = cache.obtain_wheels(
            pinned(question.wanted, pins.wheels), question.target, base=question.base
        )
        wheels = open_wheels(found, cache.memory, spool)
        if question.component is None:
            components.append(runtime_input(question.target, wheels))
            continue
        platforms = tuple(sorted(item.target.name for item, _ in group))
        is_for_all = not question.component.platforms and len(platforms) == len(release.platforms)
        components.append(
            ComponentInput(
                name=question.component.name,
                kind=question.component.kind.value,
                platforms=() if is_for_all else platforms,
                entries=wheel_entries(question, wheels),
                external=tuple(external_of(wheel) for wheel in wheels),
            )
        )
    return components


def _library_of(question: Question) -> str | None:
    """Return what of the platform, beside its wheels, decides the tree: where packages lie."""
    component = question.component
    origin = component.origin if isinstance(component, ToolSource) else None
    if isinstance(origin, WheelOrigin) and origin.member is not None:
        return None
    # The host program is one component for each platform, whatever is in it.
    return question.target.platform.python if component else question.target.name


def _question(
    component: WheelsSource | ToolSource, release: ReleaseSource, platform: str
) -> Question:
    target = target_of(release, platform)
    if isinstance(component, WheelsSource):
        path = release.folder / component.locked
        raw = read_locked(path)
        parse = parse_pylock if component.is_pylock else parse_requirements
        return Question(
            component=component,
            target=target,
            wanted=parse(raw, target, where=component.locked),
            input_sha256=input_digest(raw),
            base=path.parent,
        )
    assert isinstance(component.origin, WheelOrigin), "only such a tool is a question"
    requirement = Requirement(component.origin.requirement)
    (pin,) = requirement.specifier
    wanted = Wanted(
        name=canonicalize_name(requirement.name),
        version=str(Version(pin.version)),
        sha256=frozenset(),
        where=f"release.toml: components.{component.name}.wheel",
    )
    return Question(
        component=component,
        target=target,
        wanted=(wanted,),
        input_sha256=input_digest(component.origin.requirement.encode()),
        base=release.folder,
    )


def _check_source(component: GitSource, source: Source, lock: LockFile) -> None:
    """Refuse a source whose own work tree is at another commit than was locked."""
    pin = lock.sources.get(component.name)
    if pin is None or (pin.commit, pin.tree) != (source.commit, source.tree):
        raise Refused(
            "lock-stale",
            "the lock pins another commit of a source",
            expected=pin.commit if pin else "a pin",
            got=source.commit,
            where=f"release.lock: sources.{component.name}",
        )


def _check_tool(component: ToolSource, pin: ToolPin, lock: LockFile) -> None:
    known = lock.tools.get(component.name)
    if known != pin:
        raise Refused(
            "lock-stale",
            "the lock pins another content of a tool",
            expected=known.sha256 if known else "a pin",
            got=pin.sha256,
            where=f"release.lock: {component.name}",
        )
