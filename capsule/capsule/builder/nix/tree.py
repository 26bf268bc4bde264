"""A closure as the tree of a component: store paths below `nix/store`, and the programs in `bin`.

A unit shows the folder to its processes as `/nix/store`; nothing of the host's own store is
touched. Links to the store are written relative, so that they hold in both places, and
`nix/closure.json` keeps what they were: from the tree each archive can be made again, bit for bit.

Source: `docs/adr/0026-a-closure-lies-in-its-generation.md`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Final

from capsule.builder.lockfile import NixPin
from capsule.builder.model import External, InputEntry
from capsule.builder.nix.names import STORE
from capsule.builder.nix.nar import NarEntry, read_nar
from capsule.builder.section import open_section
from capsule_manifest.canonical import JsonValue, encode
from capsule_manifest.errors import Refused
from capsule_manifest.paths import check_link, check_path, escape
from capsule_manifest.tree_entry import EntryKind

__all__ = ["CLOSURE_SCHEMA", "closure_entries"]

CLOSURE_SCHEMA: Final = "capsule.nix.closure/1"
_RECORD: Final = "nix/closure.json"
_BELOW: Final = STORE.removeprefix("/")


@dataclass(frozen=True, slots=True)
class _Unpacked:
    entries: tuple[InputEntry, ...]
    links: Mapping[str, str]
    programs: frozenset[str]


def closure_entries(
    pin: NixPin, archives: Mapping[str, Path], *, where: str
) -> tuple[tuple[InputEntry, ...], tuple[External, ...]]:
    """Return the tree of a closure whose archives are at hand, and what Nix calls its paths.

    Raises:
        Refused: `nar-malformed`, `path-invalid`, `link-escapes`, `nix-link-outside`,
            `nix-component-invalid` for a program that the root hasn't got.
    """
    names = frozenset(path.name for path in pin.paths)
    found: dict[str, InputEntry] = {}
    record: dict[str, JsonValue] = {}
    programs: frozenset[str] = frozenset()
    for path in pin.paths:
        unpacked = _unpacked(path.name, archives[path.name], names, where)
        found |= {entry.path: entry for entry in unpacked.entries}
        record[path.name] = {
            "narHash": f"sha256:{path.nar_sha256}",
            "narSize": path.nar_bytes,
            "references": list(path.references),
            "links": dict(unpacked.links),
        }
        if path.name == pin.root:
            programs = unpacked.programs
    for name in pin.bin:
        found[name] = _program(name, pin.root, programs, where)
    document = encode(
        {"schema": CLOSURE_SCHEMA, "storeDir": STORE, "root": pin.root, "paths": record}
    )
    found[_RECORD] = InputEntry(
        path=_RECORD,
        kind=EntryKind.FILE,
        mode=0o644,
        size_bytes=len(document),
        open=partial(BytesIO, document),
    )
    external = tuple(
        External(type="nix-path", name=path.name, digest=f"sha256:{path.nar_sha256}")
        for path in pin.paths
    )
    return tuple(found[path] for path in sorted(found)), external


def _unpacked(name: str, archive: Path, names: frozenset[str], where: str) -> _Unpacked:
    place = f"{where}: {name}"
    with archive.open("rb") as stream:
        nodes = read_nar(stream, archive.stat().st_size, where=place)
    links: dict[str, str] = {}
    entries = tuple(_entries(name, archive, nodes, names, links, place))
    # What can be run by name: a file that may, or a link, whose end another path may hold.
    programs = frozenset(
        node.path for node in nodes if node.is_executable or node.kind is EntryKind.LINK
    )
    return _Unpacked(entries, links, programs)


def _entries(
    name: str,
    archive: Path,
    nodes: tuple[NarEntry, ...],
    names: frozenset[str],
    links: dict[str, str],
    where: str,
) -> Iterator[InputEntry]:
    for node in nodes:
        inside = f"{name}/{node.path}" if node.path else name
        path = f"{_BELOW}/{inside}"
        check_path(path, where)
        match node.kind:
            case EntryKind.DIRECTORY:
                yield InputEntry(path=path, kind=node.kind, mode=0o755)
            case EntryKind.FILE:
                yield InputEntry(
                    path=path,
                    kind=node.kind,
                    mode=0o755 if node.is_executable else 0o644,
                    size_bytes=node.size_bytes,
                    open=partial(_open, archive, node),
                )
            case EntryKind.LINK:
                assert node.target is not None, "a link has a target"
                target = node.target
                if target.startswith("/"):
                    target = _relative(inside, node.target, names, where)
                    links[node.path] = node.target
                check_link(path, target, where)
                _check_inside(inside, target, where)
                yield InputEntry(path=path, kind=node.kind, mode=0o777, target=target)


def _open(archive: Path, node: NarEntry) -> BinaryIO:
    return open_section(archive, node.offset, node.size_bytes)


def _relative(inside: str, target: str, names: frozenset[str], where: str) -> str:
    """Return the target of a link at `inside`, a path below the store, from where it lies."""
    rest = target.removeprefix(f"{STORE}/")
    if rest == target or rest.partition("/")[0] not in names:
        raise _outside(inside, target, where)
    return "../" * inside.count("/") + rest


def _check_inside(inside: str, target: str, where: str) -> None:
    # The component has folders above the store, which a process that sees the store hasn't got.
    levels_up = 0
    for segment in target.split("/"):
        if segment != "..":
            break
        levels_up += 1
    if levels_up > inside.count("/"):
        raise _outside(inside, target, where)


def _program(name: str, root: str, programs: frozenset[str], where: str) -> InputEntry:
    check_path(name, where)
    if name not in programs or name.partition("/")[0] == _BELOW.partition("/")[0]:
        raise Refused(
            "nix-component-invalid", "a program is not in the store path that should bring it",
            expected=f"one that may run, of {root}", got=escape(name), where=where,
        )  # fmt: skip
    target = "../" * name.count("/") + f"{_BELOW}/{root}/{name}"
    return InputEntry(path=name, kind=EntryKind.LINK, mode=0o777, target=target)


def _outside(inside: str, target: str, where: str) -> Refused:
    return Refused(
        "nix-link-outside", "a link of a store path leads out of the closure",
        expected=f"a target below {STORE}, in a path of the closure",
        got=f"{escape(inside)} -> {escape(target)}", where=where,
    )  # fmt: skip
