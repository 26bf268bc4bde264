"""What a wheel must fit: the interpreter, tags and markers of a platform, not of this machine.

Everything follows from the platform's machine, glibc and Python minor. A value that only a running
host knows (kernel release) is not guessed: a marker that asks for it is refused. The patch level of
the interpreter is not known either, so a marker that depends on it holds if it holds for the
first or the last patch level: a distribution too many is harmless, one too few is not.

Source: PEP 425, PEP 508, PEP 600; packaging.tags, packaging.markers.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from packaging.markers import Marker
from packaging.specifiers import SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.version import Version

from capsule_manifest.errors import Refused
from capsule_manifest.release import Platform

__all__ = ["Target", "WheelFit"]

_LAST_PATCH: Final = 99
_HOST_VARIABLE: Final = re.compile(r"\bplatform_(release|version)\b")
_MANYLINUX: Final = re.compile(r"manylinux_(\d+)_(\d+)_(.+)")
# The names that came before PEP 600, with the glibc that each stands for.
_LEGACY: Final = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
_OLDEST_GLIBC: Final = {"x86_64": 5}
_OLDEST_GLIBC_ELSEWHERE: Final = 17


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelFit:
    """Why a wheel does not fit; `rank` orders those that do, the best first."""

    rank: int | None
    reason: str = ""
    expected: str = ""
    got: str = ""


# No slots: cached_property keeps its value in the instance's dictionary.
@dataclass(frozen=True, kw_only=True)
class Target:
    """One platform of a release, as packaging tools see it."""

    name: str
    platform: Platform = field(repr=False)

    @property
    def python(self) -> tuple[int, int]:
        """Return the interpreter's major and minor version."""
        major, minor = self.platform.python.split(".")
        return int(major), int(minor)

    @property
    def description(self) -> str:
        """Return what the pins of this target depend on, in one line."""
        platform = self.platform
        return f"cp{platform.python.replace('.', '')} {platform.machine} glibc {platform.glibc}"

    @property
    def abi(self) -> str:
        """Return the interpreter's own ABI tag."""
        return f"cp{self.python[0]}{self.python[1]}"

    @cached_property
    def platform_tags(self) -> tuple[str, ...]:
        """Return the platform tags that the host takes, the newest first."""
        machine = self.platform.machine
        major, minor = (int(part) for part in self.platform.glibc.split("."))
        oldest = _OLDEST_GLIBC.get(machine, _OLDEST_GLIBC_ELSEWHERE)
        tags = []
        for step in range(minor, oldest - 1, -1):
            tags.append(f"manylinux_{major}_{step}_{machine}")
            tags += [f"{old}_{machine}" for old, glibc in _LEGACY.items() if glibc == (2, step)]
        return (*tags, f"linux_{machine}")

    @cached_property
    def ranks(self) -> Mapping[Tag, int]:
        """Return every tag that the target takes with its rank, 0 for the best."""
        tags = [
            *cpython_tags(self.python, [self.abi], list(self.platform_tags)),
            *compatible_tags(self.python, self.abi, list(self.platform_tags)),
        ]
        return {tag: rank for rank, tag in reversed(list(enumerate(tags)))}

    def fit(self, tags: Iterable[Tag]) -> WheelFit:
        """Say how well a wheel with these tags fits, or why it does not."""
        known = frozenset(tags)
        ranks = [self.ranks[tag] for tag in known if tag in self.ranks]
        if ranks:
            return WheelFit(rank=min(ranks))
        got = ", ".join(sorted(str(tag) for tag in known))
        ours = tuple(int(part) for part in self.platform.glibc.split("."))
        # A wheel for another Python doesn't fit whatever the host's glibc is.
        interpreters = {(tag.interpreter, tag.abi) for tag in self.ranks}
        candidates = [tag for tag in known if (tag.interpreter, tag.abi) in interpreters]
        newer = [
            glibc
            for glibc, machine in _needed_glibc(candidates)
            if machine == self.platform.machine and glibc > ours
        ]
        if newer:
            major, minor = min(newer)
            return WheelFit(
                rank=None,
                reason="needs a newer glibc than the platform has",
                expected=f"glibc {self.platform.glibc} or older",
                got=f"glibc {major}.{minor} ({got})",
            )
        return WheelFit(
            rank=None,
            reason="is for another platform or Python",
            expected=self.description,
            got=got,
        )

    def accepts_python(self, requires_python: str) -> bool:
        """Say whether `Requires-Python` holds for some patch level of the target's minor version.

        Raises:
            packaging.specifiers.InvalidSpecifier: the text is no version specifier.
        """
        specifier = SpecifierSet(requires_python)
        return any(specifier.contains(version) for version in self._versions())

    def holds(self, marker: Marker | None, *, where: str) -> bool:
        """Evaluate a requirement's marker for the target, never for the machine that builds.

        No extra is asked for: locked requirements name what an extra brings in.

        Raises:
            Refused: `marker-unknowable` if it asks for what only the running host knows.
        """
        if marker is None:
            return True
        _check_knowable(marker, where)
        return any(
            marker.evaluate({**environment, "extra": ""}) for environment in self._environments()
        )

    def needs(self, marker: Marker | None, *, where: str) -> bool:
        """Say whether a dependency's marker holds on every patch level of the interpreter.

        Raises:
            Refused: `marker-unknowable` if it asks for what only the running host knows.
        """
        if marker is None:
            return True
        _check_knowable(marker, where)
        return all(
            marker.evaluate({**environment, "extra": ""}) for environment in self._environments()
        )

    def holds_in_lock(self, marker: Marker | None, *, where: str, groups: frozenset[str]) -> bool:
        """Evaluate a pylock's marker for the target, with these dependency groups and no extra.

        Raises:
            Refused: `marker-unknowable` if it asks for what only the running host knows.
        """
        if marker is None:
            return True
        _check_knowable(marker, where)
        return any(
            marker.evaluate(
                {**environment, "extras": frozenset(), "dependency_groups": groups},
                context="lock_file",
            )
            for environment in self._environments()
        )

    def _environments(self) -> Iterator[dict[str, str]]:
        platform = self.platform
        for version in self._versions():
            # Every variable is given: one that is left out would be read from this machine.
            yield {
                "implementation_name": "cpython",
                "implementation_version": str(version),
                "os_name": "posix",
                "platform_machine": platform.machine,
                "platform_python_implementation": "CPython",
                "platform_release": "",
                "platform_system": "Linux",
                "platform_version": "",
                "python_full_version": str(version),
                "python_version": platform.python,
                "sys_platform": "linux",
            }

    def _versions(self) -> tuple[Version, Version]:
        python = self.platform.python
        return Version(f"{python}.0"), Version(f"{python}.{_LAST_PATCH}")


def _check_knowable(marker: Marker, where: str) -> None:
    if _HOST_VARIABLE.search(str(marker)):
        raise Refused(
            "marker-unknowable",
            "a marker depends on the kernel of the running host",
            expected="a marker that platform and Python decide",
            got=marker,
            where=where,
        )


def _needed_glibc(tags: Iterable[Tag]) -> Iterator[tuple[tuple[int, int], str]]:
    for tag in tags:
        modern = _MANYLINUX.fullmatch(tag.platform)
        if modern:
            yield (int(modern[1]), int(modern[2])), modern[3]
            continue
        legacy, _, machine = tag.platform.partition("_")
        if legacy in _LEGACY:
            yield _LEGACY[legacy], machine
