"""What a unit's command must say when it starts a container, so that nothing is pulled or outlives.

An engine pulls what it lacks unless it is told not to, and starts containers beside the unit that
asked: a stop of the unit then leaves the old release running. Builder and host refuse both.

Source: podman-run(1); systemd.kill(5).
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

__all__ = ["IMAGE_ID", "command_problems", "engine_of", "is_image_id"]

IMAGE_ID: Final = re.compile(r"sha256:[0-9a-f]{64}")
"""How engines name an image for ever: by the digest of its configuration."""

_ENGINE: Final = re.compile(r"(?:.*/)?(podman|docker|nerdctl|ctr)")
_PREFIXES: Final = "@-:+!|"  # before a program, systemd reads these as its own
_STARTS: Final = frozenset({"run", "create"})
_DETACHED: Final = frozenset({"-d", "--detach", "--detach=true"})
_CGROUPS: Final = frozenset({"split", "disabled"})


def is_image_id(text: str) -> bool:
    """Say whether a text is the id of an image."""
    return IMAGE_ID.fullmatch(text) is not None


def engine_of(argv: Sequence[str]) -> str | None:
    """Return the container engine that a command line starts, None when it starts none."""
    match = _ENGINE.fullmatch(argv[0].lstrip(_PREFIXES)) if argv else None
    return match[1] if match else None


def command_problems(argv: Sequence[str]) -> Iterator[str]:
    """Yield what is wrong with a command of a unit, if it starts a container.

    Quotes are the caller's business: `argv` are words as the program will get them.
    """
    engine = engine_of(argv)
    if engine is None:
        return
    words = tuple(argv[1:])
    if "pull" in words[:1] or words[:2] == ("image", "pull"):
        yield "an image is pulled; the release brings it"
    if not _STARTS & set(words):
        return
    if engine != "podman":
        yield f"{engine} runs containers outside of the unit; run them with podman"
        return
    if _value(words, "--pull") != "never":
        yield "an image may be pulled; say --pull=never"
    if _value(words, "--cgroups") not in _CGROUPS:
        yield "a container may outlive its unit; say --cgroups=split or --cgroups=disabled"
    if _DETACHED & set(words):
        yield "a container is detached, so its unit has no process to be proved"


def _value(words: Sequence[str], option: str) -> str:
    """Return the value of the last `option=value` or `option value`, "" without one."""
    found = ""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == option:
            found = following
        elif word.startswith(f"{option}="):
            found = word.partition("=")[2]
    return found
