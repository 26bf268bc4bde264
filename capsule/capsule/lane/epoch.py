"""The machines of one epoch: whether it admits nodes at all, and whether anybody attends to it.

Invariants:
* Abort is monotonic: from `aborting` only `ended` is reached.
* A failed canary halts the epoch for every lane; nothing else does but `max_failed_lanes`.
* A parked epoch holds no lease and no untouched node; adoption finds it in the state it had.

Source: design, section 11.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from capsule.lane.machine import advance

__all__ = [
    "EVENTS",
    "REJECTED",
    "TABLE",
    "TENURE_EVENTS",
    "TENURE_REJECTED",
    "TENURE_TABLE",
    "AbortDecided",
    "Adopted",
    "Ended",
    "EpochEvent",
    "EpochState",
    "Halted",
    "Parked",
    "Paused",
    "Resumed",
    "Tenure",
    "TenureEvent",
    "advance_epoch",
    "advance_tenure",
]


class EpochState(StrEnum):
    """Whether an epoch takes new permits."""

    RUNNING = "running"
    PAUSED = "paused"
    HALTED = "halted"
    ABORTING = "aborting"
    ENDED = "ended"


class Tenure(StrEnum):
    """Whether a controller attends to the epoch."""

    ATTENDED = "attended"
    PARKED = "parked"


@dataclass(frozen=True, slots=True)
class EpochEvent:
    """Something that was decided for the whole epoch."""

    reason: str


@dataclass(frozen=True, slots=True)
class Paused(EpochEvent):
    """An operator wants no new permits for now."""


@dataclass(frozen=True, slots=True)
class Resumed(EpochEvent):
    """An operator lets a paused or halted epoch go on."""


@dataclass(frozen=True, slots=True)
class Halted(EpochEvent):
    """A canary failed, or more lanes failed than the plan allows."""


@dataclass(frozen=True, slots=True)
class AbortDecided(EpochEvent):
    """No further node is taken, ever; those in flight reach their own end."""


@dataclass(frozen=True, slots=True)
class Ended(EpochEvent):
    """Every node is terminal and every permit is back. `exit_code` is the epoch's result."""

    exit_code: int


@dataclass(frozen=True, slots=True)
class TenureEvent:
    """Somebody began or ceased to attend to the epoch."""


@dataclass(frozen=True, slots=True)
class Parked(TenureEvent):
    """Only unresolved permits or operator's decisions remain."""

    reason: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class Adopted(TenureEvent):
    """A controller took over with a higher fence."""

    fence: int
    holder: str


EVENTS: Final = (Paused, Resumed, Halted, AbortDecided, Ended)
TENURE_EVENTS: Final = (Parked, Adopted)

_S = EpochState
TABLE: Final[Mapping[tuple[EpochState, type], EpochState]] = MappingProxyType(
    {
        (_S.RUNNING, Paused): _S.PAUSED,
        (_S.RUNNING, Halted): _S.HALTED,
        (_S.RUNNING, AbortDecided): _S.ABORTING,
        (_S.RUNNING, Ended): _S.ENDED,
        (_S.PAUSED, Resumed): _S.RUNNING,
        # A pause must not hide that a canary failed meanwhile.
        (_S.PAUSED, Halted): _S.HALTED,
        (_S.PAUSED, AbortDecided): _S.ABORTING,
        (_S.PAUSED, Ended): _S.ENDED,
        (_S.HALTED, Resumed): _S.RUNNING,
        (_S.HALTED, AbortDecided): _S.ABORTING,
        (_S.HALTED, Ended): _S.ENDED,
        (_S.ABORTING, Ended): _S.ENDED,
    }
)
REJECTED: Final = frozenset(
    {
        (_S.RUNNING, Resumed),
        (_S.PAUSED, Paused),
        (_S.HALTED, Paused),
        (_S.HALTED, Halted),
        (_S.ABORTING, Paused),
        (_S.ABORTING, Resumed),
        (_S.ABORTING, Halted),
        (_S.ABORTING, AbortDecided),
        (_S.ENDED, Paused),
        (_S.ENDED, Resumed),
        (_S.ENDED, Halted),
        (_S.ENDED, AbortDecided),
        (_S.ENDED, Ended),
    }
)
TENURE_TABLE: Final[Mapping[tuple[Tenure, type], Tenure]] = MappingProxyType(
    {
        (Tenure.ATTENDED, Parked): Tenure.PARKED,
        (Tenure.ATTENDED, Adopted): Tenure.ATTENDED,
        (Tenure.PARKED, Adopted): Tenure.ATTENDED,
    }
)
TENURE_REJECTED: Final = frozenset({(Tenure.PARKED, Parked)})


def advance_epoch(state: EpochState, event: EpochEvent) -> EpochState:
    """Return the epoch's next state. Raises: IllegalTransition."""
    return advance(TABLE, state, event)


def advance_tenure(state: Tenure, event: TenureEvent) -> Tenure:
    """Return the next tenure. Raises: IllegalTransition."""
    return advance(TENURE_TABLE, state, event)
