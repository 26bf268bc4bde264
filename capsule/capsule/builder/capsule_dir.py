"""A capsule directory on the builder's disk: its name, its files, and the packs of earlier ones."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from blake3 import blake3

from capsule.builder.frame_plan import KnownPack, pieces_of
from capsule.builder.packer import pack_name
from capsule.builder.remembered import Memory
from capsule.durable import link_file, read_bounded
from capsule_manifest.digest import CapsuleId, ObjectId
from capsule_manifest.errors import Refused
from capsule_manifest.packing import PACKING_LIMITS, Content, decode_packing
from capsule_manifest.release import Release, decode_release, generation_name
from capsule_manifest.tree import Tree, content_order, decode_tree

__all__ = [
    "capsules_in",
    "directory_name",
    "first_lacking",
    "known_packs",
    "take_packs",
    "write_metadata",
]

_NAME = re.compile(r"[a-z0-9-]+-[0-9]+-[0-9a-f]{8}\.capsule")
_CHUNK_BYTES: Final = 1024 * 1024
_SIBLINGS_MAX: Final = 3
"""So many capsules are looked through for single frames; whole trees are found in any."""


def directory_name(release: Release, capsule: CapsuleId) -> str:
    """Return `NAME-COUNTER-ID8.capsule`."""
    name = release.product.rpartition("/")[2]
    return f"{name}-{generation_name(release.release_counter, capsule)}.capsule"


def capsules_in(output: Path) -> list[Path]:
    """Return the capsule directories in a folder, the highest counter first."""
    found = [path for path in output.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=lambda path: -int(path.name.rsplit("-", 2)[1]))


def take_packs(
    root: ObjectId, siblings: Sequence[Path], packs: Path, memory: Memory
) -> Content | None:
    """Take the packs of a tree from a capsule that has it; None if none has them whole.

    Each pack is proved to be what its name says: an earlier capsule may have been damaged. It is
    read for that, unless `memory` knows it. Packs are never written again, so they are linked.
    """
    for sibling in siblings:
        try:
            raw = (sibling / "packing.json").read_bytes()
            content = decode_packing(raw, limits=PACKING_LIMITS).contents.get(root)
        except (OSError, Refused):
            continue
        if content is not None:
            paths = [sibling / "packs" / pack_name(pack.id) for pack in content.packs]
            if all(
                _is_pack(path, pack.id, memory)
                for path, pack in zip(paths, content.packs, strict=True)
            ):
                for path in paths:
                    link_file(path, packs / path.name)
                return content
    return None


def known_packs(
    names: Collection[str], siblings: Sequence[Path], memory: Memory
) -> tuple[KnownPack, ...]:
    """Return the packs of components of these names in the newest capsules, damaged ones left out.

    What a frame holds follows from the tree, which is proved, and from sizes in the packing. If
    these were wrong, a host would find other objects than the tree names and refuse the capsule.
    """
    found: dict[ObjectId, KnownPack] = {}
    for sibling in siblings[:_SIBLINGS_MAX]:
        try:
            release = decode_release((sibling / "capsule.json").read_bytes())
            packing = decode_packing((sibling / "packing.json").read_bytes(), limits=PACKING_LIMITS)
            roots = {item.tree for item in release.components if item.name in names}
            for root in sorted(roots & packing.contents.keys()):
                raw = (sibling / "trees" / root.hex()).read_bytes()
                for pack in _packs_of(sibling, decode_tree(raw, root=root), packing.contents[root]):
                    if pack.pack.id not in found and _is_pack(pack.path, pack.pack.id, memory):
                        found[pack.pack.id] = pack
        except (OSError, Refused):
            continue
    return tuple(found.values())


def _packs_of(sibling: Path, tree: Tree, content: Content) -> Iterator[KnownPack]:
    sizes = [frame.content_bytes for pack in content.packs for frame in pack.frames]
    pieces = pieces_of(content_order(tree), sizes)
    start = 0
    for pack in content.packs:
        end = start + len(pack.frames)
        if end <= len(pieces):
            path = sibling / "packs" / pack_name(pack.id)
            yield KnownPack(path=path, pack=pack, pieces=pieces[start:end])
        start = end


def first_lacking(folder: Path) -> Path | None:
    """Return the first pack that a capsule's packing names and that is not there in its length.

    What the bytes are is for `capsule verify`. Raises: what `decode_packing` raises.
    """
    raw = read_bounded(folder / "packing.json", PACKING_LIMITS.size_bytes_max) or b""
    for content in decode_packing(raw, limits=PACKING_LIMITS).contents.values():
        for pack in content.packs:
            path = folder / "packs" / pack_name(pack.id)
            if not path.is_file() or path.stat().st_size != pack.size_bytes:
                return path
    return None


def write_metadata(
    folder: Path,
    manifest: bytes,
    packing: bytes,
    trees: Mapping[ObjectId, bytes],
    documents: Mapping[str, bytes],
) -> None:
    """Write everything of a capsule but packs and signatures; `documents` by member name."""
    (folder / "trees").mkdir()
    (folder / "signatures").mkdir()
    (folder / "capsule.json").write_bytes(manifest)
    (folder / "packing.json").write_bytes(packing)
    for root, raw in trees.items():
        (folder / "trees" / root.hex()).write_bytes(raw)
    for name, raw in documents.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(raw)


def _is_pack(path: Path, pack: ObjectId, memory: Memory) -> bool:
    """Say whether a file is the pack of this name; reading it is needed once only."""
    state = memory.state(path)
    if memory.is_proved(path, pack.hex()):
        return True
    hasher = blake3()
    try:
        with path.open("rb") as reader:
            while chunk := reader.read(_CHUNK_BYTES):
                hasher.update(chunk)
    except OSError:
        return False
    if hasher.digest() != pack:
        return False
    memory.prove(path, pack.hex(), state)
    return True
