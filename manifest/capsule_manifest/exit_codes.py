"""The one table of exit codes, for every command on every side. Source: design, section 13."""

from enum import IntEnum

__all__ = ["ExitCode"]


class ExitCode(IntEnum):
    """How a command ends. When several apply, 10, 7, 6, 61 and 5 win in this order."""

    DONE = 0
    INTERNAL = 1
    USAGE = 2
    PREFLIGHT_REFUSED = 3
    BUDGET_REFUSED = 4
    NODES_HELD = 5
    NOT_SERVING = 6
    FENCED = 7
    BUSY = 8
    UNFINISHED_EPOCH = 9
    INTEGRITY = 10
    TIME = 11
    DENIED = 12
    SPACE = 20
    INCOMPATIBLE = 21
    TRANSFER_INCOMPLETE = 30
    ROUTE_MISMATCH = 40
    NETWORK_VIOLATION = 50
    GUARD_NOT_ARMED = 51
    RESTORED = 60
    RESTORE_FAILED = 61
    INTERRUPTED = 130
