"""Rehearse a generation before anything is drained: imports run, configuration parses, units check.

A release that can't even be imported on this host is found while the old one still serves.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from capsule_installer.services.base import ServiceManager
from capsule_installer.staging.venv import Python
from capsule_manifest.errors import Refused
from capsule_manifest.tree import Tree

__all__ = ["entry_point_modules", "modules_of", "rehearse"]

_SITE: Final = re.compile(r"lib/python3\.[0-9]+/site-packages/(.+)")
_EXTENSION: Final = re.compile(r"\.(cpython-[a-z0-9_-]+|abi3)\.so$|\.so$")
_ENTRY_POINT: Final = re.compile(r"[^=]+=\s*([A-Za-z_][A-Za-z0-9_.]*)\s*(:|\[|$)")
_SHOWN_MAX: Final = 5


def modules_of(tree: Tree, read: Callable[[str], bytes]) -> list[str]:
    """Return what to import of a wheels tree: packages with compiled parts, and entry points.

    `read` returns the bytes of a path of the tree.
    """
    modules: set[str] = set()
    for entry in tree.entries:
        match = _SITE.fullmatch(entry.path)
        if match is None:
            continue
        inside = match[1]
        top = inside.partition("/")[0]
        if _EXTENSION.search(inside):
            name = top if "/" in inside else _EXTENSION.sub("", top)
            # Folders such as `numpy.libs` hold libraries that belong to a package beside them.
            if name.isidentifier():
                modules.add(name)
        elif top.endswith(".dist-info") and inside == f"{top}/entry_points.txt":
            modules.update(entry_point_modules(read(entry.path).decode("utf-8", "replace")))
    return sorted(modules)


def entry_point_modules(text: str) -> Iterator[str]:
    """Yield the modules of console scripts. Source: entry points specification, "File format"."""
    section = ""
    for line in text.splitlines():
        line = line.strip()
        if line.startswith("["):
            section = line
        elif section == "[console_scripts]" and (match := _ENTRY_POINT.match(line)):
            yield match[1]


def rehearse(
    rendered: Mapping[str, bytes],
    venvs: Iterable[tuple[str, list[str]]],
    services: ServiceManager,
    python: Python,
) -> None:
    """Refuse a generation that can't work here. `venvs` pairs interpreters with modules.

    Raises:
        Refused: `rehearsal-failed` with the first few problems.
        Failed: `process-*`, `rehearsal-failed`.
    """
    units = {
        path.removeprefix("units/"): data.decode()
        for path, data in rendered.items()
        if path.startswith("units/")
    }
    problems = [*services.check(units), *_engine_problems(units)]
    problems += [
        problem for path, data in sorted(rendered.items()) for problem in _parse(path, data)
    ]
    for interpreter, modules in venvs:
        if modules:
            failed = python.imports(interpreter, modules)
            problems += [f"import {name}: {why}" for name, why in sorted(failed.items())]
    if problems:
        more = len(problems) - _SHOWN_MAX
        raise Refused(
            "rehearsal-failed",
            "the release can't run on this host",
            expected="units that check, configuration that parses, packages that import",
            got="; ".join(problems[:_SHOWN_MAX]) + (f"; and {more} more" if more > 0 else ""),
        )


def _engine_problems(units: Mapping[str, str]) -> Iterator[str]:
    # Most releases have no container, and do without the import.
    if any("podman" in text or "docker" in text or "ctr" in text for text in units.values()):
        from capsule_installer.engines.unit_rules import engine_problems

        yield from engine_problems(units)


def _parse(path: str, data: bytes) -> Iterator[str]:
    try:
        if path.startswith("files/") and path.endswith(".toml"):
            # Few releases manage such files, and a start waits for each import.
            import tomllib

            tomllib.loads(data.decode())
        elif path.startswith("files/") and path.endswith(".json"):
            json.loads(data)
    except ValueError as error:
        yield f"{path.removeprefix('files')}: {error}"
