"""Build a second time, elsewhere and under other conditions, and name the first difference.

The second build is another process, from a clone in another folder, under another umask, locale,
time zone, home and seed of hashes, and with nothing remembered. What it makes is thrown away.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import Final

from capsule.builder.assemble import Draft
from capsule.builder.git_source import clone_at, open_work_tree
from capsule.builder.remembered import cache_folder
from capsule_manifest.digest import blake3_text
from capsule_manifest.errors import Refused
from capsule_manifest.paths import escape
from capsule_manifest.release import Component, decode_release
from capsule_manifest.tree import Entry, Tree, decode_tree, diff_trees

__all__ = ["check_reproducible", "first_difference"]

_TIMEOUT_S: Final = 3600
_UMASK: Final = 0o077
_OTHERS: Final = {"LC_ALL": "C", "TZ": "Asia/Kathmandu", "PYTHONHASHSEED": "4711"}
_BESIDE: Final = ("release.lock", "secret-waivers.toml")


def check_reproducible(release_path: Path, draft: Draft, environment: Mapping[str, str]) -> None:
    """Build the commit again, elsewhere, and compare.

    Raises:
        Refused: `not-reproducible` with the first object that differs, or with what the second
            build was refused for.
    """
    work_tree = open_work_tree(release_path.resolve().parent)
    with TemporaryDirectory(prefix="capsule-twice-") as temporary:
        clone = Path(temporary, "an other folder", "clone")
        clone_at(work_tree, clone)
        second = clone / work_tree.prefix / release_path.name
        for name in (release_path.name, *_BESIDE):
            beside = release_path.with_name(name)
            if beside.is_file():
                copyfile(beside, second.with_name(name))
        output = Path(temporary, "out")
        _build(second, output, environment, Path(temporary))
        [folder] = output.glob("*.capsule")
        where, expected, got = first_difference(draft, folder) or ("", "", "")
        if where:
            raise Refused(
                "not-reproducible", "two builds of one commit differ", expected=expected, got=got,
                where=where,
            )  # fmt: skip


def first_difference(draft: Draft, folder: Path) -> tuple[str, str, str] | None:
    """Return where another capsule of this release differs first, and both values; None if not."""
    raw = (folder / "capsule.json").read_bytes()
    if raw == draft.manifest:
        return None
    other = decode_release(raw)
    for one, two in zip(draft.release.components, other.components, strict=False):
        if (one.name, one.platforms) != (two.name, two.platforms):
            return "components", _named(one), _named(two)
        if one.tree != two.tree:
            tree = decode_tree((folder / "trees" / two.tree.hex()).read_bytes(), root=two.tree)
            return _first_entry(one.name, draft.listings[one.tree].tree, tree)
        if one != two:
            return one.name, repr(one), repr(two)
    return "capsule.json", draft.release.source.commit, other.source.commit


def _first_entry(name: str, one: Tree, two: Tree) -> tuple[str, str, str]:
    difference = diff_trees(one, two)
    found = [(entry.path, _said(entry), "nothing") for entry in difference.removed]
    found += [(entry.path, "nothing", _said(entry)) for entry in difference.added]
    found += [(old.path, _said(old), _said(new)) for old, new in difference.changed]
    path, expected, got = min(found)
    return f"{name}: {escape(path)}", expected, got


def _said(entry: Entry) -> str:
    content = entry.target or (blake3_text(entry.object) if entry.object else "no content")
    return f"{entry.kind}, mode {entry.mode:04o}, {content}"


def _named(component: Component) -> str:
    return f"{component.name} for {', '.join(component.platforms) or 'all platforms'}"


def _build(release_path: Path, output: Path, environment: Mapping[str, str], home: Path) -> None:
    # Fetched content is the same whoever has it; HOME is where else a build could look.
    cache = str(cache_folder(environment).parent.parent)
    done = subprocess.run(
        [
            sys.executable, "-m", "capsule", "build", "--forget",
            f"--release={release_path}", f"--output={output}",
        ],
        cwd=home,
        env={**environment, **_OTHERS, "HOME": str(home), "XDG_CACHE_HOME": cache},
        umask=_UMASK,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_TIMEOUT_S,
        check=False,
    )  # fmt: skip
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
        raise Refused(
            "not-reproducible", "the commit can't be built again elsewhere",
            expected="a build from a clone", got=(errors or ["no message"])[0],
            where=os.fspath(release_path.name),
        )  # fmt: skip
