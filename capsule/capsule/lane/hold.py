"""The machine of one node's hold and permit: they are taken together and end together.

Invariants:
* A permit is out exactly while the state is not `free`.
* It returns only when the dispatcher acknowledged the release, or when the node turned `held`: then
  the hold stays, as the operator's, and the node no longer counts as healthy.

Holds that somebody else placed are not the epoch's and have no machine here.

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
    "HoldEvent",
    "HoldState",
    "Kept",
    "ReleaseBegun",
    "Returned",
    "Taken",
    "advance_hold",
]


class HoldState(StrEnum):
    """Where the epoch's own hold on a node is."""

    FREE = "free"
    TAKEN = "taken"
    RELEASING = "releasing"


@dataclass(frozen=True, slots=True)
class HoldEvent:
    """Something that happened to a hold."""


@dataclass(frozen=True, slots=True)
class Taken(HoldEvent):
    """Permit and hold were recorded in one transaction."""


@dataclass(frozen=True, slots=True)
class ReleaseBegun(HoldEvent):
    """The node needs no hold any more; the dispatcher has to be told."""


@dataclass(frozen=True, slots=True)
class Returned(HoldEvent):
    """The dispatcher acknowledged the release."""


@dataclass(frozen=True, slots=True)
class Kept(HoldEvent):
    """The node turned `held`: the hold outlives the epoch, the permit does not."""


EVENTS: Final = (Taken, ReleaseBegun, Returned, Kept)

_S = HoldState
TABLE: Final[Mapping[tuple[HoldState, type], HoldState]] = MappingProxyType(
    {
        (_S.FREE, Taken): _S.TAKEN,
        (_S.TAKEN, ReleaseBegun): _S.RELEASING,
        (_S.TAKEN, Kept): _S.FREE,
        (_S.RELEASING, Returned): _S.FREE,
    }
)
REJECTED: Final = frozenset(
    {
        (_S.FREE, ReleaseBegun),
        (_S.FREE, Returned),
        (_S.FREE, Kept),
        (_S.TAKEN, Taken),
        (_S.TAKEN, Returned),
        (_S.RELEASING, Taken),
        (_S.RELEASING, ReleaseBegun),
        (_S.RELEASING, Kept),
    }
)


def advance_hold(state: HoldState, event: HoldEvent) -> HoldState:
    """Return the hold's next state. Raises: IllegalTransition."""
    return advance(TABLE, state, event)
