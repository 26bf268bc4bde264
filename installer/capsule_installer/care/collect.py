"""Remove what no generation needs any more: never what runs, is current, or may be returned to.

`plan_collection` is pure and says what stays and why. The removal goes from names that promise
content to the content: a stopped run leaves only things that the next run removes.

Kept: the current and previous generation; those of the op that holds the host; those that are
leased, being staged or staged and not yet ordered; the newest staged; pinned ones (a file of that
name below `state/pins`); those that a process still uses; and the newest that failed, for whoever
looks into why.

It holds the host's lock, so it waits for a staging and never runs between barrier and outcome; an
op that is about to begin makes it give way.

Source: design, section 9; ADR 0248.
"""

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

import click

from capsule_installer.care.in_use import folders_in_use
from capsule_installer.host.host import Host
from capsule_installer.host.leases import FAILED, drop_leases, leases_over, read_leases
from capsule_installer.op.effects import Effects
from capsule_installer.op.hold import hold_reason
from capsule_installer.op.op_folder import OpFile, list_ops
from capsule_installer.op.real import real_effects
from capsule_installer.op.settle import require_quiet
from capsule_installer.op.supervisor import await_lock
from capsule_installer.staging.present import LISTED
from capsule_installer.staging.runtime import running_runtime, runtime_name
from capsule_installer.system.fsops import remove_tree
from capsule_manifest.canonical import JsonValue
from capsule_manifest.digest import ObjectId
from capsule_manifest.errors import ExitCode
from capsule_manifest.records import Marker, Receipt
from capsule_manifest.tree import DEFAULT_TREE_LIMITS, decode_tree

__all__ = ["OPS_KEPT", "Collection", "Roots", "collect", "command", "plan_collection"]

OPS_KEPT: Final = 32
"""How many finished ops keep their folder, to answer a repeated order."""
_REMOVED: Final = ".removed-"
_LAUNCHER_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """What a run removes. `kept` maps each generation that stays to the reason.

    `runtimes` are versions of this program that nothing needs, `leases` those that are over.
    """

    kept: Mapping[str, str]
    generations: tuple[str, ...]
    listings: tuple[ObjectId, ...]
    objects: tuple[str, ...]
    ops: tuple[str, ...]
    runtimes: tuple[str, ...]
    leases: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """What needs generations, by name. `markers` are those of staged ones, `leased` still last."""

    markers: Mapping[str, Marker]
    current: str
    previous: str
    held: AbstractSet[str]
    leased: AbstractSet[str]
    pinned: AbstractSet[str]
    running: AbstractSet[str]
    failed: str


def plan_collection(
    generations: Iterable[str], roots: Roots, *, drop_staged: bool = False
) -> dict[str, str]:
    """Return each generation that stays with the reason; all others go.

    With `drop_staged` nothing stays for being staged alone.
    """
    markers = roots.markers
    counters = {name: marker.release_counter for name, marker in markers.items()}
    newest = max(counters, key=counters.__getitem__, default="")
    reasons: list[tuple[AbstractSet[str], str]] = [
        ({roots.current}, "current"),
        ({roots.previous}, "previous"),
        (roots.held, "held"),
        (roots.pinned, "pinned"),
        (roots.running, "in use by a process"),
        ({roots.failed}, "newest that failed"),
    ]
    if not drop_staged:
        reasons[3:3] = [
            (roots.leased & markers.keys(), "staged and not yet ordered"),
            (roots.leased - markers.keys(), "being staged"),
            ({newest}, "newest staged"),
        ]
    kept: dict[str, str] = {}
    for name in generations:
        for names, reason in reasons:
            if name in names:
                kept[name] = reason
                break
    return kept


def collect(effects: Effects, *, dry_run: bool, drop_staged: bool = False) -> Collection:
    """Remove what is not needed, or only say what would be.

    With `drop_staged` also what is staged, half or whole, and neither installed nor to be returned
    to: an operator's word that it will not be ordered.

    Raises:
        Failed: `host-busy`, `op-open`, `disk-*`.
        Refused: `state-malformed`, `tree-*` for a listing that can't be read: nothing is removed.
    """
    lock = await_lock(effects)
    try:
        require_quiet(effects)
        collection = _plan(effects, drop_staged=drop_staged)
        if not dry_run:
            _remove(effects, collection)
            effects.chain.append(_receipt(effects, collection))
        return collection
    finally:
        lock.release()


@click.command(name="gc", epilog="Example: capsule gc --dry-run")
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and remove nothing.")
@click.option("--drop-staged", is_flag=True, help="Also remove what is staged, not installed.")
@click.option("--json", "as_json", is_flag=True, help="Answer in one framed record.")
@click.pass_obj
def command(host: Host, *, dry_run: bool, drop_staged: bool, as_json: bool) -> int:
    """Remove generations and objects that nothing needs."""
    host.prepare()
    effects = real_effects(host.disk, host.layout)
    free_bytes, _ = host.disk.free(host.layout.opt)
    collection = collect(effects, dry_run=dry_run, drop_staged=drop_staged)
    fields: dict[str, JsonValue] = {
        "dry_run": dry_run,
        "kept": dict(collection.kept),
        "generations": list(collection.generations),
        "objects": len(collection.objects),
        "listings": len(collection.listings),
        "ops": len(collection.ops),
        "runtimes": list(collection.runtimes),
        "freed_bytes": max(0, host.disk.free(host.layout.opt)[0] - free_bytes),
    }
    if as_json:
        host.reporter.record("collected", fields)
        return int(ExitCode.DONE)
    for name, reason in collection.kept.items():
        host.reporter.text(f"keep    {name}: {reason}")
    verb = "would remove" if dry_run else "removed"
    for name in collection.generations:
        host.reporter.text(f"{verb} {name}")
    host.reporter.text(f"{verb} {len(collection.objects)} objects")
    return int(ExitCode.DONE)


def _plan(effects: Effects, *, drop_staged: bool) -> Collection:
    layout, disk, state = effects.layout, effects.disk, effects.state
    markers = _markers(effects)
    leases = read_leases(disk, layout)
    receipts = [item.receipt for item in effects.chain.read_all()]
    over = set(leases) if drop_staged else leases_over(leases, receipts)
    lasting = {name: leases[name] for name in leases.keys() - over}
    generations = sorted(set(disk.list(layout.generations)) | set(markers))
    folders = {name: layout.generation(name) for name in generations}
    roots = Roots(
        markers=markers,
        current=state.generation_of(layout.current),
        previous=state.generation_of(layout.previous),
        held=_held(effects),
        leased=lasting.keys(),
        pinned=_pinned(effects),
        running=folders_in_use(effects.processes, folders),
        failed=_last_failed(receipts),
    )
    kept = plan_collection(generations, roots, drop_staged=drop_staged)
    promised = [markers[name] for name in kept if name in markers]
    wanted = {root for marker in promised for root in marker.trees.values()}
    # Listings of what this host compiled: a generation without them is not as it was sealed.
    wanted |= {marker.derived[key] for marker in promised for key in LISTED & marker.derived.keys()}
    # What a staging has brought, or found here, no marker speaks of yet.
    wanted |= {tree for lease in lasting.values() for tree in lease.trees}
    held = {ObjectId(bytes.fromhex(name)) for name in _plain(disk.list(layout.trees))}
    needed = _objects_of(effects, wanted & held)
    return Collection(
        kept=kept,
        generations=tuple(name for name in generations if name not in kept),
        listings=tuple(sorted(held - wanted)),
        objects=tuple(path for path, name in _stored(effects) if name not in needed),
        ops=_old_ops(effects, receipts),
        runtimes=_old_runtimes(effects, wanted),
        leases=tuple(sorted(over)),
    )


def _remove(effects: Effects, collection: Collection) -> None:
    disk, layout = effects.disk, effects.layout
    for name in collection.generations:
        if disk.stat(layout.marker(name)) is not None:
            disk.unlink(layout.marker(name))
    if collection.generations:
        # A marker that came back would promise a generation that is gone.
        disk.fsync_dir(layout.staged, "removed markers")
    for name in collection.generations:
        remove_tree(disk, layout.generation(name))
    for root in collection.listings:
        disk.unlink(layout.listing(root))
    for path in collection.objects:
        disk.unlink(path)
    for name in collection.runtimes:
        remove_tree(disk, f"{layout.runtimes}/{name}")
    drop_leases(disk, layout, collection.leases)
    for op_id in collection.ops:
        # First out of sight as a whole: half an op would look like an open one.
        disk.rename(layout.op(op_id), f"{layout.ops}/{_REMOVED}{op_id}")
    removed = [name for name in disk.list(layout.ops) if name.startswith(_REMOVED)]
    if removed:
        # Also for what a collection left that was stopped before this.
        disk.fsync_dir(layout.ops, "removed ops' names")
    for name in removed:
        remove_tree(disk, f"{layout.ops}/{name}")
    # Last, because an engine may fail: what it keeps for nobody is found again by the next run.
    effects.images.forget(set(collection.kept))


def _markers(effects: Effects) -> dict[str, Marker]:
    markers = {}
    for name in effects.state.staged_generations():
        marker = effects.state.staged_marker(name, effects.signer.public)
        if marker is not None:
            markers[name] = marker
    return markers


def _pinned(effects: Effects) -> set[str]:
    try:
        return set(effects.disk.list(f"{effects.layout.state}/pins"))
    except FileNotFoundError:
        return set()


def _held(effects: Effects) -> set[str]:
    """Return both generations of the op that holds the host."""
    reason = hold_reason(effects.disk, effects.layout) or ""
    found: set[str] = set()
    for op in list_ops(effects.disk, effects.layout):
        if reason == f"op {op.op_id}" and op.has(OpFile.SUMMARY):
            summary = op.summary()
            found |= {summary.source, summary.target}
    return found


def _old_runtimes(effects: Effects, wanted: AbstractSet[ObjectId]) -> tuple[str, ...]:
    """Return the runtimes that no kept or coming release, no launcher and no process needs."""
    disk, layout = effects.disk, effects.layout
    names = _plain(disk.list(layout.runtimes))
    needed = {runtime_name(tree) for tree in wanted} | {running_runtime(layout)}
    try:
        launcher = disk.read(layout.launcher, _LAUNCHER_BYTES_MAX).decode("utf-8", "replace")
    except FileNotFoundError:
        # Without a launcher nobody knows which runtime the next start takes.
        return ()
    folders = {name: f"{layout.runtimes}/{name}" for name in names}
    needed |= folders_in_use(effects.processes, folders)
    return tuple(name for name in names if name not in needed and name not in launcher)


def _last_failed(receipts: Iterable[Receipt]) -> str:
    failed = [receipt.target for receipt in receipts if receipt.result in FAILED]
    return failed[-1] if failed else ""


def _objects_of(effects: Effects, roots: Iterable[ObjectId]) -> set[str]:
    needed = set()
    for root in roots:
        raw = effects.disk.read(effects.layout.listing(root), DEFAULT_TREE_LIMITS.size_bytes_max)
        for entry in decode_tree(raw, root=root).entries:
            if entry.object is not None:
                needed.add(entry.object.hex())
    return needed


def _stored(effects: Effects) -> list[tuple[str, str]]:
    """Return the path and digest of every object in the store."""
    disk, store = effects.disk, effects.layout.store
    return [
        (f"{store}/{folder}/{name}", name.removesuffix(".x"))
        for folder in _plain(disk.list(store))
        for name in _plain(disk.list(f"{store}/{folder}"))
    ]


def _old_ops(effects: Effects, receipts: Iterable[Receipt]) -> tuple[str, ...]:
    finished = {
        op.op_id for op in list_ops(effects.disk, effects.layout) if op.has(OpFile.RECEIPTED)
    }
    ordered = [receipt.op_id for receipt in receipts if receipt.op_id in finished]
    kept = set(ordered[-OPS_KEPT:])
    return tuple(sorted(finished - kept))


def _plain(names: Iterable[str]) -> list[str]:
    # A name that begins with a dot is what a stopped write left; staging removes it.
    return [name for name in names if not name.startswith(".")]


def _receipt(effects: Effects, collection: Collection) -> Callable[[int, str | None], Receipt]:
    current = effects.state.generation_of(effects.layout.current)

    def build(sequence: int, previous: str | None) -> Receipt:
        return Receipt(
            sequence=sequence,
            previous=previous,
            kind="gc",
            node=effects.node,
            node_key=effects.signer.public.keyid,
            op_id="",
            epoch="",
            fence=effects.state.fence(),
            route="",
            capsule="",
            source=current,
            target=current,
            result="done",
            reason="",
            guard="",
            counts={
                "generations": len(collection.generations),
                "listings": len(collection.listings),
                "objects": len(collection.objects),
                "ops": len(collection.ops),
            },
            details={"removed": " ".join(collection.generations)},
        )

    return build
