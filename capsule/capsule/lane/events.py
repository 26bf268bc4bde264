"""Every event that a rollout's stream in the ledger can hold; state is their fold."""

from dataclasses import dataclass

from capsule.lane.epoch import EpochEvent, TenureEvent
from capsule.lane.lane import LaneEvent
from capsule.lane.node import NodeEvent

__all__ = ["Event", "FleetEvent", "HealthSeen", "HoldReturned", "Started"]


@dataclass(frozen=True, slots=True)
class Started:
    """The epoch exists. `plan` is the digest of its plan; its nodes are open from now on."""

    plan: str
    fence: int


@dataclass(frozen=True, slots=True)
class FleetEvent:
    """Something about a node that is no step of its own machine."""

    node: str


@dataclass(frozen=True, slots=True)
class HoldReturned(FleetEvent):
    """The dispatcher acknowledged the release of the epoch's hold: the permit is back."""


@dataclass(frozen=True, slots=True)
class HealthSeen(FleetEvent):
    """A node that the epoch isn't working on began or ceased to prove itself."""

    serving: bool


Event = Started | NodeEvent | LaneEvent | EpochEvent | TenureEvent | FleetEvent
