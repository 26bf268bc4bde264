"""Resolve every input of a release to a pin: the only step that decides what a release contains.

A pin that still answers its question is kept, so locking twice changes nothing and a tool's wheel
does not move by itself. Everything that is pinned was read, checked and laid out once, so `capsule
build` meets no surprise.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from typing import Final

from capsule.builder.config import GitSource, ReleaseSource, ToolSource
from capsule.builder.content_cache import ContentCache
from capsule.builder.git_source import find_work_tree, is_of_work_tree, nearest_top
from capsule.builder.images.component import fetch_images, pin_images
from capsule.builder.lockfile import LockFile, SourcePin, ToolPin, WheelPin, WheelSet
from capsule.builder.nix.component import fetch_closures, pin_closures
from capsule.builder.resolve import (
    Question,
    is_plain_tool,
    open_wheels,
    questions,
    tool_entries,
    wheel_entries,
)
from capsule.builder.runtime_wheels import runtime_input
from capsule.builder.target import Target
from capsule.builder.wheels import Wanted, check_file, check_pins, pinned
from capsule_manifest.errors import Refused

__all__ = ["fetch_pins", "lock_release"]

_AT_A_TIME: Final = 4
"""So many inputs are fetched at once; one index or server is not to be flooded."""


def lock_release(
    release: ReleaseSource,
    cache: ContentCache,
    *,
    previous: LockFile | None,
    now: datetime,
    locked_by: str,
    report: Callable[[str], None],
) -> LockFile:
    """Return the pins of a release. `previous` is kept to where it still answers.

    If nothing is different from `previous`, it is returned as it is, with its time.

    Raises:
        Refused: `requirement-*`, `requirements-*`, `marker-unknowable`, `wheel-*`, `tool-*`,
            `url-digest-mismatch`, `archive-refused`, `zip-refused`, `path-invalid`, `image-*`,
            `nix-*`, `source-not-git`.
        Failed: `wheel-fetch-failed`, `url-fetch-failed`, `image-fetch-failed`, `nix-failed`,
            `nix-path-unavailable`, `cache-failed`.
    """
    asked = questions(release)
    plain = [component for component in release.components if is_plain_tool(component)]

    def answer(question: Question) -> WheelSet:
        report(f"{question.name} for {question.target.name}")
        return _answer(question, cache, previous)

    def pin_tool(component: ToolSource) -> ToolPin:
        report(component.name)
        return tool_entries(component, release.folder, cache)[0]

    # Each waits for a network most of the time, and none needs another's answer.
    with ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="lock") as pool:
        sets = pool.map(answer, asked)
        pins = pool.map(pin_tool, plain)
        answers = list(zip(asked, sets, strict=True))
        tools = {item.name: pin for item, pin in zip(plain, pins, strict=True)}
    wheels = {(q.name, q.target.name): pins for q, pins in answers if q.component is not None}
    runtime = {q.target.name: pins for q, pins in answers if q.component is None}
    lock = LockFile(
        sources=_pin_sources(release, report=report),
        locked_at=now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        locked_by=locked_by,
        wheels=wheels,
        runtime=runtime,
        tools=tools,
        images=pin_images(release, cache, previous.images if previous else {}, report=report),
        closures=pin_closures(release, cache, previous.closures if previous else {}, report=report),
    )
    return previous if previous is not None and previous.has_pins_of(lock) else lock


def fetch_pins(
    release: ReleaseSource, lock: LockFile, cache: ContentCache, *, report: Callable[[str], None]
) -> int:
    """Fetch all that `lock` pins into the cache, for a machine without network; return how much.

    Raises:
        Refused: `lock-stale` and as `lock_release`.
        Failed: as `lock_release`.
    """
    count = 0
    for question in questions(release):
        pins = question.pins_in(lock)
        if pins is None:
            raise Refused(
                "lock-stale", "the lock has no pins", expected="wheels", where=question.where
            )
        _check(question, pins)
        report(f"{question.name} for {question.target.name}")
        wanted = pinned(question.wanted, pins.wheels)
        count += len(cache.obtain_wheels(wanted, question.target, base=question.base))
    for component in release.components:
        if is_plain_tool(component):
            report(component.name)
            tool_entries(component, release.folder, cache)
            count += 1
    count += fetch_images(release, cache, lock.images, report=report)
    return count + fetch_closures(release, cache, lock.closures, report=report)


def _answer(question: Question, cache: ContentCache, previous: LockFile | None) -> WheelSet:
    wanted = question.wanted
    known = question.pins_in(previous) if previous is not None else None
    if known is not None:
        wanted = _kept_to(question, known)
    found = cache.obtain_wheels(wanted, question.target, base=question.base)
    wheels = open_wheels(found, cache.memory)
    # Laid out once now: a conflict or a missing dependency is found by who can still change it.
    if question.component is None:
        runtime_input(question.target, wheels)
    else:
        wheel_entries(question, wheels)
    return WheelSet(
        input_sha256=question.input_sha256,
        target=question.target.description,
        wheels=tuple(wheel.pin for wheel in wheels),
    )


def _pin_sources(release: ReleaseSource, *, report: Callable[[str], None]) -> dict[str, SourcePin]:
    """Return the commits of sources that the commit of the release says nothing of."""
    found = {}
    # A release may be locked before its first commit.
    top = nearest_top(release.folder)
    for item in release.components:
        if not isinstance(item, GitSource):
            continue
        folder = release.folder / item.path
        if not is_of_work_tree(folder, top):
            report(item.name)
            source = find_work_tree(folder).source
            found[item.name] = SourcePin(commit=source.commit, tree=source.tree)
    return found


def _kept_to(question: Question, pins: WheelSet) -> tuple[Wanted, ...]:
    """Return what is wanted, narrowed to the pins that still answer; another input keeps none."""
    asked = (question.input_sha256, question.target.description)
    if (pins.input_sha256, pins.target) != asked:
        return question.wanted
    by_name = {pin.name: pin for pin in pins.wheels}
    return tuple(
        replace(item, sha256=frozenset({by_name[item.name].sha256}), file=by_name[item.name].file)
        if item.name in by_name and _still_answers(item, by_name[item.name], question.target)
        else item
        for item in question.wanted
    )


def _still_answers(item: Wanted, pin: WheelPin, target: Target) -> bool:
    try:
        check_file(pin.file, item.name, item.version, target, where=item.where)
    except Refused:
        return False
    return not item.sha256 or pin.sha256 in item.sha256


def _check(question: Question, pins: WheelSet) -> None:
    check_pins(
        question.wanted,
        pins,
        question.target,
        input_sha256=question.input_sha256,
        where=question.where,
    )
