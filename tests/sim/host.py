"""A host in virtual time: the rules of the host program, without its disks and processes.

It keeps what the real one keeps durably (fence, one record an op, hold file) over a reboot, and it
bounds its own windows: D1 from stop to proved, D2 from proved to confirm, by its own skewed clock.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from capsule.lane.budget import Budget
from capsule.lane.ports import HostReport, HostStep
from sim.world import World

__all__ = ["Audit", "Host", "Nature"]

_S = HostStep
_REBOOT_MS = 40_000
_DOWN = frozenset({_S.STOPPED, _S.SWITCHED, _S.STARTED})
_OPEN = _DOWN | {_S.ACCEPTED, _S.PROVED, _S.RESTORING}


@dataclass(frozen=True, slots=True, kw_only=True)
class Nature:
    """What is wrong with a host. `pace` stretches its steps; `skew` its clock.

    An `endless` one proves itself and stays there: its program is gone, its timers with it, and
    what answers queries goes on answering.
    """

    refuses: str = ""
    endless: bool = False
    never_proves: bool = False
    restore_fails: bool = False
    pace: float = 1.0
    skew: float = 1.0


class Audit(Protocol):
    """Who watches hosts from outside the system under test."""

    def stopped(self, host: "Host") -> None: ...
    def went_down(self, host: "Host", *, by_op: bool) -> None: ...
    def came_up(self, host: "Host") -> None: ...
    def window_ended(self, host: "Host", length_ms: int) -> None: ...


class Host:
    """One host. `serving` is the truth, whatever the ledger believes."""

    def __init__(
        self, name: str, world: World, budget: Budget, audit: Audit, nature: Nature, serving: bool
    ) -> None:
        self.name = name
        self.world = world
        self.budget = budget
        self.audit = audit
        self.nature = nature
        self.serving = serving
        self.steady = serving  # whether it serves when nothing is being done to it
        self.is_new = False
        self.fence = 0
        self.boot = 0
        self.is_up = True
        self.stopped_at = -1
        self.op_id = ""
        self.records: dict[str, HostStep] = {}
        self.listener: Any = None

    # --- what arrives ---------------------------------------------------------------------------
    def order(self, op_id: str, fence: int, boot: int, valid_until: int, reply: Any) -> None:
        if not self._listen(fence, reply):
            return
        if op_id not in self.records:
            expired = boot != self.boot or self._clock() > valid_until
            if expired:
                self._say(reply, op_id, _S.NO_RECORD, closed=True)
                return
            busy = self.op_id and self.records[self.op_id] in _OPEN
            if busy or self.nature.refuses:
                self.records[op_id] = _S.REFUSED
            else:
                self._accept(op_id)
        self._say(reply, op_id, self.records[op_id], closed=True)

    def confirm(self, op_id: str, proof: str, fence: int, reply: Any) -> None:
        if not self._listen(fence, reply):
            return
        takes = self.records.get(op_id) is _S.PROVED and not self._is_stuck(op_id)
        if takes and proof == self._proof(op_id):
            self._enter(op_id, _S.COMMITTED)
        self._say(reply, op_id, self.records.get(op_id, _S.NO_RECORD), closed=False)

    def query(self, op_id: str, fence: int, boot: int, closes_at: int, reply: Any) -> None:
        """Answer what is known; `closes_at` is when the asker's own orders have run out."""
        if not self._listen(fence, reply):
            return
        closed = boot != self.boot or self._clock() > closes_at
        self._say(reply, op_id, self.records.get(op_id, _S.NO_RECORD), closed=closed)

    def _listen(self, fence: int, reply: Any) -> bool:
        if not self.is_up or fence < self.fence:
            return False
        self.fence = fence
        self.listener = reply
        return True

    def _clock(self) -> int:
        return int(self.world.now * self.nature.skew)

    def _proof(self, op_id: str) -> str:
        return f"proof of {op_id}"

    def _say(self, reply: Any, op_id: str, step: HostStep, *, closed: bool) -> None:
        reply(
            HostReport(
                node=self.name,
                op_id=op_id,
                step=step,
                closed=closed,
                serving=self.serving,
                proof=self._proof(op_id) if step is _S.PROVED else "",
                reason=self.nature.refuses if step is _S.REFUSED else "",
            )
        )

    @property
    def is_still(self) -> bool:
        """Say whether no op is under way."""
        return self.is_up and self.records.get(self.op_id) not in _OPEN

    # --- what it does ---------------------------------------------------------------------------
    def _accept(self, op_id: str) -> None:
        self.op_id = op_id
        self.records[op_id] = _S.ACCEPTED
        self._later(1_000 + 4_000 * self.world.random.random(), self._stop, op_id)

    def _later(self, delay_ms: float, act: Any, op_id: str) -> None:
        self.world.after(int(delay_ms), self._if_same_boot, self.boot, act, op_id)

    def _if_same_boot(self, boot: int, act: Any, op_id: str) -> None:
        if boot == self.boot and self.is_up and not self._is_stuck(op_id):
            act(op_id)

    def _is_stuck(self, op_id: str) -> bool:
        return self.nature.endless and self.records[op_id] is _S.PROVED

    def _stop(self, op_id: str) -> None:
        budget, nature = self.budget, self.nature
        # Both timers are started on the host before the stop, and by its own clock.
        self._later(budget.d1_ms * nature.skew, self._d1, op_id)
        self._down(by_op=True)
        self._enter(op_id, _S.STOPPED)
        self.audit.stopped(self)
        self._later(200 * nature.pace, self._switch, op_id)

    def _switch(self, op_id: str) -> None:
        if self.records[op_id] is _S.STOPPED:
            self._enter(op_id, _S.SWITCHED)
            self._later(2_000 * self.nature.pace, self._start, op_id)

    def _start(self, op_id: str) -> None:
        if self.records[op_id] is _S.SWITCHED:
            self._enter(op_id, _S.STARTED)
            if not self.nature.never_proves:
                self._later(20_000 * self.nature.pace, self._prove, op_id)

    def _prove(self, op_id: str) -> None:
        if self.records[op_id] is _S.STARTED:
            self.is_new = True
            self._up()
            self._enter(op_id, _S.PROVED)
            self._later(self.budget.d2_ms * self.nature.skew, self._d2, op_id)

    def _d1(self, op_id: str) -> None:
        if self.records[op_id] in _DOWN:
            self._restore(op_id)

    def _d2(self, op_id: str) -> None:
        if self.records[op_id] is _S.PROVED:
            self._restore(op_id)

    def _restore(self, op_id: str) -> None:
        self._down(by_op=True)
        self.is_new = False
        self._enter(op_id, _S.RESTORING)
        if self.nature.restore_fails:
            self._later(30_000, self._fail, op_id)
        else:
            self._later(5_000 + 20_000 * self.world.random.random(), self._restored, op_id)

    def _restored(self, op_id: str) -> None:
        if self.steady:
            self._up()
        else:
            self._end_window()
        self._enter(op_id, _S.RESTORED)

    def _fail(self, op_id: str) -> None:
        self.steady = False
        self._end_window()
        self._enter(op_id, _S.RESTORE_FAILED)

    def _down(self, *, by_op: bool) -> None:
        if self.stopped_at < 0 and by_op:
            self.stopped_at = self.world.now
        if self.serving:
            self.serving = False
            self.audit.went_down(self, by_op=by_op)

    def _up(self) -> None:
        if not self.serving:
            self.serving = True
            self.audit.came_up(self)
        self._end_window()

    def _end_window(self) -> None:
        if self.stopped_at >= 0:
            self.audit.window_ended(self, self.world.now - self.stopped_at)
            self.stopped_at = -1

    def _enter(self, op_id: str, step: HostStep) -> None:
        self.records[op_id] = step
        if step is _S.COMMITTED:
            self.steady = True
        if self.listener is not None:
            self._say(self.listener, op_id, step, closed=True)

    # --- what befalls it ------------------------------------------------------------------------
    def reboot(self) -> None:
        """Go down now and come back; an intent without an outcome is restored before all else."""
        if not self.is_up:
            return
        self.boot += 1
        self.is_up = False
        self.listener = None
        self._down(by_op=False)
        self.world.after(_REBOOT_MS, self._boot)

    def _boot(self) -> None:
        self.is_up = True
        step = self.records.get(self.op_id)
        if step in _OPEN and step is not _S.ACCEPTED:
            self._restore(self.op_id)
            return
        if step is _S.ACCEPTED:
            # Nothing was stopped yet: the boot unit finds nothing to exchange.
            self.records[self.op_id] = _S.RESTORED
        if self.steady:
            self._up()
