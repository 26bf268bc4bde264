"""Remove what no generation needs any more: never what runs, is current, or may be returned to.

`plan_collection` is pure and says what stays and why. The removal goes from names that promise
content to the content: a stopped run leaves only things that the next run removes.

Kept: the current and previous generation, the newest staged one, pinned ones (a file of that name
below `state/pins`), those that a process still uses, and the newest that failed, for whoever looks
into why.
"""

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

import click

from capsule_installer.effects import Effects
from capsule_installer.fsops import remove_tree
from capsule_installer.host import Host
from capsule_installer.op_folder import OpFile, list_ops
from capsule_installer.present import LISTED
from capsule_installer.real import real_effects
from capsule_installer.settle import require_no_open_op
from capsule_installer.supervisor import await_lock
from capsule_manifest.canonical import JsonValue
from capsule_manifest.digest import ObjectId
from capsule_manifest.errors import ExitCode
from capsule_manifest.records import Marker, Receipt
from capsule_manifest.tree import DEFAULT_TREE_LIMITS, decode_tree

__all__ = ["OPS_KEPT", "Collection", "collect", "command", "plan_collection"]

OPS_KEPT: Final = 32
"""How many finished ops keep their folder, to answer a repeated order."""
_REMOVED: Final = ".removed-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """What a run removes. `kept` maps each generation that stays to the reason."""

    kept: Mapping[str, str]
    generations: tuple[str, ...]
    listings: tuple[ObjectId, ...]
    objects: tuple[str, ...]
    ops: tuple[str, ...]


def plan_collection(
    *,
    generations: Iterable[str],
    markers: Mapping[str, Marker],
    current: str,
    previous: str,
    pinned: AbstractSet[str],
    running: AbstractSet[str],
    failed: str,
) -> dict[str, str]:
    """Return each generation that stays with the reason; all others go."""
    newest = max(markers, key=lambda name: markers[name].release_counter, default="")
    reasons = [
        ({current}, "current"),
        ({previous}, "previous"),
        ({newest}, "newest staged"),
        (pinned, "pinned"),
        (running, "in use by a process"),
        ({failed}, "newest that failed"),
    ]
    kept: dict[str, str] = {}
    for name in generations:
        for names, reason in reasons:
            if name in names:
                kept[name] = reason
                break
    return kept


def collect(effects: Effects, *, dry_run: bool) -> Collection:
    """Remove what is not needed, or only say what would be.

    Raises:
        Failed: `host-busy`, `op-open`, `disk-*`.
        Refused: `state-malformed`, `tree-*` for a listing that can't be read: nothing is removed.
    """
    lock = await_lock(effects)
    try:
        require_no_open_op(effects)
        collection = _plan(effects)
        if not dry_run:
            _remove(effects, collection)
            effects.chain.append(_receipt(effects, collection))
        return collection
    finally:
        lock.release()


@click.command(name="gc", epilog="Example: capsule gc --dry-run")
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and remove nothing.")
@click.option("--json", "as_json", is_flag=True, help="Answer in one framed record.")
@click.pass_obj
def command(host: Host, *, dry_run: bool, as_json: bool) -> int:
    """Remove generations and objects that nothing needs."""
    host.prepare()
    collection = collect(real_effects(host.disk, host.layout), dry_run=dry_run)
    fields: dict[str, JsonValue] = {
        "dry_run": dry_run,
        "kept": dict(collection.kept),
        "generations": list(collection.generations),
        "objects": len(collection.objects),
        "listings": len(collection.listings),
        "ops": len(collection.ops),
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


def _plan(effects: Effects) -> Collection:
    layout, disk, state = effects.layout, effects.disk, effects.state
    markers = _markers(effects)
    generations = sorted(set(disk.list(layout.generations)) | set(markers))
    kept = plan_collection(
        generations=generations,
        markers=markers,
        current=state.generation_of(layout.current),
        previous=state.generation_of(layout.previous),
        pinned=_pinned(effects),
        running=_running(effects, generations),
        failed=_last_failed(effects),
    )
    promised = [markers[name] for name in kept if name in markers]
    wanted = {root for marker in promised for root in marker.trees.values()}
    # Listings of what this host compiled: a generation without them is not as it was sealed.
    wanted |= {marker.derived[key] for marker in promised for key in LISTED & marker.derived.keys()}
    held = {ObjectId(bytes.fromhex(name)) for name in _plain(disk.list(layout.trees))}
    needed = _objects_of(effects, wanted & held)
    return Collection(
        kept=kept,
        generations=tuple(name for name in generations if name not in kept),
        listings=tuple(sorted(held - wanted)),
        objects=tuple(path for path, name in _stored(effects) if name not in needed),
        ops=_old_ops(effects),
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


def _running(effects: Effects, generations: Iterable[str]) -> set[str]:
    folders = {f"{effects.layout.generation(name)}/": name for name in generations}
    used = set()
    for pid in effects.processes.all_pids():
        facts = effects.processes.facts(pid)
        if facts is None:
            continue
        seen = [f"{facts.cwd}/", *facts.arguments, *facts.files]
        used |= {
            name
            for folder, name in folders.items()
            if any(folder in text for text in seen)
        }  # fmt: skip
    return used


def _last_failed(effects: Effects) -> str:
    found = effects.chain.find_last(
        lambda receipt: receipt.result in {"restored", "restored-absent", "restore-failed"},
        among=100,
    )
    return found.receipt.target if found else ""


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


def _old_ops(effects: Effects) -> tuple[str, ...]:
    finished = {
        op.op_id for op in list_ops(effects.disk, effects.layout) if op.has(OpFile.RECEIPTED)
    }
    recent = [item.receipt.op_id for item in effects.chain.read_all()]
    ordered = [op_id for op_id in recent if op_id in finished]
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
