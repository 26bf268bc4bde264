"""The states of one op on a host, as one table.

Models an order from acceptance to its end. Invariants:

* nothing is changed before INTENT, and everything that a restore needs exists by then;
* from INTENT on an op ends as COMMITTED or as one of the restored states, never in between;
* COMMITTED is reached only from PROVED;
* a service is stopped only after TIMING, when the first deadline already runs.

Deliberately outside: how a step is done and how long it may take (`transaction`, `deadlines`).

Source: design, section 9.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

__all__ = ["STOPPED_FROM", "TABLE", "Event", "IllegalTransition", "State", "advance"]


class State(StrEnum):
    """Where an op is. Values are step names in receipts and in `capsule follow`."""

    ACCEPTED = "accepted"
    PREPARED = "prepared"
    INTENT = "intent"
    ARMED = "armed"
    GUARDED = "guarded"
    HOLDING = "holding"
    UNITS_COPIED = "units-copied"
    TIMING = "timing"
    STOPPED = "stopped"
    SWITCHED = "switched"
    STEPPED = "stepped"
    RELEASED = "released"
    UNHELD = "unheld"
    STARTED = "started"
    PROVED = "proved"
    COMMITTED = "committed"
    REFUSED = "refused"
    RESTORING = "restoring"
    RESTORED = "restored"
    RESTORED_ABSENT = "restored-absent"
    RESTORE_FAILED = "restore-failed"


class Event(StrEnum):
    """What happened to an op."""

    PREPARE = "prepare"
    INTEND = "intend"
    ARM = "arm"
    GUARD = "guard"
    HOLD = "hold"
    COPY_UNITS = "copy-units"
    START_D1 = "start-d1"
    STOP = "stop"
    SWITCH = "switch"
    RUN_STEPS = "run-steps"
    RELEASE_NETWORK = "release-network"
    UNHOLD = "unhold"
    START = "start"
    PROVE = "prove"
    COMMIT = "commit"
    FAIL = "fail"
    RESTORED = "restored"
    RESTORED_ABSENT = "restored-absent"
    RESTORE_FAILED = "restore-failed"


class IllegalTransition(AssertionError):
    """An event came that its state does not know: a bug of ours, nothing was changed."""


_PROGRESS: Final = (
    (State.ACCEPTED, Event.PREPARE, State.PREPARED),
    (State.PREPARED, Event.INTEND, State.INTENT),
    (State.INTENT, Event.ARM, State.ARMED),
    (State.ARMED, Event.GUARD, State.GUARDED),
    (State.GUARDED, Event.HOLD, State.HOLDING),
    (State.HOLDING, Event.COPY_UNITS, State.UNITS_COPIED),
    (State.UNITS_COPIED, Event.START_D1, State.TIMING),
    (State.TIMING, Event.STOP, State.STOPPED),
    (State.STOPPED, Event.SWITCH, State.SWITCHED),
    (State.SWITCHED, Event.RUN_STEPS, State.STEPPED),
    (State.STEPPED, Event.RELEASE_NETWORK, State.RELEASED),
    (State.RELEASED, Event.UNHOLD, State.UNHELD),
    (State.UNHELD, Event.START, State.STARTED),
    (State.STARTED, Event.PROVE, State.PROVED),
    (State.PROVED, Event.COMMIT, State.COMMITTED),
)

# Before the intent a failure leaves only names that nobody reads; from it on, it is undone.
_REFUSABLE: Final = (State.ACCEPTED, State.PREPARED)
_UNDOABLE: Final = tuple(state for state, _, _ in _PROGRESS if state not in _REFUSABLE)

TABLE: Final[Mapping[tuple[State, Event], State]] = MappingProxyType(
    {(state, event): target for state, event, target in _PROGRESS}
    | {(state, Event.FAIL): State.REFUSED for state in _REFUSABLE}
    | {(state, Event.FAIL): State.RESTORING for state in _UNDOABLE}
    | {
        (State.RESTORING, Event.RESTORED): State.RESTORED,
        (State.RESTORING, Event.RESTORED_ABSENT): State.RESTORED_ABSENT,
        (State.RESTORING, Event.RESTORE_FAILED): State.RESTORE_FAILED,
        # A failed restore is tried again by hand, at boot, or by the next timer.
        (State.RESTORE_FAILED, Event.FAIL): State.RESTORING,
    }
)

STOPPED_FROM: Final = State.TIMING
"""The first state in which a service may have been stopped."""


def advance(state: State, event: Event) -> State:
    """Return the state after `event`.

    Raises:
        IllegalTransition: the table has no such pair.
    """
    try:
        return TABLE[state, event]
    except KeyError:
        message = f"{event} in {state}"
        raise IllegalTransition(message) from None
