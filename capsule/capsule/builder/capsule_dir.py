"""A capsule directory on the builder's disk: its name, its files, and the packs of earlier ones."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from blake3 import blake3

from capsule.builder.packer import pack_name
from capsule_manifest.digest import CapsuleId, ObjectId
from capsule_manifest.errors import Refused
from capsule_manifest.packing import PACKING_LIMITS, Content, decode_packing
from capsule_manifest.release import Release, generation_name

__all__ = [
    "capsules_in",
    "copy_packs",
    "directory_name",
    "write_metadata",
]

_NAME = re.compile(r"[a-z0-9-]+-[0-9]+-[0-9a-f]{8}\.capsule")
_CHUNK_BYTES: Final = 1024 * 1024


def directory_name(release: Release, capsule: CapsuleId) -> str:
    """Return `NAME-COUNTER-ID8.capsule`."""
    name = release.product.rpartition("/")[2]
    return f"{name}-{generation_name(release.release_counter, capsule)}.capsule"


def capsules_in(output: Path) -> list[Path]:
    """Return the capsule directories in a folder, the highest counter first."""
    found = [path for path in output.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=lambda path: -int(path.name.rsplit("-", 2)[1]))


def copy_packs(root: ObjectId, siblings: Sequence[Path], packs: Path) -> Content | None:
    """Copy the packs of a tree from a capsule that has it; None if none has them whole.

    Each pack is read and proved to be what its name says: an earlier capsule may have been damaged.
    """
    for sibling in siblings:
        try:
            raw = (sibling / "packing.json").read_bytes()
            content = decode_packing(raw, limits=PACKING_LIMITS).contents.get(root)
            if content is not None and all(
                _copy_pack(sibling / "packs" / pack_name(pack.id), pack.id, packs)
                for pack in content.packs
            ):
                return content
        except (OSError, Refused):
            continue
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


def _copy_pack(source: Path, pack: ObjectId, packs: Path) -> bool:
    target = packs / pack_name(pack)
    if target.exists():
        return True
    hasher = blake3()
    with source.open("rb") as reader, target.open("xb") as writer:
        while chunk := reader.read(_CHUNK_BYTES):
            hasher.update(chunk)
            writer.write(chunk)
    if hasher.digest() != pack:
        target.unlink()
        return False
    return True
