"""Start the supervisor of an op so that it is killed when one of its steps begins."""

import signal
import subprocess
import sys
from pathlib import Path

from capsule_installer.op.accept import accept_order
from capsule_installer.op.op_folder import OpFile, OpFolder
from capsule_manifest.records import Marker
from support import doomed_supervisor
from support.staged_host import StagedHost, await_true

__all__ = ["doom"]


def doom(host: StagedHost, marker: Marker, step: str, *, op_id: str, **changes: object) -> OpFolder:
    """Accept an order and have its supervisor killed when `step` begins."""
    accept_order(host.effects(), host.order_now(marker, op_id=op_id, **changes))
    op = host.op(op_id)
    program = [sys.executable, doomed_supervisor.__file__, host.root, op_id, step]
    with subprocess.Popen(program, start_new_session=True) as process:
        stat = Path(f"/proc/{process.pid}/stat").read_text(encoding="ascii")
        ticks = stat.rpartition(")")[2].split()[19]
        op.note(OpFile.SUPERVISOR, f"{process.pid} {ticks}\n".encode())
        await_true(lambda: process.poll() is not None)
    assert process.returncode == -signal.SIGKILL
    return op
