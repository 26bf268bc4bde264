"""One controller of one epoch: it records, and then does what follows from what it recorded.

The driver owns no thread and no socket. The shell around it (the simulator, or the production
loop) hands it reports and calls `tick` not later than `next_at_ms`; the driver calls its ports. A
driver that is gone at any moment loses nothing but its timers: `adopt` builds another one from the
ledger.

Invariants:
* An effect is carried out only after its event was appended under the driver's fence.
* A driver that was refused for its fence is over: it sends nothing more.
* Every wait has a limit; when nothing moves by itself any more, the epoch parks.

Source: design, section 11.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import heappop, heappush

from capsule.lane.budget import MARGIN_PERCENT, Liveness
from capsule.lane.decide import decide, with_consequences
from capsule.lane.effects import AskHost, Effect, PlaceHold, ReleaseHold, SendConfirm, SendOrder
from capsule.lane.epoch import EpochState, Tenure
from capsule.lane.events import Event, FleetEvent, HealthSeen, Started
from capsule.lane.hold import HoldState
from capsule.lane.node import (
    ORDERED,
    DrainExpired,
    HoldDropped,
    NodeEvent,
    NodeState,
    ReplyLost,
    StageSeen,
)
from capsule.lane.plan import RolloutPlan, check_plan, plan_digest
from capsule.lane.ports import (
    UNDER_WAY,
    Clock,
    Dispatch,
    HoldReport,
    HostReport,
    Hosts,
    HostStep,
    Lease,
    Ledger,
    Report,
)
from capsule.lane.proposals import (
    can_admit,
    propose_adoption,
    propose_end,
    propose_from_hold,
    propose_from_host,
    propose_hold,
    propose_park,
)
from capsule.lane.rows import rows_of
from capsule.lane.state import Member, RolloutState, initial_state
from capsule_manifest.digest import sha256_text
from capsule_manifest.errors import CapsuleError, Failed, Refused

__all__ = ["Decision", "Driver", "Patience", "op_id_of"]

Decision = Callable[[RolloutState], tuple[Event, ...]]
"""What an operator decided: one of `capsule.lane.proposals`, with its arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long the driver waits, in milliseconds. Only progress depends on it, never safety."""

    repeat_ms: int = 15_000
    hold_ms: int = 60_000
    silence_ms: int = 60_000
    renew_ms: int = 10_000
    self_stop_ms: int = 20_000
    stall_ms: int = 600_000


@dataclass(slots=True)
class _Watch:
    """What a driver remembers of one node's present step."""

    since_ms: int
    heard_ms: int
    due_ms: int


def op_id_of(plan: str, node: str, attempt: int) -> str:
    """Return the op id of a node's attempt: the same for every controller of the epoch."""
    return sha256_text(f"{plan}/{node}/{attempt}".encode()).partition(":")[2][:32]


class Driver:
    """Carry one epoch on. Use `start` or `adopt`, then `receive` and `tick` until `is_over`."""

    def __init__(
        self,
        plan: RolloutPlan,
        *,
        ledger: Ledger,
        hosts: Hosts,
        dispatch: Dispatch,
        clock: Clock,
        scope: str,
        holder: str,
        patience: Patience,
    ) -> None:
        self._digest = plan_digest(plan)
        self._ledger = ledger
        self._hosts = hosts
        self._dispatch = dispatch
        self._clock = clock
        self._scope = scope
        self._holder = holder
        self._patience = patience
        self._lease: Lease | None = None
        self._seq = 0
        self._watches: dict[str, _Watch] = {}
        # When this driver began to wait for the end of an op, by op id.
        self._begun: dict[str, int] = {}
        self._due: list[tuple[int, str]] = []
        self._renewed_ms = 0
        self._stalled_ms: int | None = None
        self._settled: RolloutState | None = None
        self._is_fenced = False
        self.refusal: Failed | None = None
        """Why the ledger gave no new permit when it was last asked: its disk was full."""
        self.state: RolloutState = initial_state(plan)

    # --- what the shell calls -------------------------------------------------------------------
    def start(self) -> None:
        """Begin the epoch; every node of the plan is staged, as the preflight saw it.

        Raises:
            Refused: those of `check_plan`, `lease-busy`, `epoch-unfinished`.
        """
        check_plan(self.state.plan)
        self._take_lease(takeover=False)
        events: list[Event] = [Started(self._digest, self.fence)]
        events += [StageSeen(node.name) for node in self.state.plan.nodes]
        with self._no_lease_if_refused():
            self._ledger.keep_plan(self.state.plan)
            self._record(events)
        self._go_on()

    def adopt(self, *, takeover: bool, decision: Decision | None = None) -> None:
        """Take the epoch over from whoever had it, and carry out an operator's `decision` first.

        A parked epoch waits for a decision: adopted without one, it parks again.

        Raises:
            Refused: `lease-busy` while another lease runs and `takeover` is false;
                `plan-mismatch` if the stream was begun under another plan.
        """
        self._take_lease(takeover=takeover)
        with self._no_lease_if_refused():
            self._read_back()
        if self.state.epoch is EpochState.ENDED:
            self._leave()
            return
        self._record(propose_adoption(self.state, fence=self.fence, holder=self._holder))
        for member in self.state.members.values():
            self._watch(member)
        if decision is not None and not self.is_over:
            self._record(decision(self.state))
        self._go_on()

    def receive(self, report: Report) -> None:
        """Take in what was heard."""
        if self.is_over:
            return
        if isinstance(report, HostReport):
            self._hear_host(report)
        elif isinstance(report, HoldReport):
            self._hear_dispatch(report)
        self._go_on()

    def see_health(self, node: str, *, serving: bool) -> None:
        """Take in that a node which the epoch isn't working on began or ceased to serve."""
        member = self.state.members[node]
        if self.is_over or member.state in ORDERED or member.serving == serving:
            return
        self._record((HealthSeen(node, serving),))
        self._go_on()

    def command(self, decision: Decision) -> None:
        """Carry out an operator's decision, one of `capsule.lane.proposals`."""
        if self.is_over:
            return
        self._record(decision(self.state))
        self._stalled_ms = None
        self._go_on()

    def tick(self) -> None:
        """Do what is due now."""
        if self.is_over:
            return
        now = self._clock.now_ms()
        self._renew(now)
        while not self.is_over and self._due and self._due[0][0] <= now:
            due_ms, node = heappop(self._due)
            watch = self._watches.get(node)
            if watch is not None and watch.due_ms == due_ms:
                self._attend(self.state.members[node], watch, now)
        self._go_on()

    @property
    def is_over(self) -> bool:
        """Say whether this driver has nothing more to do: ended, parked or fenced."""
        return self._lease is None

    @property
    def is_fenced(self) -> bool:
        """Say whether another controller took over, or the lease could not be kept."""
        return self._is_fenced

    @property
    def fence(self) -> int:
        """Return the driver's own fence."""
        assert self._lease is not None
        return self._lease.fence

    @property
    def next_at_ms(self) -> int:
        """Return when `tick` has to be called next, by the driver's clock."""
        times = [self._renewed_ms + self._patience.renew_ms]
        if self._due:
            times.append(self._due[0][0])
        if self._stalled_ms is not None:
            times.append(self._stalled_ms + self._patience.stall_ms)
        return min(times)

    # --- lease ----------------------------------------------------------------------------------
    def _take_lease(self, *, takeover: bool) -> None:
        self._lease = self._ledger.acquire(self._scope, self._holder, takeover=takeover)
        self._renewed_ms = self._clock.now_ms()

    @contextmanager
    def _no_lease_if_refused(self) -> Iterator[None]:
        """Leave no lease behind on a refusal: it would keep out whoever can go on."""
        try:
            yield
        except CapsuleError as error:
            if isinstance(error, Refused) or error.error_id == "ledger-full":
                self._leave()
            raise

    def _read_back(self) -> None:
        for recorded in self._ledger.read(self.state.plan.epoch):
            if isinstance(recorded.event, Started) and recorded.event.plan != self._digest:
                raise Refused(
                    "plan-mismatch",
                    "the epoch was begun under another plan",
                    expected=self._digest,
                    got=recorded.event.plan,
                    where=self.state.plan.epoch,
                )
            self.state, _ = decide(self.state, recorded.event)
            self._seq = recorded.seq

    def _renew(self, now: int) -> None:
        assert self._lease is not None
        if now - self._renewed_ms >= self._patience.self_stop_ms:
            # The lease may be somebody else's by now; the ledger would say so, but late.
            self._stop_fenced()
        elif now - self._renewed_ms >= self._patience.renew_ms:
            try:
                self._ledger.renew(self._lease)
            except Refused:
                self._stop_fenced()
            else:
                self._renewed_ms = now
                # A person may have ended a hold meanwhile, of which no event tells.
                self._settled = None

    def _stop_fenced(self) -> None:
        self._is_fenced = True
        self._lease = None
        self._watches.clear()

    def _leave(self) -> None:
        assert self._lease is not None
        self._ledger.release(self._lease)
        self._lease = None
        self._watches.clear()

    # --- record, then act -----------------------------------------------------------------------
    def _record(self, proposed: Iterable[Event]) -> None:
        events, state, effects = with_consequences(self.state, proposed)
        if not events:
            return
        assert self._lease is not None
        try:
            self._seq = self._ledger.append(
                self._lease,
                self.state.plan.epoch,
                expected_seq=self._seq,
                events=events,
                rows=rows_of(self.state, events, state),
            )
        except Refused as refusal:
            if refusal.error_id not in {"fence-stale", "ledger-conflict"}:
                raise
            self._stop_fenced()
            return
        self.state = state
        for event in events:
            if isinstance(event, NodeEvent | FleetEvent):
                self._watch(state.members[event.node])
        for effect in effects:
            self._act(effect)

    def _act(self, effect: Effect) -> None:
        if self._lease is None:
            return
        fence = self._lease.fence
        match effect:
            case PlaceHold(node, turn):
                self._dispatch.hold(node, turn, fence=fence)
            case ReleaseHold(node, turn):
                self._dispatch.release(node, turn, fence=fence)
            case SendOrder(node, op_id):
                self._hosts.order(node, op_id, fence=fence)
            case SendConfirm(node, op_id, proof):
                self._hosts.confirm(node, op_id, proof=proof, fence=fence)
            case AskHost(node, op_id):
                self._hosts.query(node, op_id, fence=fence)

    # --- waiting --------------------------------------------------------------------------------
    def _watch(self, member: Member) -> None:
        """Start the timers of the node's new step, or end them."""
        if self._lease is None or member.hold is HoldState.FREE:
            self._watches.pop(member.name, None)
            return
        now = self._clock.now_ms()
        if member.state in ORDERED:
            self._begun.setdefault(member.op_id, now)
        self._watches[member.name] = _Watch(since_ms=now, heard_ms=now, due_ms=0)
        self._await(member.name, now)

    def _await(self, node: str, now: int) -> None:
        watch = self._watches.get(node)
        if watch is not None:
            watch.due_ms = now + self._patience.repeat_ms
            heappush(self._due, (watch.due_ms, node))

    def _attend(self, member: Member, watch: _Watch, now: int) -> None:
        """Ask again, or give up waiting for the node's present step."""
        self._await(member.name, now)
        waited_ms = now - watch.since_ms
        if member.hold is HoldState.RELEASING:
            self._act(ReleaseHold(member.name, member.attempts))
        elif member.state is NodeState.HOLDING and waited_ms >= self._patience.hold_ms:
            self._record((HoldDropped(member.name, "the dispatcher did not answer"),))
        elif member.state is NodeState.DRAINING and waited_ms >= self.state.plan.budget.drain_ms:
            self._record((DrainExpired(member.name),))
        elif member.state in {NodeState.HOLDING, NodeState.DRAINING}:
            self._act(PlaceHold(member.name, member.attempts))
        elif member.state is not NodeState.UNKNOWN and (
            now - watch.heard_ms >= self._patience.silence_ms or self._is_overdue(member, now)
        ):
            self._record((ReplyLost(member.name),))
        else:
            if member.state is NodeState.PROVED:
                self._act(SendConfirm(member.name, member.op_id, member.proof))
            self._act(AskHost(member.name, member.op_id))

    def _is_overdue(self, member: Member, now: int) -> bool:
        """Say whether an op takes longer than the host's own dead-men allow it to.

        A host whose program is gone may answer for ever and never end; the op's other waits are all
        begun anew by each thing that it says.
        """
        limit_ms = MARGIN_PERCENT * self.state.plan.budget.op_ms // 100 + self._patience.silence_ms
        return now - self._begun.get(member.op_id, now) >= limit_ms

    # --- hearing --------------------------------------------------------------------------------
    def _hear_host(self, report: HostReport) -> None:
        member = self.state.members[report.node]
        watch = self._watches.get(report.node)
        if watch is None or report.op_id != member.op_id:
            return
        now = watch.heard_ms = self._clock.now_ms()
        if (
            member.state is NodeState.UNKNOWN
            and report.step in UNDER_WAY
            and self._is_overdue(member, now)
        ):
            # Given up for saying this too long; only an end is news now.
            return
        self._record(propose_from_host(self.state, report))
        if (
            report.step is HostStep.NO_RECORD
            and not report.closed
            and member.state is NodeState.STOP_INTENT
        ):
            # The order was lost on its way. An adopter never comes here: for it the node is
            # unknown, and what an earlier controller ordered is closed, not repeated.
            self._act(SendOrder(member.name, member.op_id))

    def _hear_dispatch(self, report: HoldReport) -> None:
        member = self.state.members[report.node]
        liveness = Liveness(
            node=report.node,
            heartbeat_age_ms=report.heartbeat_age_ms,
            credential_ms=report.credential_ms,
        )
        op_id = op_id_of(self._digest, member.name, member.attempts)
        self._record(propose_from_hold(self.state, report, liveness, op_id))

    # --- going on -------------------------------------------------------------------------------
    def _go_on(self) -> None:
        """Take what permits there are; end or park when nothing is left to do."""
        if self.state is self._settled:
            self._consider_parking()
            return
        while not self.is_over and self.state.epoch is EpochState.RUNNING:
            foreign = self._ledger.foreign_holds(self.state.plan.epoch)
            events = propose_hold(self.state, foreign)
            if not events:
                break
            try:
                self._record(events)
            except Failed as failure:
                if failure.error_id != "ledger-full":
                    raise
                # What is under way needs the space that is left; a later look may find more.
                self.refusal = failure
                break
            self.refusal = None
        if self.is_over:
            return
        self._settled = self.state
        self._record(propose_end(self.state))
        self._consider_parking()

    def _consider_parking(self) -> None:
        """Park once nothing moves by itself, and has not for long enough."""
        if self.is_over:
            return
        if self.state.epoch is EpochState.ENDED or self.state.tally.moving:
            self._stalled_ms = None
        else:
            self._park(self._clock.now_ms())
        if not self.is_over and (
            self.state.epoch is EpochState.ENDED or self.state.tenure is Tenure.PARKED
        ):
            self._leave()

    def _park(self, now: int) -> None:
        if self._stalled_ms is None:
            self._stalled_ms = now
        nothing_out = not self.state.tally.outstanding
        if nothing_out and self.refusal is not None:
            reason = "no space for new permits in the ledger"
            self._record(propose_park(self.state, reason, code=self.refusal.exit_code))
        elif nothing_out and not can_admit(self.state):
            self._record(propose_park(self.state, "only an operator's decisions remain"))
        elif now - self._stalled_ms >= self._patience.stall_ms:
            reason = "only unresolved permits remain"
            if nothing_out:
                reason = "no permit is left: the floor or a domain needs every node that serves"
            self._record(propose_park(self.state, reason))
