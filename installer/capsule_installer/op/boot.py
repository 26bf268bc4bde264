"""Recovery when a host has booted: what a power cut left open is undone, then services start.

An op with an intent and no commit is restored, proved or not: what the proof was about is gone. On
a real host `rescue.sh ROOT boot` has done this before any unit; on a folder host nothing starts by
itself, so the units of the installed generation are started here.
"""

from capsule_installer.op.effects import Effects
from capsule_installer.op.hold import hold_reason
from capsule_installer.op.installed import require_coherent
from capsule_installer.op.op_folder import Result
from capsule_installer.op.restore import restore_op
from capsule_installer.op.settle import settle_all, settle_op
from capsule_installer.op.supervisor import load_installation

__all__ = ["recover"]


def recover(effects: Effects) -> dict[str, Result]:
    """Undo open ops and those whose restore failed; return how each ended.

    Starts the installed generation's units on a folder host. The caller holds no lock.

    Raises:
        Failed: `host-busy` while an op is being carried out, `service-failed`, `disk-*`.
    """
    lock = effects.disk.lock(effects.layout.lock)
    try:
        results = {}
        for op in settle_all(effects):
            restore_op(effects, op, reason="boot found the op open", after_boot=True)
            results[op.op_id] = settle_op(effects, op) or Result.FAILED
        if effects.services.name == "process" and hold_reason(effects.disk, effects.layout) is None:
            _start_installed(effects)
        return results
    finally:
        lock.release()


def _start_installed(effects: Effects) -> None:
    marker = require_coherent(effects)
    if marker is None:
        return
    for unit in load_installation(effects, marker).specs:
        effects.services.start(unit.name, unit.start_timeout_ms)
