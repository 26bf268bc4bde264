"""The machine of one lane: whether nodes of it may be taken.

Invariants:
* A held node closes its own lane only, until an operator resumes or skips that lane.
* An unknown node makes its own lane wait until its host was heard.
* A skipped lane never opens again.

Source: design, section 11, "lane-local failure".
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
    "LaneEvent",
    "LaneResumed",
    "LaneSkipped",
    "LaneState",
    "MemberHeld",
    "MemberLost",
    "MembersKnown",
    "advance_lane",
]


class LaneState(StrEnum):
    """Whether a lane admits nodes."""

    OPEN = "open"
    WAITING = "waiting"
    HELD = "held"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class LaneEvent:
    """Something that became true of `lane`."""

    lane: str


@dataclass(frozen=True, slots=True)
class MemberHeld(LaneEvent):
    """A node of the lane turned held."""


@dataclass(frozen=True, slots=True)
class MemberLost(LaneEvent):
    """A node of the lane turned unknown."""


@dataclass(frozen=True, slots=True)
class MembersKnown(LaneEvent):
    """No node of the lane is unknown any more."""


@dataclass(frozen=True, slots=True)
class LaneResumed(LaneEvent):
    """An operator lets the lane go on beside its held or unknown nodes."""


@dataclass(frozen=True, slots=True)
class LaneSkipped(LaneEvent):
    """An operator leaves the rest of the lane as it is."""


EVENTS: Final = (MemberHeld, MemberLost, MembersKnown, LaneResumed, LaneSkipped)

_S = LaneState
TABLE: Final[Mapping[tuple[LaneState, type], LaneState]] = MappingProxyType(
    {
        (_S.OPEN, MemberHeld): _S.HELD,
        (_S.OPEN, MemberLost): _S.WAITING,
        # A resumed lane can have unknown nodes; that they become known changes nothing then.
        (_S.OPEN, MembersKnown): _S.OPEN,
        (_S.OPEN, LaneSkipped): _S.SKIPPED,
        (_S.WAITING, MemberHeld): _S.HELD,
        (_S.WAITING, MemberLost): _S.WAITING,
        (_S.WAITING, MembersKnown): _S.OPEN,
        (_S.WAITING, LaneResumed): _S.OPEN,
        (_S.WAITING, LaneSkipped): _S.SKIPPED,
        (_S.HELD, MemberHeld): _S.HELD,
        (_S.HELD, MemberLost): _S.HELD,
        (_S.HELD, MembersKnown): _S.HELD,
        (_S.HELD, LaneResumed): _S.OPEN,
        (_S.HELD, LaneSkipped): _S.SKIPPED,
        (_S.SKIPPED, MemberHeld): _S.SKIPPED,
        (_S.SKIPPED, MemberLost): _S.SKIPPED,
        (_S.SKIPPED, MembersKnown): _S.SKIPPED,
    }
)
REJECTED: Final = frozenset(
    {(_S.OPEN, LaneResumed), (_S.SKIPPED, LaneResumed), (_S.SKIPPED, LaneSkipped)}
)


def advance_lane(state: LaneState, event: LaneEvent) -> LaneState:
    """Return the lane's next state. Raises: IllegalTransition."""
    return advance(TABLE, state, event)
