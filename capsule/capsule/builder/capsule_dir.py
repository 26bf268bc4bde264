"""A capsule directory on the builder's disk: its name, its files, and how it comes into being."""

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from blake3 import blake3

from capsule.builder.packer import pack_name
from capsule_manifest.digest import CapsuleId, ObjectId
from capsule_manifest.errors import Failed, Refused
from capsule_manifest.packing import PACKING_LIMITS, Content, decode_packing
from capsule_manifest.release import Release, generation_name

__all__ = [
    "capsules_in",
    "copy_packs",
    "directory_name",
    "publish_directory",
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
    folder: Path, manifest: bytes, packing: bytes, trees: Mapping[ObjectId, bytes]
) -> None:
    """Write everything of a capsule but packs and signatures."""
    (folder / "trees").mkdir()
    (folder / "signatures").mkdir()
    (folder / "capsule.json").write_bytes(manifest)
    (folder / "packing.json").write_bytes(packing)
    for root, raw in trees.items():
        (folder / "trees" / root.hex()).write_bytes(raw)


def publish_directory(work: Path, folder: Path) -> None:
    """Give a complete directory its name, durably: a name is never seen on half a capsule.

    Raises:
        Failed: `controller-disk`.
    """
    try:
        # The builder's umask is not part of a capsule.
        for path in (work, *work.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        descriptor = os.open(work, os.O_RDONLY | os.O_DIRECTORY)
        try:
            # One sync for all files; the rename below must not reach the disk before them.
            os.sync()
            work.rename(folder)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise Failed("controller-disk", "a capsule can't be written", where=folder) from error
    _sync_folder(folder.parent)


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
    shutil.copystat(source, target)
    return True


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
