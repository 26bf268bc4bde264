"""Stand-ins for the wheels of the host program, so that tests need no network.

Their digests are not those of `runtime.lock`, so a lock of their own takes its place: the package's
data file is an input, not code.
"""

import hashlib
from pathlib import Path

import pytest

from capsule.builder import runtime_wheels
from support.wheels import WheelFile

__all__ = ["runtime_index"]


def runtime_index(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put one small wheel into `index` and make it all that the host program needs."""
    wheel = WheelFile(name="hostlib", files={"hostlib.py": b"x = 1\n"}).write(index)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    lock = index.parent / "runtime.lock"
    lock.write_text(f"hostlib==1.0 --hash=sha256:{digest}\n")
    monkeypatch.setattr(runtime_wheels, "_LOCK", str(lock))
