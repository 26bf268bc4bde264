"""Resolve every input of a release to a pin: the only step that decides what a release contains.

A pin that still answers its question is kept, so locking twice changes nothing and a tool's wheel
does not move by itself. Everything that is pinned was read, checked and laid out once, so `capsule
build` meets no surprise.
"""

from collections.abc import Callable
from datetime import datetime

from capsule.builder.config import ReleaseSource
from capsule.builder.content_cache import ContentCache
from capsule.builder.images.component import fetch_images, pin_images
from capsule.builder.lockfile import LockFile, ToolPin, WheelSet
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
from capsule.builder.wheels import check_pins, pinned
from capsule_manifest.errors import Refused

__all__ = ["fetch_pins", "lock_release"]


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
            `nix-*`.
        Failed: `wheel-fetch-failed`, `url-fetch-failed`, `image-fetch-failed`, `nix-failed`,
            `nix-path-unavailable`, `cache-failed`.
    """
    wheels: dict[tuple[str, str], WheelSet] = {}
    runtime: dict[str, WheelSet] = {}
    for question in questions(release):
        report(f"{question.name} for {question.target.name}")
        pins = _answer(question, cache, previous)
        if question.component is None:
            runtime[question.target.name] = pins
        else:
            wheels[question.name, question.target.name] = pins
    tools: dict[str, ToolPin] = {}
    for component in release.components:
        if is_plain_tool(component):
            report(component.name)
            tools[component.name] = tool_entries(component, release.folder, cache)[0]
    lock = LockFile(
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
    if known is not None and _still_answers(question, known):
        wanted = pinned(wanted, known.wheels)
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


def _still_answers(question: Question, pins: WheelSet) -> bool:
    try:
        _check(question, pins)
    except Refused:
        return False
    return True


def _check(question: Question, pins: WheelSet) -> None:
    check_pins(
        question.wanted,
        pins,
        question.target,
        input_sha256=question.input_sha256,
        where=question.where,
    )
