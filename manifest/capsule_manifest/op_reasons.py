"""Why an op was undone, in the one line that its folder and its receipt carry.

The line reads `STATE: ERROR-ID: …`: how far the op came, and the error that ended it there.
"""

from typing import Final

from capsule_manifest.error_table import ROWS
from capsule_manifest.exit_codes import ExitCode

__all__ = ["restored_exit_code"]

_ALL_PARTS: Final = 3
# These two say what went wrong better than that it was undone: a release that must be corrected,
# and a host on which nothing was stopped.
_OWN_CODES: Final = frozenset({"guard-not-armed", "network-violation"})


def restored_exit_code(reason: str) -> ExitCode:
    """Return the exit code of an op that was undone for `reason`."""
    parts = reason.split(": ", _ALL_PARTS - 1)
    if len(parts) == _ALL_PARTS and parts[1] in _OWN_CODES:
        return ROWS[parts[1]][0]
    return ExitCode.RESTORED
