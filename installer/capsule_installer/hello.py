"""`capsule hello`: who and how this host is, with a nonce that binds an order to this moment.

It changes nothing but the memory of that nonce, so it needs no lock and may be asked at any time.
"""

import re
from typing import Final

import click

from capsule_installer import __version__
from capsule_installer.disk import FileKind
from capsule_installer.host import Host
from capsule_installer.identity import load_node_key
from capsule_installer.runtime import running_runtime
from capsule_installer.services.choice import manager_name
from capsule_manifest.canonical import JsonValue
from capsule_manifest.digest import sha256_text
from capsule_manifest.keys import b64encode

__all__ = ["WIRE_VERSION", "command", "hello"]

WIRE_VERSION: Final = 1
_LISTING: Final = re.compile(r"[0-9a-f]{64}")


@click.command(name="hello", epilog="Example: capsule hello")
@click.pass_obj
def command(host: Host) -> None:
    """Say who and how this host is, as one record."""
    host.prepare()
    host.reporter.record("hello", hello(host))


def hello(host: Host) -> dict[str, JsonValue]:
    """Return the fields of a hello and remember its nonce.

    Raises:
        Refused: `state-malformed`, `node-key-exposed`, `document-*`.
        Failed: `disk-*`.
    """
    disk, layout, state = host.disk, host.layout, host.state
    nonce, boot_id, boot_ms = host.machine.nonce(), host.clock.boot_id(), host.clock.boot_ms()
    state.remember_nonce(nonce, boot_id=boot_id, boot_ms=boot_ms)
    signer = load_node_key(disk, layout)
    enrolment = state.enrolment()
    policy, route = state.policy_bytes(), state.route_envelope()
    facts = host.machine.facts()
    free_bytes, free_inodes = disk.free(layout.opt)
    return {
        "wire": WIRE_VERSION,
        "installer": __version__,
        "runtime": running_runtime(layout),
        "node": None if enrolment is None else enrolment.node,
        "node_key": None if signer is None else b64encode(signer.public.spki),
        "machine": facts.machine,
        "glibc": facts.glibc,
        "pythons": dict(facts.pythons),
        "free_bytes": free_bytes,
        "free_inodes": free_inodes,
        "mount_noexec": host.machine.is_noexec(layout.opt),
        "boot_id": boot_id,
        "boot_ms": boot_ms,
        "nonce": nonce,
        "fence": state.fence(),
        "counter_floor": state.counter_floor(),
        "policy": None if policy is None else sha256_text(policy),
        "route": None if route is None else route.digest,
        "staged": state.staged_generations(),
        "trees": [f"blake3:{name}" for name in disk.list(layout.trees) if _LISTING.fullmatch(name)],
        "current": state.generation_of(layout.current),
        "previous": state.generation_of(layout.previous),
        "open_op": state.open_op(),
        "hold": state.is_held(),
        "guard_levels": ["L0"],
        "service_manager": manager_name(disk, layout),
        "partial_bytes": _partial_bytes(host),
    }


def _partial_bytes(host: Host) -> int:
    folder = host.layout.incoming
    found = (host.disk.stat(f"{folder}/{name}") for name in host.disk.list(folder))
    return sum(item.size_bytes for item in found if item and item.kind is FileKind.FILE)
