"""What the verbs of an op do, without the command line that people reach them by.

A controller's own words come here past it, see `launch.py`: reading a command line takes longer
than most answers.
"""

import sys
from collections.abc import Sequence

from capsule_installer.host.host import Host
from capsule_installer.op.accept import accept_order, start_supervisor
from capsule_installer.op.effects import Effects
from capsule_installer.op.follow import follow_op, op_exit_code, stored_result
from capsule_installer.op.op_folder import OpFolder, Result
from capsule_installer.op.outcome import confirm_op
from capsule_installer.op.real import place_rescue, real_effects
from capsule_installer.op.supervisor import supervise
from capsule_manifest.envelope import RECORD_LIMITS, Envelope, decode_record
from capsule_manifest.errors import ExitCode, Failed

__all__ = [
    "begin_op",
    "confirm_proof",
    "host_effects",
    "supervise_op",
    "take_order",
    "tell_op",
]


def host_effects(host: Host) -> Effects:
    """Return the effects of this host, its folders made and checked.

    Raises: as `Host.prepare` and `real_effects`.
    """
    host.prepare()
    return real_effects(host.disk, host.layout)


def take_order(host: Host, *, follow_ms: int | None = None) -> int:
    """Take the order on standard input and start its supervisor; return the exit code.

    With `follow_ms` tell how the op goes for so long. One that has ended before is answered with
    its result either way.

    Raises: as `accept_order`, `start_supervisor` and `tell_op`.
    """
    effects = host_effects(host)
    op = begin_op(host, effects, _read_record("order"))
    known = stored_result(effects, op)
    if known is not None:
        host.reporter.record("result", known)
        return int(op_exit_code(op, op.result() or Result.REFUSED))
    host.reporter.record("accepted", {"op_id": op.op_id})
    if follow_ms is None:
        return int(ExitCode.DONE)
    return tell_op(host, effects, op.op_id, follow_ms)


def supervise_op(host: Host, op_id: str) -> int:
    """Carry out an accepted op; return the exit code. Raises: as `supervise`."""
    effects = host_effects(host)
    result = supervise(effects, op_id)
    op = OpFolder(disk=effects.disk, layout=effects.layout, op_id=op_id)
    return int(ExitCode.DONE if result is None else op_exit_code(op, result))


def confirm_proof(host: Host) -> int:
    """Commit the op that the confirm on standard input names. Raises: as `confirm_op`."""
    confirmed = confirm_op(host_effects(host), _read_record("confirm"))
    host.reporter.record("confirmed", {"op_id": confirmed.op_id})
    return int(ExitCode.DONE)


def begin_op(host: Host, effects: Effects, envelope: Envelope) -> OpFolder:
    """Accept an order and start its supervisor. Raises: as `accept_order`, `start_supervisor`."""
    place_rescue(host.disk, host.layout)
    op = accept_order(effects, envelope)
    start_supervisor(effects, op, _program(host))
    return op


def tell_op(host: Host, effects: Effects, op_id: str, timeout_ms: int) -> int:
    """Tell an op's steps, proof, outcome and receipt as records; return the exit code.

    Raises: as `follow_op`.
    """
    for name, fields in follow_op(effects, op_id, timeout_ms=timeout_ms):
        host.reporter.record(name, fields)
    op = OpFolder(disk=effects.disk, layout=effects.layout, op_id=op_id)
    result = op.result()
    if result is None:
        raise Failed("op-not-finished", "the op has not ended yet", got=op_id, retryable=True)
    return int(op_exit_code(op, result))


def _program(host: Host) -> Sequence[str]:
    """Return the argv that starts this very program again, whatever `current` says by then."""
    given = len(sys.argv) - 1
    how = sys.orig_argv[1 : len(sys.orig_argv) - given]
    return [sys.executable, *how, "--root", host.layout.root or "/"]


def _read_record(what: str) -> Envelope:
    raw = sys.stdin.buffer.read(RECORD_LIMITS.size_bytes_max + 1)
    return decode_record(raw, where=what)
