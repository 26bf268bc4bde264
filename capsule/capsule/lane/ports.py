"""What the rollout asks of the world: a ledger, hosts, a dispatcher and a clock.

The simulator implements them in memory; the SQL ledger and SSH do in production. Nothing here
blocks for long, and no answer is ever a return value of a send: what a host says arrives later as a
report, or never.

Source: design, section 11.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from capsule.lane.events import Event
from capsule.lane.plan import RolloutPlan

__all__ = [
    "UNDER_WAY",
    "Clock",
    "Dispatch",
    "HoldReport",
    "HostReport",
    "HostStep",
    "Hosts",
    "Lease",
    "Ledger",
    "Recorded",
    "Report",
    "Rows",
    "Unreachable",
]


class Clock(Protocol):
    """A clock of this process that only goes forward; wall time decides nothing."""

    def now_ms(self) -> int:
        """Return milliseconds since some fixed moment."""
        ...


# --- ledger -------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to write: `fence` is what every append is checked against."""

    scope: str
    holder: str
    fence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One event as it is in the ledger. `seq` starts at 1 in every stream."""

    seq: int
    fence: int
    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What an append changes beside the stream, in the same transaction.

    `opened` and `closed` are the members of an epoch: a node is open in at most one stream.
    `taken` and `returned` are permits, each with the epoch's hold: at most one a node. `kept` are
    permits that end while the hold stays.
    """

    opened: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


class Ledger(Protocol):
    """The controller's database. Every method is one transaction, durable when it returns."""

    def acquire(self, scope: str, holder: str, *, takeover: bool) -> Lease:
        """Raise the fence of `scope` and take its lease.

        `takeover` is an operator's decision to adopt before the lease has expired.

        Raises:
            Refused: `lease-busy` while another holder's lease runs and `takeover` is false.
        """
        ...

    def renew(self, lease: Lease) -> None:
        """Extend the lease. Raises: `fence-stale` if the scope has another fence by now."""
        ...

    def release(self, lease: Lease) -> None:
        """End the lease; the fence stays. A stale lease is left alone."""
        ...

    def append(
        self,
        lease: Lease,
        stream: str,
        *,
        expected_seq: int,
        events: Sequence[Event],
        rows: Rows,
    ) -> int:
        """Append all of `events` and change `rows`, or nothing; return the stream's new length.

        Raises:
            Refused: `fence-stale` if `lease` is not the newest of its scope, checked in the same
                transaction; `ledger-conflict` if the stream is not `expected_seq` long;
                `epoch-unfinished` if a node to open is open in another stream; `permit-taken` if a
                permit to take is out already.
        """
        ...

    def keep_plan(self, plan: RolloutPlan) -> None:
        """Keep the plan under its digest, for whoever adopts or verifies its epoch.

        Repeating it changes nothing. Raises: `ledger-full` if no epoch may begin now.
        """
        ...

    def read(self, stream: str, *, after: int = 0) -> tuple[Recorded, ...]:
        """Return the stream's events with a sequence above `after`, in order."""
        ...

    def foreign_holds(self, stream: str) -> frozenset[str]:
        """Return the nodes that a person or another system holds.

        What an ended epoch left held doesn't count: a newer epoch takes such a hold over.
        """
        ...


# --- hosts --------------------------------------------------------------------------------------
class HostStep(StrEnum):
    """How far the host is with an op, by its own records."""

    NO_RECORD = "no_record"
    ACCEPTED = "accepted"
    REFUSED = "refused"
    STOPPED = "stopped"
    SWITCHED = "switched"
    STARTED = "started"
    PROVED = "proved"
    COMMITTED = "committed"
    RESTORING = "restoring"
    RESTORED = "restored"
    RESTORE_FAILED = "restore_failed"


UNDER_WAY: Final = frozenset(
    {
        HostStep.ACCEPTED,
        HostStep.STOPPED,
        HostStep.SWITCHED,
        HostStep.STARTED,
        HostStep.PROVED,
        HostStep.RESTORING,
    }
)
"""Steps after which the host has more to do by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """What a host says of `op_id`, from its records, verified by the transport.

    `closed` says that an order with this op id can't be accepted any more: the host has recorded a
    higher fence, or the order's validity has run out on the host's own boot clock.
    """

    node: str
    op_id: str
    step: HostStep
    closed: bool
    serving: bool
    proof: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldReport:
    """What the dispatcher says: whether the epoch's hold is in force, and what still runs.

    `turn` is the hold's, as it was asked. `busy` counts tasks and leases. `serving` says whether
    the node proves itself now. The rest is what the hub knows of the node's clocks;
    `credential_ms` None is a credential that never ends.
    """

    node: str
    turn: int
    held: bool
    busy: int
    serving: bool
    heartbeat_age_ms: int
    credential_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreachable:
    """A send ended before the host acknowledged it, after the transport's own retries."""

    node: str
    reason: str


Report = HostReport | HoldReport | Unreachable


class Hosts(Protocol):
    """The way to the host programs. Each call hands a message over and returns at once.

    A message can be lost, late, doubled or reordered; a host acts on one only if its fence is not
    below the highest that the host has recorded.
    """

    def order(self, node: str, op_id: str, *, fence: int) -> None:
        """Send the node's order; a host that knows the op id answers with its stored record.

        Repeating it sends the very same signed order: were its validity renewed, a late answer
        that the first one had run out would void an order that can still be accepted.
        """
        ...

    def confirm(self, node: str, op_id: str, *, proof: str, fence: int) -> None:
        """Accept a proof. The host refuses it once an outcome is written."""
        ...

    def query(self, node: str, op_id: str, *, fence: int) -> None:
        """Have the host record `fence` and say what it knows of `op_id`."""
        ...


class Dispatch(Protocol):
    """The way to whatever gives work to nodes: the hub, or an operator's hooks.

    `turn` counts how often the epoch took the node's hold. A release ends its own turn and all
    before it for good, so that a late hold of an ended turn holds nothing and a late release of an
    older turn releases nothing.
    """

    def hold(self, node: str, turn: int, *, fence: int) -> None:
        """Place the epoch's hold and ask what still runs; repeating it asks again."""
        ...

    def release(self, node: str, turn: int, *, fence: int) -> None:
        """Remove the epoch's hold and nobody else's."""
        ...
