"""Leases: what was asked to be staged is needed until it was ordered, and `gc` leaves it alone.

One small file a generation, written before its content comes. Its first line is the number that the
next receipt had then: counting receipts needs no clock. The others name the listings of what is
coming, so that nothing of it is removed while no marker speaks of it yet.

A lease ends when its generation was committed or undone since, or when a release that is not older
was committed since: what is installed then is what was meant, or something newer was. Until then a
generation that is staged may be ordered at any moment, and what an interrupted staging brought is
there when it goes on.

Source: design, section 9; ADR 0248.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from capsule_installer.host.layout import Layout
from capsule_installer.host.receipts import ReceiptChain
from capsule_installer.system.disk import Disk
from capsule_installer.system.fsops import keep_name, make_dirs, replace_file
from capsule_manifest.digest import ObjectId
from capsule_manifest.errors import Refused
from capsule_manifest.records import Receipt

__all__ = ["FAILED", "Lease", "drop_leases", "leases_over", "read_leases", "take_lease"]

FAILED: Final = frozenset({"restored", "restored-absent", "restore-failed"})
"""Results of ops that were undone."""

_SIZE_BYTES_MAX: Final = 1024 * 1024
_PRIVATE: Final = 0o700
_COMMITTED: Final = "committed"
_LEASE: Final = re.compile(r"([0-9]{1,8})\n((?:[0-9a-f]{64}\n)*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """`since`: the number of the next receipt when it was taken; `trees`: what was coming."""

    since: int
    trees: frozenset[ObjectId]


def take_lease(
    disk: Disk, layout: Layout, chain: ReceiptChain, generation: str, trees: Iterable[ObjectId]
) -> None:
    """Keep `generation` from `gc` until it was ordered. Durable. The caller holds the lock.

    A lease that still lasts is left as it is. Raises: `disk-*`.
    """
    path, wanted = f"{_folder(layout)}/{generation}", frozenset(trees)
    if _lasts(disk, path, chain, generation, wanted):
        # Whoever wrote it may have been stopped before its fsync.
        keep_name(disk, path)
        return
    lines = [str(chain.last_number() + 1), *sorted(tree.hex() for tree in wanted)]
    make_dirs(disk, _folder(layout), _PRIVATE)
    replace_file(disk, path, "".join(f"{line}\n" for line in lines).encode(), 0o600)


def read_leases(disk: Disk, layout: Layout) -> dict[str, Lease]:
    """Return the lease of each generation that has one, over or not.

    Raises:
        Refused: `state-malformed`: what can't be read is not taken for nothing.
    """
    try:
        names = disk.list(_folder(layout))
    except FileNotFoundError:
        return {}
    # A name that begins with a dot is what a stopped write left.
    return {name: _parse(disk, f"{_folder(layout)}/{name}") for name in names if name[0] != "."}


def leases_over(leases: Mapping[str, Lease], receipts: Sequence[Receipt]) -> set[str]:
    """Return the generations whose lease has ended, by what the host's receipts say."""
    return {
        name
        for name, lease in leases.items()
        if any(_ends(name, receipt) for receipt in receipts if receipt.sequence >= lease.since)
    }


def _ends(generation: str, receipt: Receipt) -> bool:
    if receipt.result == _COMMITTED:
        return _counter(receipt.target) >= _counter(generation)
    return receipt.result in FAILED and receipt.target == generation


def _counter(generation: str) -> int:
    number = generation.partition("-")[0]
    return int(number) if number.isdigit() else 0


def drop_leases(disk: Disk, layout: Layout, generations: Iterable[str]) -> None:
    """Remove leases; one that comes back after a power cut is removed again. Raises: `disk-*`."""
    for name in generations:
        disk.unlink(f"{_folder(layout)}/{name}")


def _parse(disk: Disk, path: str) -> Lease:
    raw = _read(disk, path) or b""
    match = _LEASE.fullmatch(raw.decode("ascii", "replace"))
    if match is None:
        raise Refused("state-malformed", "a lease can't be read", got=raw[:80], where=path)
    trees = frozenset(ObjectId(bytes.fromhex(line)) for line in match[2].splitlines())
    return Lease(since=int(match[1]), trees=trees)


def _lasts(
    disk: Disk, path: str, chain: ReceiptChain, generation: str, trees: frozenset[ObjectId]
) -> bool:
    if _read(disk, path) is None:
        return False
    try:
        lease = _parse(disk, path)
        receipts = chain.since(lease.since)
    except Refused:
        # What can't be read is taken anew.
        return False
    return lease.trees == trees and not leases_over({generation: lease}, receipts)


def _read(disk: Disk, path: str) -> bytes | None:
    try:
        return disk.read(path, _SIZE_BYTES_MAX)
    except FileNotFoundError:
        return None


def _folder(layout: Layout) -> str:
    return f"{layout.state}/leases"
