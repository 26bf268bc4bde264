"""One op from its accepted order to its outcome: the steps in their order, each with its limit.

The order of the steps is the product's promise. Everything slow, or able to fail for want of space,
is before the stop. Between stop and start only names are exchanged and declared steps run. A
failure before the intent refuses the op; after it the op is undone. Who decides is `outcome`, never
a step.

Source: design, section 9; the measurements behind the order are in `docs/explanation/install.md`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from capsule_installer.engines.ops import keep_images
from capsule_installer.op.calm import wait_until_calm
from capsule_installer.op.effects import Effects
from capsule_installer.op.hold import place_hold, remove_hold
from capsule_installer.op.installed import Installation, encode_installed_marker
from capsule_installer.op.journal import Journal
from capsule_installer.op.machine import Event, State, advance
from capsule_installer.op.names import apply_names, sync_names
from capsule_installer.op.op_folder import OpFile, OpFolder, Summary, UnitLimits
from capsule_installer.op.outcome import commit
from capsule_installer.op.prepare import Target, find_targets, lay_beside, require_as_prepared
from capsule_installer.op.prove import Expected
from capsule_installer.op.switch_plan import make_plans
from capsule_installer.services.timers import TimerKind
from capsule_manifest.envelope import encode_record, sign
from capsule_manifest.errors import CapsuleError, Failed, Refused
from capsule_manifest.orders import ABSENT, Order
from capsule_manifest.records import PROOF_TYPE, Proof, Step, encode_proof

__all__ = ["Limits", "Transaction", "limits_of"]

_CONTROL_MS: Final = 5_000
_PREPARE_MS: Final = 60_000
_RELOAD_MS: Final = 10_000
_POLL_MS: Final = 20
_GRACE_MS: Final = 1_000
_OVERHEAD_MS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long steps may take, ms. `stop` and `start` are sums over all units, one by one."""

    stop_ms: int
    start_ms: int
    prove_ms: int
    d1_ms: int
    d2_ms: int

    @property
    def steps_ms(self) -> int:
        """Return what the first deadline leaves for declared steps; its timer has the last word."""
        return max(_CONTROL_MS, self.d1_ms - self.stop_ms - self.prove_ms - _OVERHEAD_MS)


def limits_of(order: Order, old: Installation | None, new: Installation) -> Limits:
    """Return the limits of an op.

    Raises:
        Refused: `deadline-too-short` when the units' own limits don't fit into the order's D1.
    """
    stopping = {unit.name: unit.stop_timeout_ms for unit in old.specs} if old else {}
    stopping |= {unit.name: unit.stop_timeout_ms for unit in new.specs}
    stop_ms = sum(stopping.values())
    start_ms = sum(unit.start_timeout_ms for unit in new.specs)
    soak_ms = max((unit.soak_ms for unit in new.specs), default=0)
    if stop_ms + start_ms + soak_ms > order.d1_ms:
        raise Refused(
            "deadline-too-short",
            "the units may take longer than the first deadline",
            expected=f"stop {stop_ms} + start {start_ms} + soak {soak_ms} ms within d1",
            got=f"d1 {order.d1_ms} ms",
        )
    return Limits(
        stop_ms=stop_ms,
        start_ms=start_ms,
        # Units become ready one after the other at worst, then soak together.
        prove_ms=start_ms + soak_ms,
        d1_ms=order.d1_ms,
        d2_ms=order.d2_ms,
    )


class Transaction:
    """Carry out one op. The caller holds the host's lock and undoes it when `run` raises."""

    def __init__(
        self,
        *,
        effects: Effects,
        op: OpFolder,
        order: Order,
        old: Installation | None,
        new: Installation,
        journal: Journal,
    ) -> None:
        self._effects = effects
        self._op = op
        self._order = order
        self._old = old
        self._new = new
        self._journal = journal
        self._limits = limits_of(order, old, new)
        self._d1_at_ms = 0
        self._d2_at_ms = 0
        self._targets: list[Target] = []
        self.state = State.ACCEPTED

    def run(self) -> None:
        """Take the op to COMMITTED.

        Raises:
            CapsuleError: the step's own error; `step-timeout`; `confirm-timeout`;
                `op-restored` when a timer decided first. `state` then says how far it came.
        """
        limits = self._limits
        # It takes a moment, and is waited for at its own step, past the waits for the disk.
        self._effects.worker.begin(self._op, level=self._order.guard_level)
        steps: list[tuple[Event, int, Callable[[int], None]]] = [
            (Event.PREPARE, _PREPARE_MS, self._prepare),
            (Event.INTEND, _CONTROL_MS, self._intend),
            (Event.ARM, _CONTROL_MS, self._arm),
            (Event.GUARD, _CONTROL_MS, self._guard),
            (Event.HOLD, _CONTROL_MS, self._hold),
            (Event.COPY_UNITS, _CONTROL_MS + _RELOAD_MS, self._copy_units),
            (Event.START_D1, _CONTROL_MS, self._start_d1),
            (Event.STOP, limits.stop_ms + _CONTROL_MS, self._stop),
            (Event.SWITCH, _CONTROL_MS, self._switch),
            (Event.RUN_STEPS, limits.steps_ms, self._run_steps),
            (Event.RELEASE_NETWORK, _CONTROL_MS, self._release_network),
            (Event.UNHOLD, _CONTROL_MS, self._unhold),
            (Event.START, limits.start_ms + _CONTROL_MS, self._start),
            (Event.PROVE, limits.prove_ms + _CONTROL_MS, self._prove),
            (Event.COMMIT, limits.d2_ms + _GRACE_MS, self._commit),
        ]
        for event, limit_ms, action in steps:
            self._step(event, limit_ms, action)

    def _step(self, event: Event, limit_ms: int, action: Callable[[int], None]) -> None:
        clock = self._effects.clock
        target = advance(self.state, event)
        began_ms = clock.boot_ms()
        self._journal.started(event, limit_ms)
        try:
            action(began_ms + limit_ms)
            took_ms = clock.boot_ms() - began_ms
            if took_ms > limit_ms:
                raise Failed(
                    "step-timeout", "a step took longer than it may",
                    expected=f"within {limit_ms} ms", got=f"{took_ms} ms", where=event,
                )  # fmt: skip
        except CapsuleError as error:
            self._journal.failed(event, clock.boot_ms() - began_ms, str(error))
            raise
        self._journal.done(Step(name=event, took_ms=took_ms, limit_ms=limit_ms))
        self.state = target

    def _prepare(self, until_ms: int) -> None:
        effects = self._effects
        marker = encode_installed_marker(effects.signer, self._new, self._order)
        targets = find_targets(effects, self._order, self._old, self._new, marker)
        plans = make_plans((target.change for target in targets), self._op.op_id)
        self._op.prepare(
            summary=Summary(
                source=self._order.prior,
                target=self._order.generation,
                boot_id=effects.clock.boot_id(),
                began_ms=effects.clock.boot_ms(),
                manager=effects.services.name,
            ),
            plans=plans,
            old=_limits_by_unit(self._old),
            new=_limits_by_unit(self._new),
            absent_after_restore=self._order.prior == ABSENT,
            images=self._old.images if self._old else (),
        )
        lay_beside(effects, self._op.op_id, targets, plans.clean)
        self._targets = targets
        # An engine may have dropped what was staged.
        keep_images(effects, self._old, self._new, until_ms)

    def _intend(self, until_ms: int) -> None:
        del until_ms
        self._op.intend()

    def _arm(self, until_ms: int) -> None:
        # Up to the first deadline's own timer nothing is stopped, but names have changed.
        covered_ms = 4 * _CONTROL_MS + _RELOAD_MS + _GRACE_MS
        self._start_timer(TimerKind.ARM, until_ms + covered_ms)

    def _guard(self, until_ms: int) -> None:
        # `order_check` refused every level that this host can't arm.
        order = self._order
        self._effects.worker.arm(
            self._op, level=order.guard_level, policy=order.guard_policy, until_ms=until_ms
        )

    def _hold(self, until_ms: int) -> None:
        del until_ms
        place_hold(self._effects.disk, self._effects.layout, self._op)

    def _copy_units(self, until_ms: int) -> None:
        del until_ms
        plan = self._op.plan(OpFile.PLAN_UNITS)
        apply_names(self._effects.disk, plan)
        # A commit must not lose them; a folder of their own, so an fsync of their own.
        sync_names(self._effects.disk, plan, "new units' names")
        # The slow part of a switch, done while the old services still run.
        self._effects.services.reload(_RELOAD_MS)
        wait_until_calm(self._effects.processes, self._effects.clock)

    def _start_d1(self, until_ms: int) -> None:
        del until_ms
        self._d1_at_ms = self._effects.clock.boot_ms() + self._limits.d1_ms
        self._start_timer(TimerKind.D1, self._d1_at_ms)
        # From now on a restore must stop and start services.
        self._op.link(OpFile.SUMMARY, OpFile.STOPPING)

    def _stop(self, until_ms: int) -> None:
        del until_ms
        limits = {unit.name: unit for unit in _limits_by_unit(self._new)}
        limits |= {unit.name: unit for unit in _limits_by_unit(self._old)}
        for unit in limits.values():
            self._effects.services.stop(unit.name, unit.stop_ms)

    def _switch(self, until_ms: int) -> None:
        del until_ms
        require_as_prepared(self._effects.disk, self._targets, self._old, self._op.op_id)
        plan = self._op.plan(OpFile.PLAN_SWITCH)
        apply_names(self._effects.disk, plan)
        sync_names(self._effects.disk, plan, "switched names")

    def _run_steps(self, until_ms: int) -> None:
        new = self._new
        self._effects.worker.run(
            self._op,
            new.guarded_steps,
            folder=new.folder,
            environment={
                "CAPSULE_ID": new.marker.capsule,
                "CAPSULE_COMMIT": new.commit,
                "CAPSULE_GENERATION": new.marker.generation,
            },
            until_ms=until_ms,
        )

    def _release_network(self, until_ms: int) -> None:
        del until_ms
        self._effects.worker.release(self._op)

    def _unhold(self, until_ms: int) -> None:
        del until_ms
        remove_hold(self._effects.disk, self._effects.layout)

    def _start(self, until_ms: int) -> None:
        if self._new.images:
            self._effects.images.require(self._new.images, until_ms)
        for unit in self._new.specs:
            self._effects.services.start(unit.name, unit.start_timeout_ms)

    def _prove(self, until_ms: int) -> None:
        effects, new = self._effects, self._new
        expected = Expected(
            capsule=new.marker.capsule,
            commit=new.commit,
            generation=new.marker.generation,
            folder=new.folder,
            images=new.images,
            units_folder=effects.layout.units,
        )
        units = effects.prover.prove(new.specs, expected, min(until_ms, self._d1_at_ms))
        proof = Proof(
            op_id=self._op.op_id,
            node=effects.node,
            capsule=new.marker.capsule,
            generation=new.marker.generation,
            boot_id=effects.clock.boot_id(),
            units=units,
        )
        # The second timer runs before the first one is told to stand down.
        self._d2_at_ms = effects.clock.boot_ms() + self._limits.d2_ms
        self._start_timer(TimerKind.D2, self._d2_at_ms)
        envelope = sign(encode_proof(proof), payload_type=PROOF_TYPE, signer=effects.signer)
        self._op.publish_proof(encode_record(envelope))

    def _start_timer(self, kind: TimerKind, at_ms: int) -> None:
        self._effects.timers.start(self._op.op_id, kind, at_ms)
        self._journal.deadline(kind, at_ms)

    def _commit(self, until_ms: int) -> None:
        del until_ms
        if self._order.confirm == "local":
            commit(self._effects, self._op, self._order, by="local")
        clock = self._effects.clock
        while True:
            outcome = self._op.outcome()
            if outcome is not None and outcome.result == "committed":
                return
            if outcome is not None:
                raise Failed("op-restored", "the host has decided to restore", got=outcome.by)
            if clock.boot_ms() >= self._d2_at_ms:
                raise Failed(
                    "confirm-timeout", "no confirm came in time",
                    expected=f"within {self._limits.d2_ms} ms of the proof",
                )  # fmt: skip
            clock.sleep_ms(_POLL_MS)


def _limits_by_unit(installation: Installation | None) -> list[UnitLimits]:
    if installation is None:
        return []
    return [
        UnitLimits(name=unit.name, stop_ms=unit.stop_timeout_ms, start_ms=unit.start_timeout_ms)
        for unit in installation.specs
    ]
