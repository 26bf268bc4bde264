"""What an op's folder keeps of its guard, for the receipt: armed or not, and what was found.

Notes of one boot: a power cut takes the process that tried along with what is known of it.
"""

from collections.abc import Sequence
from typing import Final

from capsule_installer.guard.finding import Finding
from capsule_installer.op.op_folder import OpFile, OpFolder
from capsule_manifest.records import guard_text

__all__ = ["guard_statement", "note_armed", "note_findings", "read_violations"]

_NOT_MONITORED: Final = "L0"


def note_armed(op: OpFolder, level: str) -> None:
    """Remember that the guard of an op stands. Raises: `disk-*`."""
    op.note(OpFile.GUARD, f"{level}\n".encode())


def note_findings(op: OpFolder, findings: Sequence[Finding], *, more: int = 0) -> None:
    """Remember what was found so far, and how many more are not kept. Raises: `disk-*`."""
    lines = [finding.text() for finding in findings]
    if more:
        lines.append(f"and {more} more")
    op.note(OpFile.VIOLATIONS, "".join(f"{line}\n" for line in lines).encode())


def guard_statement(op: OpFolder, level: str) -> str:
    """Return how a receipt states the guard of an op that was ordered at `level`."""
    if level == _NOT_MONITORED or op.has(OpFile.GUARD):
        return guard_text(level)
    return f"{level}: not armed"


def read_violations(op: OpFolder) -> tuple[str, ...]:
    """Return what was found, one line each."""
    raw = op.read(OpFile.VIOLATIONS)
    return () if raw is None else tuple(raw.decode("utf-8", "replace").splitlines())
