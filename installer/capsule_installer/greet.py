"""Who and how this host is, and the short way to the delivery that follows.

A hello changes nothing but the memory of its nonce, so it needs no lock and may be asked at any
time. Staging asks for it at the head of its one stream, and waits for nothing else then: it is said
before what a delivery needs is imported, and `launch.py` comes here past the command line.
"""

import re
import sys
from contextlib import suppress
from fcntl import F_SETPIPE_SZ, fcntl
from typing import TYPE_CHECKING, Final, cast

from capsule_installer import __version__
from capsule_installer.edge import exit_code_of
from capsule_installer.guard.facts import host_levels
from capsule_installer.host.host import Host
from capsule_installer.host.identity import load_node_key
from capsule_installer.host.layout import make_layout
from capsule_installer.services.choice import manager_name
from capsule_installer.staging.runtime import running_runtime
from capsule_installer.system.clock import BootClock
from capsule_installer.system.disk import FileKind, RealDisk
from capsule_installer.system.facts import RealMachine
from capsule_installer.system.report import standard_reporter
from capsule_manifest.canonical import JsonValue
from capsule_manifest.digest import sha256_text
from capsule_manifest.keys import b64encode

if TYPE_CHECKING:
    from io import BufferedReader

__all__ = ["WIRE_VERSION", "answer", "hello", "take_delivery"]

WIRE_VERSION: Final = 1
_PIPE_BYTES: Final = 1024 * 1024
_LISTING: Final = re.compile(r"[0-9a-f]{64}")


def answer(root: str) -> int:
    """Greet, take a delivery and return the exit code. The process edge of the short way."""
    reporter = standard_reporter()
    host = Host(
        disk=RealDisk(),
        layout=make_layout(root),
        clock=BootClock(),
        machine=RealMachine(),
        reporter=reporter,
    )
    return exit_code_of(reporter, lambda: take_delivery(host, greets=True))


def take_delivery(host: Host, *, greets: bool) -> None:
    """Stage what comes on standard input; with `greets`, say a hello first.

    After a hello the stream may end: there is something to do first, and the caller comes again.

    Raises: as `receive_stream`.
    """
    stream = cast("BufferedReader", sys.stdin.buffer)
    with suppress(OSError):
        # As wide as a pipe may be, if it is one: both ends then wait for each other less often.
        fcntl(stream, F_SETPIPE_SZ, _PIPE_BYTES)
    host.prepare()
    if greets:
        host.reporter.record("hello", hello(host))
    from capsule_installer.staging.receive import receive_stream

    # Nobody is kept out by a controller that connected and says nothing.
    if stream.peek(1) or not greets:
        receive_stream(host, stream.read)


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
        "guard_levels": list(host_levels(layout, host.clock)),
        "service_manager": manager_name(disk, layout),
        "partial_bytes": _partial_bytes(host),
    }


def _partial_bytes(host: Host) -> int:
    folder = host.layout.incoming
    found = (host.disk.stat(f"{folder}/{name}") for name in host.disk.list(folder))
    return sum(item.size_bytes for item in found if item and item.kind is FileKind.FILE)
