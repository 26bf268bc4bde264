"""What the tidy tests look at: tracked files, parsed modules, functions.

Only files that git tracks are judged, so an editor's scratch file fails nothing.
"""

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = [
    "DISTRIBUTIONS",
    "ROOT",
    "Function",
    "Module",
    "functions",
    "imported_names",
    "modules",
    "modules_of_tests",
    "text_of",
    "tracked",
]

ROOT = Path(__file__).resolve().parents[2]

# folder -> import package
DISTRIBUTIONS = {
    "manifest": "capsule_manifest",
    "installer": "capsule_installer",
    "capsule": "capsule",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One parsed file. `name` is its path from the root of the tree."""

    name: str
    tree: ast.Module
    lines: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One function, nested ones included. `lines` counts its signature and docstring too."""

    where: str
    name: str
    lines: int
    node: ast.FunctionDef | ast.AsyncFunctionDef


@cache
def tracked() -> tuple[str, ...]:
    """Return every tracked file that still exists, as paths from the root, sorted."""
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True
    ).stdout.decode()
    return tuple(sorted(name for name in listing.split("\0") if name and (ROOT / name).is_file()))


@cache
def text_of(name: str) -> str:
    """Return the text of a tracked file; an empty one if it is not UTF-8."""
    try:
        return (ROOT / name).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


@cache
def _parsed(name: str) -> Module:
    text = text_of(name)
    return Module(name=name, tree=ast.parse(text, filename=name), lines=text.count("\n"))


def modules(*folders: str) -> tuple[Module, ...]:
    """Return the modules of the packages in these distributions; of all three by default."""
    prefixes = tuple(f"{folder}/{DISTRIBUTIONS[folder]}/" for folder in folders or DISTRIBUTIONS)
    return tuple(
        _parsed(name) for name in tracked() if name.startswith(prefixes) and name.endswith(".py")
    )


def modules_of_tests() -> tuple[Module, ...]:
    """Return everything Python under tests/."""
    return tuple(
        _parsed(name) for name in tracked() if name.startswith("tests/") and name.endswith(".py")
    )


def functions(module: Module) -> Iterator[Function]:
    """Yield every function of a module."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            last = node.end_lineno or node.lineno
            yield Function(
                where=f"{module.name}:{node.lineno} {node.name}",
                name=node.name,
                lines=last - node.lineno + 1,
                node=node,
            )


def imported_names(module: Module) -> Iterator[tuple[int, str]]:
    """Yield line and top-level package of every import, deferred ones included."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module.partition(".")[0]
