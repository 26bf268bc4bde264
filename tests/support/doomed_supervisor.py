"""Carry out an accepted op and kill the whole process group when a step begins: `ROOT OP_ID STEP`.

The real program with the real disk, services and timers; only the journal's file is watched, to
know which step begins.
"""

import os
import signal
import sys
from dataclasses import replace

from capsule_installer.host.layout import make_layout
from capsule_installer.op.real import real_effects
from capsule_installer.op.supervisor import supervise
from capsule_installer.system.disk import RealDisk, Writer


class WatchedDisk(RealDisk):
    """A disk on whose `steps` file a certain line kills us."""

    def __init__(self, step: str) -> None:
        self._step = step

    def create(self, path: str, mode: int) -> Writer:
        writer = super().create(path, mode)
        if not path.endswith("/steps"):
            return writer
        write, step = writer.write, self._step

        def watched(data: bytes | memoryview) -> None:
            write(data)
            text = bytes(data)
            if b'"%s"' % step.encode() in text and b'"started"' in text:
                os.killpg(0, signal.SIGKILL)

        writer.write = watched  # type: ignore[method-assign]
        return writer


if __name__ == "__main__":
    root, op_id, step = sys.argv[1:]
    layout = make_layout(root)
    supervise(replace(real_effects(RealDisk(), layout), disk=WatchedDisk(step)), op_id)
