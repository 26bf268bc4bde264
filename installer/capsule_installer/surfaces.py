"""`capsule identity`: everything that says what this host runs, side by side. Reads only.

Each surface is read on its own and reported as it is, also when it is unsafe or malformed: to judge
whether they agree is the controller's part, and this verb must answer on a host where they don't.
It takes no lock, writes nothing, remembers nothing and makes no folder.

Source: design, section 9 ("Markers and identity"); `docs/reference/identity.md`.
"""

from collections.abc import Callable
from typing import Final, TypeVar

import click

from capsule_installer.clock import wall_ms
from capsule_installer.disk import FileKind, FileStat
from capsule_installer.effects import Effects
from capsule_installer.hold import hold_reason
from capsule_installer.host import Host
from capsule_installer.identity import load_node_key
from capsule_installer.installed import Installation, installed_marker_path, load_generation
from capsule_installer.real import real_effects
from capsule_installer.runtime import running_runtime
from capsule_manifest.canonical import JsonValue
from capsule_manifest.digest import blake3_text, object_id, sha256_text
from capsule_manifest.envelope import decode_record
from capsule_manifest.errors import CapsuleError
from capsule_manifest.keys import b64encode
from capsule_manifest.orders import ABSENT
from capsule_manifest.records import MARKER_TYPE, Marker, decode_marker
from capsule_manifest.release import capsule_id

__all__ = ["RETIRED_SETTINGS", "command", "surfaces"]

RETIRED_SETTINGS: Final = ("MAC_WORKER_DEPLOY_GENERATION", "MAC_WORKER_DEPLOY_BARRIER_FILE")
"""Settings of retired mechanisms: reported where a service still has them, and never obeyed."""

_CHANGES: Final = frozenset({"committed", "restored", "restored-absent", "restore-failed"})
_SIZE_BYTES_MAX: Final = 16 * 1024 * 1024
_WRITABLE_BY_OTHERS: Final = 0o022
_RECENT: Final = 1000

Value = TypeVar("Value")


@click.command(name="identity", epilog="Example: capsule identity")
@click.pass_obj
def command(host: Host) -> None:
    """Say everything that identifies this host and what it runs, as one record."""
    host.reporter.record("identity", surfaces(host))


def surfaces(host: Host) -> dict[str, JsonValue]:
    """Return every surface; one that can't be read says why instead."""
    disk, layout, state = host.disk, host.layout, host.state
    free_bytes, free_inodes = disk.free(layout.opt)
    facts = host.machine.facts()
    found: dict[str, JsonValue] = {
        "installer": running_runtime(layout),
        "machine": facts.machine,
        "glibc": facts.glibc,
        "pythons": dict(facts.pythons),
        "machine_id": _machine_id(host),
        "boot_id": host.clock.boot_id(),
        "boot_ms": host.clock.boot_ms(),
        "wall_ms": wall_ms(),
        "free_bytes": free_bytes,
        "free_inodes": free_inodes,
        "fence": state.fence(),
        "counter_floor": state.counter_floor(),
        "staged": state.staged_generations(),
        "open_op": state.open_op(),
        "hold": hold_reason(disk, layout),
        "guard_levels": ["L0"],
        "current": state.generation_of(layout.current),
        "previous": state.generation_of(layout.previous),
    }
    policy, route = state.policy_bytes(), state.route_envelope()
    found["policy"] = None if policy is None else sha256_text(policy)
    found["route"] = None if route is None else route.digest
    enrolment = state.enrolment()
    signer = load_node_key(disk, layout)
    found["node"] = None if enrolment is None else enrolment.node
    found["node_key"] = None if signer is None else b64encode(signer.public.spki)
    if enrolment is None or signer is None:
        return found | {"marker": {"state": "absent"}, "generation": None, "receipt": None,
                        "units": {}, "files": [], "ignored": []}  # fmt: skip
    return found | _installed(host, real_effects(disk, layout))


def _installed(host: Host, effects: Effects) -> dict[str, JsonValue]:
    marker, said = _marker(host, effects)
    current = effects.state.generation_of(effects.layout.current)
    staged = _tried(lambda: effects.state.staged_marker(current, effects.signer.public))
    found: dict[str, JsonValue] = {
        "marker": said,
        "generation": _generation(effects, current, staged),
        "receipt": _receipt(effects),
        "units": {},
        "files": [],
        "ignored": [],
    }
    known = marker if marker is not None and marker.generation == current else staged
    route = _tried(lambda: effects.state.route(effects.state.policy()))
    node = None if route is None else route.route.nodes.get(effects.node)
    if known is None or node is None:
        return found
    installation = _tried(
        lambda: load_generation(
            effects.disk, effects.layout, known, node=effects.node, route_node=node
        )
    )
    if installation is None:
        return found
    ignored: list[JsonValue] = []
    found["units"] = {
        name: _unit(effects, installation, name, text, ignored)
        for name, text in installation.units.items()
    }
    found["files"] = _changed_files(effects, installation)
    found["ignored"] = ignored
    return found


def _marker(host: Host, effects: Effects) -> tuple[Marker | None, dict[str, JsonValue]]:
    """Return the marker if it is safe and signed, and what is to be said of it."""
    path = installed_marker_path(effects.layout)
    stat = effects.disk.stat(path)
    if stat is None:
        return None, {"state": "absent"}
    unsafe = _unsafe(stat, host.machine.uid())
    if unsafe:
        return None, {"state": "unsafe", "why": unsafe}
    try:
        raw = effects.disk.read(path, _SIZE_BYTES_MAX)
        payload = decode_record(raw, where=path).verify(
            effects.signer.public, payload_type=MARKER_TYPE, where=path
        )
        marker = decode_marker(payload, where=path)
    except (CapsuleError, OSError) as error:
        why = error.error_id if isinstance(error, CapsuleError) else str(error)
        return None, {"state": "invalid", "why": why}
    return marker, {
        "state": "signed",
        "kind": marker.kind,
        "node": marker.node,
        "generation": marker.generation,
        "previous": marker.previous,
        "capsule": marker.capsule,
        "route": marker.route,
        "op_id": marker.op_id,
    }


def _unsafe(stat: FileStat, uid: int) -> str:
    if stat.kind is not FileKind.FILE:
        return f"is a {stat.kind}"
    if stat.uid != uid:
        return f"belongs to user {stat.uid}"
    if stat.mode & _WRITABLE_BY_OTHERS:
        return f"can be written by others, mode {stat.mode:#o}"
    return f"has {stat.links} names" if stat.links > 1 else ""


def _generation(effects: Effects, current: str, staged: Marker | None) -> JsonValue:
    """Return what the current generation's own manifest and its stage marker say."""
    if current == ABSENT:
        return None
    path = f"{effects.layout.generation(current)}/capsule.json"
    manifest = _bytes(effects, path)
    return {
        "manifest": None if manifest is None else capsule_id(manifest),
        "staged": None if staged is None else staged.capsule,
    }


def _receipt(effects: Effects) -> JsonValue:
    """Return the last receipt that says what became current."""
    found = _tried(
        lambda: effects.chain.find_last(lambda item: item.result in _CHANGES, among=_RECENT)
    )
    if found is None:
        return None
    receipt = found.receipt
    current = receipt.target if receipt.result == "committed" else receipt.source
    return {
        "sequence": receipt.sequence,
        "result": receipt.result,
        "current": current,
        "capsule": receipt.capsule if receipt.result == "committed" else None,
        "op_id": receipt.op_id,
    }


def _unit(
    effects: Effects,
    installation: Installation,
    name: str,
    text: str,
    ignored: list[JsonValue],
) -> JsonValue:
    path = f"{effects.layout.units}/{name}"
    raw = _bytes(effects, path)
    state = effects.services.state(name)
    facts = effects.processes.facts(state.pid) if state.pid else None
    environment = {} if facts is None else facts.environment
    ignored += [
        {"unit": name, "setting": setting}
        for setting in RETIRED_SETTINGS
        if setting in environment or f"{setting}=" in text
    ]
    return {
        "fragment": "absent" if raw is None else "same" if raw == text.encode() else "differs",
        "active": state.active,
        "pid": state.pid,
        "invocation_id": state.invocation_id,
        "generation": environment.get("CAPSULE_GENERATION"),
        "commit": environment.get("CAPSULE_COMMIT"),
        "expected_commit": installation.commit,
        "is_service": name.endswith(".service"),
    }


def _changed_files(effects: Effects, installation: Installation) -> list[JsonValue]:
    changed: list[JsonValue] = []
    for file in installation.files:
        raw = _bytes(effects, file.target)
        got = "absent" if raw is None else blake3_text(object_id(raw))
        if got != blake3_text(file.digest):
            changed.append(
                {"target": file.target, "expected": blake3_text(file.digest), "got": got}
            )
    return changed


def _bytes(effects: Effects, path: str) -> bytes | None:
    return _tried(lambda: effects.disk.read(path, _SIZE_BYTES_MAX))


def _machine_id(host: Host) -> str | None:
    raw = _tried(lambda: host.disk.read(host.layout.inside("/etc/machine-id"), 4096))
    return None if raw is None else raw.decode("ascii", "replace").strip()


def _tried(read: Callable[[], Value]) -> Value | None:
    """Return what `read` returns, None where the surface can't be read or is not valid."""
    try:
        return read()
    except (CapsuleError, OSError):
        return None
