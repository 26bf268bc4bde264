"""`capsule repair`: write the installed marker anew, if everything else proves its exact value.

What agrees is checked here, under the host's lock and the controller's fence, and never believed
from the request: the link, the generation's own manifest, its signed stage marker, the receipt that
committed it, unit files, managed files, and the running processes. The marker is published under a
name that must still be free. Whoever changes the host without capsule heeds no lock, so everything
is compared once more behind the marker, which goes again if something changed meanwhile. Then the
chain gets a receipt. Whatever is missing is named.

Source: design, section 9 ("`node repair`").
"""

import sys
from collections.abc import Iterator
from dataclasses import replace

import click

from capsule_installer.host.host import Host
from capsule_installer.op.effects import Effects
from capsule_installer.op.hold import hold_reason
from capsule_installer.op.installed import Installation, installed_marker_path, load_generation
from capsule_installer.op.managed_files import difference
from capsule_installer.op.prepare import wanted_file
from capsule_installer.op.real import real_effects
from capsule_installer.op.settle import require_no_open_op
from capsule_installer.op.supervisor import await_lock
from capsule_installer.system.disk import FileKind, FileStat
from capsule_installer.system.fsops import publish_once
from capsule_manifest.canonical import JsonValue
from capsule_manifest.envelope import RECORD_LIMITS, Envelope, decode_record, encode_record, sign
from capsule_manifest.errors import CapsuleError, Refused
from capsule_manifest.keys import b64encode
from capsule_manifest.records import (
    MARKER_TYPE,
    Marker,
    Receipt,
    decode_marker,
    encode_marker,
    guard_text,
)
from capsule_manifest.repairs import Repair
from capsule_manifest.trust_orders import verify_repair

__all__ = ["command", "repair_marker"]

_SIZE_BYTES_MAX = 16 * 1024 * 1024
_RECENT = 1000
_OTHERS = 0o077
_CHANGES = frozenset({"committed", "restored", "restored-absent", "restore-failed"})


@click.command(name="repair", epilog="Example: capsule repair < repair.json")
@click.pass_obj
def command(host: Host) -> None:
    """Carry out the signed repair on standard input, or say what evidence is missing."""
    host.prepare()
    effects = real_effects(host.disk, host.layout)
    raw = sys.stdin.buffer.read(RECORD_LIMITS.size_bytes_max + 1)
    host.reporter.record("repaired", repair_marker(effects, decode_record(raw, where="repair")))


def repair_marker(effects: Effects, envelope: Envelope) -> dict[str, JsonValue]:
    """Write the marker and return the receipt; repeating a repair returns the same.

    Raises:
        Refused: `repair-refused` with the first evidence that is missing; `order-wrong-node`,
            `order-fenced`, and whatever `verify_repair` raises.
        Failed: `host-busy`, `op-open`, `disk-*`.
    """
    policy = effects.state.policy()
    route = effects.state.route(policy)
    if route is None:
        raise Refused("order-wrong-route", "the host has no route yet")
    repair = verify_repair(policy, route, envelope)
    named = (effects.node, effects.signer.public.keyid)
    if (repair.node, repair.node_key) != named:
        raise Refused(
            "order-wrong-node", "a repair is for another node", expected=" ".join(named),
            got=f"{repair.node} {repair.node_key}",
        )  # fmt: skip
    lock = await_lock(effects)
    try:
        require_no_open_op(effects)
        effects.state.raise_fence(repair.fence)
        receipt = _find_done(effects, repair) or _repair(effects, repair)
    finally:
        lock.release()
    return {"op_id": repair.op_id, "receipt": b64encode(encode_record(receipt))}


def _find_done(effects: Effects, repair: Repair) -> Envelope | None:
    found = effects.chain.find_last(
        lambda item: (item.op_id, item.kind) == (repair.op_id, "repair"), among=_RECENT
    )
    if found is None:
        return None
    # Whoever wrote it may have been stopped before its fsync, and the answer names it.
    effects.chain.keep()
    return found.envelope


def _repair(effects: Effects, repair: Repair) -> Envelope:
    path = installed_marker_path(effects.layout)
    receipt, staged = _prove(effects, repair)
    marker = replace(
        staged,
        kind="installed",
        previous=receipt.source,
        route=receipt.route,
        fence=receipt.fence,
        op_id=receipt.op_id,
    )
    signed = sign(encode_marker(marker), payload_type=MARKER_TYPE, signer=effects.signer)
    published = publish_once(effects.disk, path, encode_record(signed), 0o600)
    if not published and not _is_same(effects, path, marker):
        raise _missing("the installed marker", "none", "a file that is not this repair's own")
    try:
        _prove(effects, repair)
    except (CapsuleError, OSError):
        if published:
            _withdraw(effects, receipt)
        raise
    return effects.chain.append(
        lambda sequence, previous: _repair_receipt(effects, repair, receipt, sequence, previous)
    )


def _prove(effects: Effects, repair: Repair) -> tuple[Receipt, Marker]:
    """Return the receipt and the stage marker that the marker follows from, all else agreeing.

    Raises:
        Refused: `repair-refused` with the first surface that does not agree.
    """
    receipt = _receipt(effects, repair)
    staged = _staged(effects, repair)
    installation = _installation(effects, staged)
    for surface, expected, got in _differences(effects, installation, repair, receipt):
        raise _missing(surface, expected, got)
    return receipt, staged


def _withdraw(effects: Effects, receipt: Receipt) -> None:
    # What took its place is not ours to remove. Not made durable: a marker that comes back has
    # no receipt of its repair, and is compared with everything else by whoever reads it.
    if _is_own(effects, receipt):
        effects.disk.unlink(installed_marker_path(effects.layout))


def _receipt(effects: Effects, repair: Repair) -> Receipt:
    found = effects.chain.find_last(lambda item: item.result in _CHANGES, among=_RECENT)
    got = found.receipt if found else None
    expected = (repair.installed_by, "committed", repair.generation, repair.capsule)
    if got is None or (got.op_id, got.result, got.target, got.capsule) != expected:
        said = f"{got.op_id} {got.result} {got.target}" if got else "none"
        raise _missing("the last receipt", " ".join(expected[:3]), said)
    return got


def _staged(effects: Effects, repair: Repair) -> Marker:
    staged = effects.state.staged_marker(repair.generation, effects.signer.public)
    if staged is None or staged.capsule != repair.capsule:
        raise _missing(
            "the signed stage marker", repair.capsule, staged.capsule if staged else "none"
        )
    return staged


def _installation(effects: Effects, staged: Marker) -> Installation:
    """Return the generation; its manifest is compared with the marker while it is read."""
    route = effects.state.route(effects.state.policy())
    node = None if route is None else route.route.nodes.get(effects.node)
    if node is None:
        raise _missing("the route", f"the node {effects.node}", "no such node")
    try:
        return load_generation(
            effects.disk, effects.layout, staged, node=effects.node, route_node=node
        )
    except (CapsuleError, OSError) as error:
        raise _missing("the generation", "its own signed manifest", error) from error


def _differences(
    effects: Effects, installation: Installation, repair: Repair, receipt: Receipt
) -> Iterator[tuple[str, object, object]]:
    """Yield (surface, expected, got) of everything that does not prove the marker."""
    layout, state, disk = effects.layout, effects.state, effects.disk
    links = (state.generation_of(layout.current), state.generation_of(layout.previous))
    if links != (repair.generation, receipt.source):
        yield "the links", f"{repair.generation} and {receipt.source}", " and ".join(links)
    found = disk.stat(installed_marker_path(layout))
    if found is not None and not (_is_private(effects, found) and _is_own(effects, receipt)):
        yield "the installed marker", "none", f"a {found.kind} with mode {found.mode:#o}"
    hold = hold_reason(disk, layout)
    if hold is not None:
        yield "the hold", "none", hold
    for file in installation.files:
        wanted = wanted_file(effects, file)
        got = difference(effects.disk, wanted)
        if got:
            yield f"the managed file {file.target}", wanted.text, got
    for name, text in installation.units.items():
        if _read(effects, f"{layout.units}/{name}") != text.encode():
            yield f"the unit file {name}", "the generation's", "another"
        if name.endswith(".service"):
            yield from _process_differences(effects, installation, name)


def _process_differences(
    effects: Effects, installation: Installation, name: str
) -> Iterator[tuple[str, object, object]]:
    state = effects.services.state(name)
    facts = effects.processes.facts(state.pid) if state.active and state.pid else None
    environment = {} if facts is None else facts.environment
    expected = (installation.marker.generation, installation.commit)
    got = (environment.get("CAPSULE_GENERATION"), environment.get("CAPSULE_COMMIT"))
    if got != expected:
        yield f"the process of {name}", " ".join(expected), got if facts else "not running"


def _is_private(effects: Effects, found: FileStat) -> bool:
    folder = effects.disk.stat(effects.layout.state)
    return (
        found.kind is FileKind.FILE
        and not found.mode & _OTHERS
        and found.links == 1
        and folder is not None
        and found.uid == folder.uid
    )


def _is_own(effects: Effects, receipt: Receipt) -> bool:
    """Say whether the marker is what a repair wrote that was stopped before its receipt."""
    raw = _read(effects, installed_marker_path(effects.layout))
    if raw is None:
        return False
    try:
        payload = decode_record(raw, where="marker").verify(
            effects.signer.public, payload_type=MARKER_TYPE, where="marker"
        )
        return decode_marker(payload).op_id == receipt.op_id
    except CapsuleError:
        return False


def _is_same(effects: Effects, path: str, marker: Marker) -> bool:
    raw = _read(effects, path)
    try:
        return raw is not None and decode_record(raw, where=path).payload == encode_marker(marker)
    except CapsuleError:
        return False


def _read(effects: Effects, path: str) -> bytes | None:
    try:
        return effects.disk.read(path, _SIZE_BYTES_MAX)
    except OSError:
        return None


def _repair_receipt(
    effects: Effects, repair: Repair, installed: Receipt, sequence: int, previous: str | None
) -> Receipt:
    return Receipt(
        sequence=sequence,
        previous=previous,
        kind="repair",
        node=effects.node,
        node_key=effects.signer.public.keyid,
        op_id=repair.op_id,
        epoch="",
        fence=repair.fence,
        route=repair.route,
        capsule=repair.capsule,
        source=repair.generation,
        target=repair.generation,
        result="done",
        reason="the installed marker was missing; all evidence agreed",
        guard=guard_text("L0"),
        details={"installed_by": installed.op_id},
    )


def _missing(surface: str, expected: object, got: object) -> Refused:
    return Refused(
        "repair-refused", "the evidence does not prove the marker", expected=expected, got=got,
        where=surface,
    )  # fmt: skip
