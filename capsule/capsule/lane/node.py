"""The machine of one node in one epoch: what the ledger knows of it.

Invariants:
* `stop_intent` is recorded before an order is sent, so a node in an earlier state was never stopped
  by this epoch, and one in `staged` or `skipped` never will be by an order of this epoch.
* A node leaves `unknown` only by what its host says or by an operator's decision.
* `committed`, `held` and `skipped` are terminal: a later release is a later epoch.

Outside of it: time, permits (`capsule.lane.hold`), and whether the node serves, which is a fact
about the host and not a step of the epoch.

Source: design, section 11.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

__all__ = [
    "ACTIVE",
    "EVENTS",
    "ORDERED",
    "TERMINAL",
    "AssumedDown",
    "CommitSeen",
    "DrainExpired",
    "HeldForOperator",
    "HoldDropped",
    "HoldSeen",
    "HoldTaken",
    "NodeEvent",
    "NodeState",
    "OrderRefused",
    "OrderVoid",
    "ProofSeen",
    "ReplyLost",
    "RestoreBegun",
    "RestoreFailed",
    "RestoreSeen",
    "Skipped",
    "StageSeen",
    "StartSeen",
    "StopIntended",
    "StopSeen",
    "SwitchSeen",
]


class NodeState(StrEnum):
    """Where a node is in the epoch."""

    UNTOUCHED = "untouched"
    STAGED = "staged"
    HOLDING = "holding"
    DRAINING = "draining"
    STOP_INTENT = "stop_intent"
    STOPPED = "stopped"
    SWITCHED = "switched"
    STARTED = "started"
    PROVED = "proved"
    COMMITTED = "committed"
    RESTORING = "restoring"
    RESTORED = "restored"
    HELD = "held"
    SKIPPED = "skipped"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """Something that became true of `node`; appended to the ledger before it has an effect."""

    node: str


@dataclass(frozen=True, slots=True)
class StageSeen(NodeEvent):
    """The host holds the capsule, verified and rehearsed."""


@dataclass(frozen=True, slots=True)
class HoldTaken(NodeEvent):
    """The permit was taken, and with it the hold. A canary's failure stops the whole epoch."""

    serving: bool
    canary: bool


@dataclass(frozen=True, slots=True)
class HoldSeen(NodeEvent):
    """The dispatcher acknowledged the hold: no new task reaches the node."""


@dataclass(frozen=True, slots=True)
class HoldDropped(NodeEvent):
    """The epoch gives up a hold before any order was sent; the node may be taken again."""

    reason: str


@dataclass(frozen=True, slots=True)
class DrainExpired(NodeEvent):
    """Tasks or leases stayed on the node past the drain's limit."""


@dataclass(frozen=True, slots=True)
class StopIntended(NodeEvent):
    """The node is drained and within its budgets; the order may be sent from now on."""

    op_id: str


@dataclass(frozen=True, slots=True)
class OrderVoid(NodeEvent):
    """The host never saw the order and can't accept it any more."""


@dataclass(frozen=True, slots=True)
class OrderRefused(NodeEvent):
    """The host refused the order before changing anything."""

    reason: str


@dataclass(frozen=True, slots=True)
class StopSeen(NodeEvent):
    """The service is down."""


@dataclass(frozen=True, slots=True)
class SwitchSeen(NodeEvent):
    """The names point to the new generation."""


@dataclass(frozen=True, slots=True)
class StartSeen(NodeEvent):
    """The new process was started."""


@dataclass(frozen=True, slots=True)
class ProofSeen(NodeEvent):
    """The host proved that the restarted process runs the release. `proof` is its digest."""

    proof: str


@dataclass(frozen=True, slots=True)
class CommitSeen(NodeEvent):
    """The host's outcome says committed: the only thing that commits a node."""


@dataclass(frozen=True, slots=True)
class RestoreBegun(NodeEvent):
    """The host's outcome says restoring."""


@dataclass(frozen=True, slots=True)
class RestoreSeen(NodeEvent):
    """The prior generation runs again, or is absent again after a first install."""

    serving: bool


@dataclass(frozen=True, slots=True)
class RestoreFailed(NodeEvent):
    """The host could not restore; the node is down until a person acts."""


@dataclass(frozen=True, slots=True)
class HeldForOperator(NodeEvent):
    """The restored node stays as it is until a person or a newer release acts."""

    reason: str


@dataclass(frozen=True, slots=True)
class ReplyLost(NodeEvent):
    """Nothing was heard for longer than the node's own limits allow."""


@dataclass(frozen=True, slots=True)
class AssumedDown(NodeEvent):
    """An operator decided that an unknown node counts as down."""


@dataclass(frozen=True, slots=True)
class Skipped(NodeEvent):
    """The epoch will not touch the node: aborted, or its lane was skipped."""

    reason: str


EVENTS: Final = (
    StageSeen,
    HoldTaken,
    HoldSeen,
    HoldDropped,
    DrainExpired,
    StopIntended,
    OrderVoid,
    OrderRefused,
    StopSeen,
    SwitchSeen,
    StartSeen,
    ProofSeen,
    CommitSeen,
    RestoreBegun,
    RestoreSeen,
    RestoreFailed,
    HeldForOperator,
    ReplyLost,
    AssumedDown,
    Skipped,
)

_S = NodeState
ORDERED: Final = frozenset(
    {_S.STOP_INTENT, _S.STOPPED, _S.SWITCHED, _S.STARTED, _S.PROVED, _S.RESTORING, _S.UNKNOWN}
)
"""An order was sent, or may have been, and its end is not known yet."""

ACTIVE: Final = ORDERED | {_S.HOLDING, _S.DRAINING, _S.RESTORED}
TERMINAL: Final = frozenset({_S.COMMITTED, _S.HELD, _S.SKIPPED})
