"""`capsule verify`: hash everything on this host again against what was signed.

From signatures down: the node's marker of each generation, the signed manifest, the listings that
it names, then every file, link, rendered file and bytecode file of the generation, and every object
of the store. Reads only; `--quarantine` also moves damaged objects out of the store, so that the
next staging brings them again.

Classes of a path: `ok`, `missing`, `size-mismatch`, `mode-mismatch`, `digest-mismatch`,
`unreadable`, `unexpected`.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

import click

from capsule_installer.host.host import Host
from capsule_installer.host.identity import require_node_key
from capsule_installer.staging.generation import LINKED_KINDS, Problem, problems_of
from capsule_installer.staging.present import BYTECODE, LISTED
from capsule_installer.staging.render import TEXT_BYTES_MAX
from capsule_installer.staging.runtime import runtime_name
from capsule_installer.staging.seal import read_listing
from capsule_installer.staging.store import hash_file
from capsule_installer.staging.venv import venv_links
from capsule_installer.system.disk import FileKind
from capsule_manifest.canonical import JsonValue
from capsule_manifest.digest import ObjectId
from capsule_manifest.errors import CapsuleError, Failed, Refused
from capsule_manifest.records import Marker
from capsule_manifest.release import (
    RELEASE_LIMITS,
    Component,
    ComponentKind,
    Release,
    capsule_id,
    decode_release,
)
from capsule_manifest.tree import EntryKind, Tree

__all__ = ["HostVerifier", "command"]

_OBJECT: Final = re.compile(r"([0-9a-f]{64})(\.x)?")
_SHOWN_MAX: Final = 20
_REPORTED_MAX: Final = 1000
# Made by the host for every venv; its settings are sealed, and these links follow from them.
_VENV_FILES: Final = frozenset({"pyvenv.cfg", "bin/python", "bin/python3"})


@click.command(name="verify", epilog="Example: capsule verify --json")
@click.option("--json", "as_json", is_flag=True, help="Answer in framed records.")
@click.option("--quarantine", is_flag=True, help="Move damaged objects out of the store.")
@click.pass_obj
def command(host: Host, *, as_json: bool, quarantine: bool) -> None:
    """Hash everything again against what was signed."""
    host.prepare()
    lock = host.take_lock()
    try:
        began_ms = host.clock.boot_ms()
        verifier = HostVerifier(host)
        problems = verifier.run()
        if quarantine:
            verifier.quarantine(problems)
        took_ms = host.clock.boot_ms() - began_ms
    finally:
        lock.release()
    if as_json:
        host.reporter.record("verified", _record(verifier, problems, took_ms))
    else:
        _print(host, verifier, problems, took_ms)
    if problems:
        raise Refused(
            "verify-failed",
            "the host is not what was signed",
            expected="every file as signed",
            got=f"{len(problems)} problems, the first {problems[0].what} {problems[0].path}",
        )


class HostVerifier:
    """Verify one host. `counts` has how many paths are of each class, per generation and store."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._disk = host.disk
        self._layout = host.layout
        self._key = require_node_key(host.disk, host.layout).public
        # One inode is hashed once, whichever generations hold it.
        self._hashed: dict[int, ObjectId] = {}
        self.counts: dict[str, Counter[str]] = {}
        self.hashed_bytes = 0

    def run(self) -> list[Problem]:
        """Return everything that is not as it was signed.

        Raises:
            Failed: `host-not-enrolled`, `disk-*` for folders that can't be listed.
        """
        problems: list[Problem] = []
        for generation in self._generations():
            counter = self.counts.setdefault(generation, Counter())
            for problem in self._generation(generation, counter):
                counter[problem.what] += 1
                problems.append(problem)
        counter = self.counts.setdefault("store", Counter())
        for problem in self._store(counter):
            counter[problem.what] += 1
            problems.append(problem)
        return problems

    def quarantine(self, problems: list[Problem]) -> None:
        """Move damaged objects of the store to the quarantine folder. Raises: `disk-*`."""
        for problem in problems:
            if problem.path.startswith(f"{self._layout.store}/"):
                name = problem.path.rpartition("/")[2]
                self._disk.rename(problem.path, f"{self._layout.quarantine}/{name}")
        # Not made durable: an object that comes back is found damaged again.

    def _generations(self) -> list[str]:
        links = (self._layout.current, self._layout.previous)
        named = {self._host.state.generation_of(link) for link in links} - {"absent"}
        return sorted(named | set(self._host.state.staged_generations()))

    def _generation(self, generation: str, counter: Counter[str]) -> Iterator[Problem]:
        folder = self._layout.generation(generation)
        try:
            marker = self._host.state.staged_marker(generation, self._key)
            release = None if marker is None else self._release(folder, marker)
        except (CapsuleError, FileNotFoundError) as error:
            yield Problem(path=f"{folder} ({error})", what="unreadable")
            return
        if marker is None or release is None:
            yield Problem(path=self._layout.marker(generation), what="missing")
            return
        trees: dict[str, Tree] = {}
        for name, root in marker.trees.items():
            tree = read_listing(self._host, root)
            if tree is None:
                yield Problem(path=self._layout.listing(root), what="missing")
                continue
            component = _component(release, name, root)
            if component.kind is ComponentKind.RUNTIME:
                yield from self._tree(
                    tree, f"{self._layout.runtimes}/{runtime_name(root)}", counter
                )
            elif component.kind in LINKED_KINDS:
                trees[name] = tree
                yield from self._tree(tree, f"{folder}/{name}", counter)
        yield from self._derived(marker, folder, counter)
        yield from self._unexpected(folder, trees, marker)

    def _release(self, folder: str, marker: Marker) -> Release:
        raw = self._disk.read(f"{folder}/capsule.json", RELEASE_LIMITS.size_bytes_max)
        if capsule_id(raw) != marker.capsule:
            raise Refused(
                "verify-failed",
                "a generation's manifest is not the one that was staged",
                expected=marker.capsule,
                got=capsule_id(raw),
                where=folder,
            )
        return decode_release(raw)

    def _tree(self, tree: Tree, folder: str, counter: Counter[str]) -> Iterator[Problem]:
        wrong = {problem.path: problem for problem in problems_of(self._disk, tree, folder)}
        yield from wrong.values()
        for entry in tree.entries:
            path = f"{folder}/{entry.path}"
            if path in wrong:
                continue
            if entry.kind is EntryKind.FILE and entry.object is not None:
                problem = self._file(path, entry.object)
                if problem is not None:
                    yield problem
                    continue
            counter["ok"] += 1

    def _file(self, path: str, digest: ObjectId) -> Problem | None:
        found = self._disk.stat(path)
        if found is None:
            return Problem(path=path, what="missing")
        try:
            known = self._hashed.get(found.inode) or hash_file(self._disk, path)
        except (Failed, FileNotFoundError):
            return Problem(path=path, what="unreadable")
        if found.inode not in self._hashed:
            self._hashed[found.inode] = known
            self.hashed_bytes += found.size_bytes
        return None if known == digest else Problem(path=path, what="digest-mismatch")

    def _derived(self, marker: Marker, folder: str, counter: Counter[str]) -> Iterator[Problem]:
        for path, digest in marker.derived.items():
            if path in LISTED:
                tree = read_listing(self._host, digest)
                if tree is None:
                    yield Problem(path=self._layout.listing(digest), what="missing")
                    continue
                base = folder if path == BYTECODE else self._layout.runtimes
                yield from self._tree(tree, base, counter)
                continue
            problem = self._file(f"{folder}/{path}", digest)
            if problem is None and path.endswith("/pyvenv.cfg"):
                problem = self._venv_links(f"{folder}/{path}")
            if problem is None:
                counter["ok"] += 1
            else:
                yield problem

    def _venv_links(self, settings: str) -> Problem | None:
        text = self._disk.read(settings, TEXT_BYTES_MAX).decode("utf-8", "replace")
        interpreter = text.partition("executable = ")[2].partition("\n")[0]
        folder = settings.rpartition("/")[0]
        for name, target in venv_links(interpreter).items():
            path = f"{folder}/{name}"
            found = self._disk.stat(path)
            if found is None:
                return Problem(path=path, what="missing")
            if found.kind is not FileKind.LINK or self._disk.read_link(path) != target:
                return Problem(path=path, what="digest-mismatch")
        return None

    def _unexpected(
        self, folder: str, trees: Mapping[str, Tree], marker: Marker
    ) -> Iterator[Problem]:
        """Yield what lies in a component's folder or beside rendered files without being named."""
        expected = {f"{folder}/{path}" for path in marker.derived if path not in LISTED}
        bytecode = read_listing(self._host, marker.derived[BYTECODE])
        for entry in bytecode.entries if bytecode else ():
            expected.add(f"{folder}/{entry.path}")
        for name, tree in trees.items():
            expected.update(f"{folder}/{name}/{entry.path}" for entry in tree.entries)
            if f"{name}/pyvenv.cfg" in marker.derived:
                expected.update(f"{folder}/{name}/{path}" for path in _VENV_FILES)
                expected.add(f"{folder}/{name}/bin")
        for name in (*trees, "units", "files"):
            for path, kind in self._walk(f"{folder}/{name}"):
                is_parent = kind is FileKind.DIRECTORY and name in {"units", "files"}
                if path not in expected and not is_parent:
                    yield Problem(path=path, what="unexpected")

    def _walk(self, folder: str) -> Iterator[tuple[str, FileKind]]:
        try:
            names = self._disk.list(folder)
        except FileNotFoundError:
            return
        for name in names:
            path = f"{folder}/{name}"
            found = self._disk.stat(path)
            if found is None:
                continue
            yield path, found.kind
            if found.kind is FileKind.DIRECTORY:
                yield from self._walk(path)

    def _store(self, counter: Counter[str]) -> Iterator[Problem]:
        for path, kind in self._walk(self._layout.store):
            match = _OBJECT.fullmatch(path.rpartition("/")[2])
            if kind is FileKind.DIRECTORY:
                continue
            if kind is not FileKind.FILE or match is None:
                yield Problem(path=path, what="unexpected")
                continue
            problem = self._file(path, ObjectId(bytes.fromhex(match[1])))
            if problem is None:
                counter["ok"] += 1
            else:
                yield problem


def _component(release: Release, name: str, root: ObjectId) -> Component:
    # Platforms may have components of one name; the marker names the tree of this host's.
    for component in release.components:
        if (component.name, component.tree) == (name, root):
            return component
    raise Refused("verify-failed", "a marker names a component that the release lacks", got=name)


def _record(verifier: HostVerifier, problems: list[Problem], took_ms: int) -> dict[str, JsonValue]:
    return {
        "counts": {name: dict(counter) for name, counter in verifier.counts.items()},
        "problems": [
            {"path": problem.path, "what": problem.what} for problem in problems[:_REPORTED_MAX]
        ],
        "problems_total": len(problems),
        "hashed_bytes": verifier.hashed_bytes,
        "took_ms": took_ms,
    }


def _print(host: Host, verifier: HostVerifier, problems: list[Problem], took_ms: int) -> None:
    for name, counter in verifier.counts.items():
        classes = ", ".join(f"{count} {what}" for what, count in sorted(counter.items()))
        host.reporter.text(f"{name}: {classes or 'nothing'}")
    for problem in problems[:_SHOWN_MAX]:
        host.reporter.text(f"  {problem.what}: {problem.path}")
    if len(problems) > _SHOWN_MAX:
        host.reporter.text(f"  and {len(problems) - _SHOWN_MAX} more; see --json")
    host.reporter.text(f"hashed {verifier.hashed_bytes} bytes in {took_ms} ms")
