"""`capsule receive`: the wire side of staging. One stream in, a want and the result out.

The stream is read once; nothing is kept in memory but the metadata and one frame.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from capsule_installer.host.host import Host
from capsule_installer.host.identity import require_node_key
from capsule_installer.op.op_folder import list_ops
from capsule_installer.services.base import ServiceManager
from capsule_installer.services.choice import make_services
from capsule_installer.staging.frames import OpenFrame
from capsule_installer.staging.incoming import read_delivery
from capsule_installer.staging.stage import Stage
from capsule_installer.staging.venv import Python, RealPython
from capsule_installer.system.ahead import Ahead
from capsule_installer.system.processes import Processes, RealProcesses
from capsule_manifest.envelope import Envelope, encode_record
from capsule_manifest.errors import CapsuleError, Refused
from capsule_manifest.keys import b64encode
from capsule_manifest.wire import Message, MessageType, read_messages

if TYPE_CHECKING:
    from capsule_installer.engines.base import Images

__all__ = ["receive", "receive_stream"]

_PROGRESS_MS: Final = 250


def receive_stream(host: Host, read_exactly: Callable[[int], bytes]) -> None:
    """Become the only program that changes this host, and stage what comes.

    Raises:
        Failed: `host-busy`, `op-open`.
        Refused, Failed: whatever `receive` raises.
    """
    processes = RealProcesses()
    services = make_services(host.disk, host.layout, processes)
    lock = host.take_lock()
    try:
        # Its receipt would take the number that an open op's receipt was signed with.
        if list_ops(host.disk, host.layout):
            _require_decided_ops(host)
        messages = read_messages(read_exactly)
        receive(
            host,
            messages,
            services=services,
            python=RealPython(processes),
            images=lambda: _images(host, processes),
        )
    finally:
        lock.release()


def receive(
    host: Host,
    messages: Iterator[Message],
    *,
    services: ServiceManager,
    python: Python,
    images: "Callable[[], Images]",
) -> Envelope:
    """Stage what comes and report it; return the receipt. The caller holds the lock.

    Raises:
        Refused, Failed: whatever `read_delivery` and `Stage` raise.
    """
    signer = require_node_key(host.disk, host.layout)
    delivery = read_delivery(host, messages)
    stage = Stage(host, delivery, signer=signer, services=services, python=python, images=images)
    host.reporter.record("want", stage.plan())
    try:
        stage.keep()
        _take_frames(host, messages, stage)
        receipt = stage.finish()
    finally:
        stage.close()
    counts = stage.counts()
    host.reporter.record(
        "staged",
        {
            "generation": delivery.generation,
            "receipt": b64encode(encode_record(receipt)),
            "objects": counts["objects"],
            "content_bytes": counts["content_bytes"],
            "reused_objects": counts["reused_objects"],
            "took_ms": stage.took_ms,
        },
    )
    return receipt


def _images(host: Host, processes: Processes) -> "Images":
    # Only a release whose units run images comes here.
    from capsule_installer.engines.choice import make_images

    return make_images(host.disk, host.layout, processes, host.clock)


def _require_decided_ops(host: Host) -> None:
    # A host that was never installed on needs none of this, which is a good part of a start.
    from capsule_installer.op.real import real_effects
    from capsule_installer.op.settle import require_decided_ops

    require_decided_ops(real_effects(host.disk, host.layout))


def _take_frames(host: Host, messages: Iterator[Message], stage: Stage) -> None:
    told_ms = host.clock.boot_ms()
    for opened in _opened(messages, stage):
        frames, size_bytes = stage.take(opened)
        del opened  # or it would lie in memory while the next one is read
        now_ms = host.clock.boot_ms()
        if now_ms - told_ms >= _PROGRESS_MS:
            told_ms = now_ms
            host.reporter.record("progress", {"frames": frames, "bytes": size_bytes})


def _opened(messages: Iterator[Message], stage: Stage) -> Iterator[OpenFrame]:
    """Yield the frames up to END, each while the one after it is being decoded.

    What is wrong with the stream is raised when everything that came before it was taken.
    """
    before: Ahead[OpenFrame] | None = None
    failure: CapsuleError | None = None
    while True:
        try:
            ahead = _open_next(messages, stage)
        except CapsuleError as error:
            ahead, failure = None, error
        if before is not None:
            yield before.result()
        if ahead is None:
            break
        before = ahead
    if failure is not None:
        raise failure


def _open_next(messages: Iterator[Message], stage: Stage) -> Ahead[OpenFrame] | None:
    message = next(messages)
    if message.type is MessageType.END:
        return None
    if message.type is not MessageType.FRAME:
        raise Refused(
            "wire-malformed",
            "only frames may follow the plan",
            got=message.type.name,
        )
    return stage.open(message.body)
