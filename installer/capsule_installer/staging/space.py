"""Whether a staging fits, counted before the first byte of content comes.

Counted per file system block, with inodes, with what is decompressed, linked and compiled, and with
a reserve for whatever else the host writes meanwhile. What an interrupted try left is not counted
twice.
"""

from collections.abc import Mapping
from typing import Final

from capsule_installer.host.host import Host
from capsule_installer.staging.frames import FramePlan
from capsule_installer.staging.incoming import Delivery
from capsule_manifest.digest import ObjectId
from capsule_manifest.errors import Refused
from capsule_manifest.release import ComponentKind
from capsule_manifest.tree import EntryKind

__all__ = ["check_space"]

_BLOCK: Final = 4096
_RESERVE_BYTES: Final = 16 * 1024 * 1024
_RESERVE_INODES: Final = 256
_NAME_BYTES: Final = 64


def check_space(host: Host, delivery: Delivery, plans: Mapping[ObjectId, FramePlan]) -> int:
    """Return how many bytes will be free afterwards.

    Raises:
        Refused: `space-short`, which names bytes or inodes with both numbers.
        Failed: `disk-*`.
    """
    needed_bytes, needed_inodes = _needed(delivery, plans)
    free_bytes, free_inodes = host.disk.free(host.layout.opt)
    for what, needed, free in (
        ("bytes", needed_bytes + _RESERVE_BYTES, free_bytes),
        ("inodes", needed_inodes + _RESERVE_INODES, free_inodes),
    ):
        if needed > free:
            raise Refused(
                "space-short",
                f"there are too few free {what}",
                expected=f"{needed} {what}, reserve included",
                got=f"{free} {what}",
                where=host.layout.opt,
            )
    return free_bytes - needed_bytes


def _needed(delivery: Delivery, plans: Mapping[ObjectId, FramePlan]) -> tuple[int, int]:
    size_bytes = inodes = 0
    for plan in plans.values():
        size_bytes += sum(_blocks(size) for size in plan.missing.values())
        size_bytes -= sum(plan.kept.values())
        inodes += len(plan.missing) - len(plan.kept)
    for component in delivery.components:
        compiled = component.kind in {ComponentKind.SOURCE, ComponentKind.WHEELS}
        for entry in delivery.listings[component.tree].tree.entries:
            size_bytes += _NAME_BYTES
            if entry.kind is EntryKind.DIRECTORY:
                size_bytes += 2 * _BLOCK
                inodes += 2
            elif entry.kind is EntryKind.LINK:
                inodes += 1
            elif compiled and entry.path.endswith(".py"):
                # Bytecode is about as large as its source.
                size_bytes += _blocks(entry.size_bytes)
                inodes += 1
            elif entry.mode not in {0o644, 0o755}:
                size_bytes += _blocks(entry.size_bytes)
                inodes += 1
    return size_bytes, inodes


def _blocks(size_bytes: int) -> int:
    return -(-size_bytes // _BLOCK) * _BLOCK
