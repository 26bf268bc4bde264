"""Bytecode that an earlier staging made of the same tree: proved again and used again.

To compile is the longest step of a staging, and what most releases change least: the runtime stays
as it lies, and a component whose tree is another generation's gets links to that one's files. Each
file is hashed against the listing that a signed marker names, so that a damaged one is made anew.

Bytecode names the path that it was compiled at; Python corrects that when it imports it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from capsule_installer.host.host import Host
from capsule_installer.staging.generation import is_whole
from capsule_installer.staging.present import BYTECODE, RUNTIME_BYTECODE
from capsule_installer.staging.seal import read_listing
from capsule_installer.staging.venv import Python
from capsule_installer.system.fsops import remove_tree
from capsule_manifest.digest import ObjectId
from capsule_manifest.records import Marker
from capsule_manifest.release import Component
from capsule_manifest.tree import Entry, EntryKind, Tree, build_tree

__all__ = ["Bytecode"]

_FOLDER_MODE: Final = 0o755


class Bytecode:
    """The bytecode of one host, as its usable markers vouch for it."""

    def __init__(self, host: Host, python: Python, markers: Mapping[str, Marker]) -> None:
        self._host = host
        self._python = python
        self._markers = markers

    def of_runtime(self, component: Component, python: str) -> ObjectId | None:
        """Return the root of the listing of a runtime's bytecode that lies there, proved.

        `python` is the minor version that will run it, such as `3.11`. Raises: `disk-*`.
        """
        for marker in self._markers.values():
            root = marker.derived.get(RUNTIME_BYTECODE)
            if root is None or component.tree not in marker.trees.values():
                continue
            tree = read_listing(self._host, root)
            if tree is not None and self._is_good(tree, self._host.layout.runtimes, python):
                return root
        return None

    def make(self, component: Component, folder: str, interpreter: str, python: str) -> None:
        """Put bytecode beside every source of a component that is realised in `folder`.

        Raises: `disk-*`, `process-*`.
        """
        for marker in self._markers.values():
            root = marker.derived.get(BYTECODE)
            source = f"{self._host.layout.generation(marker.generation)}/{component.name}"
            if root is None or marker.trees.get(component.name) != component.tree:
                continue
            listing = read_listing(self._host, root)
            if listing is None or source == folder:
                continue
            tree = _below(listing, component.name)
            if tree.entries and self._is_good(tree, source, python):
                self._link(tree, source, folder)
                return
        self._python.compile(folder, interpreter)

    def _is_good(self, tree: Tree, folder: str, python: str) -> bool:
        tag = f".cpython-{python.replace('.', '')}."
        named = all(tag in entry.path for entry in _files(tree))
        return named and is_whole(self._host.disk, None, tree, folder)

    def _link(self, tree: Tree, source: str, folder: str) -> None:
        disk = self._host.disk
        for cache in sorted({entry.path.rpartition("/")[0] for entry in _files(tree)}):
            # A generation that is staged again may have some, of any kind.
            remove_tree(disk, f"{folder}/{cache}")
            disk.mkdir(f"{folder}/{cache}", _FOLDER_MODE)
        for entry in _files(tree):
            disk.link(f"{source}/{entry.path}", f"{folder}/{entry.path}")


def _files(tree: Tree) -> Iterator[Entry]:
    return (entry for entry in tree.entries if entry.kind is EntryKind.FILE)


def _below(tree: Tree, name: str) -> Tree:
    """Return the files of one component, by their paths in it."""
    start = f"{name}/"
    return build_tree(
        replace(entry, path=entry.path.removeprefix(start))
        for entry in _files(tree)
        if entry.path.startswith(start)
    )
