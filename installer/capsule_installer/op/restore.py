"""Undo an op: the same as `rescue.sh`, step by step, by the program itself.

An image that the engine does not take again keeps no unit down: each old unit is started, and
whether it serves is for the check at the end to say.

Everything that it puts in place was written before the stop, so it needs no space; it may be
stopped anywhere and run again, by itself or by `rescue.sh`. The hold is removed only after all
names are back, so that a restore that fails starts nothing half-switched.

Source: design, section 9 ("Restore"); `docs/reference/rescue.md`.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from capsule_installer.op.effects import Effects
from capsule_installer.op.hold import place_hold, remove_hold
from capsule_installer.op.journal import Journal
from capsule_installer.op.names import apply_names, sync_names
from capsule_installer.op.op_folder import OpFile, OpFolder, Result, UnitLimits
from capsule_installer.op.spare import free_spare
from capsule_installer.services.base import UnitState
from capsule_manifest.errors import CapsuleError, Failed
from capsule_manifest.records import Step

__all__ = ["restore_op"]

_RELOAD_MS: Final = 10_000
_NAMES_MS: Final = 5_000
_LOAD_MS: Final = 60_000
_POLL_MS: Final = 50
_STAYS_MS: Final = 300


def restore_op(effects: Effects, op: OpFolder, *, reason: str, after_boot: bool) -> Result:
    """Undo an op with an intent unless it has committed; return how it ended.

    `after_boot` says that the op began in an earlier boot, so that nothing of it runs.

    Raises:
        Failed: `host-busy` while `rescue.sh` is restoring the same op.
    """
    disk = effects.disk
    # rescue.sh waits on the same file: two restores must not move one name.
    lock = disk.lock(f"{op.path}/{OpFile.ORDER}")
    try:
        free_spare(effects)
        # Durable with `result` only: until then a boot restores whether it finds it or not.
        if not op.link(OpFile.RESTORING, OpFile.OUTCOME):
            outcome = op.outcome()
            if outcome is not None and outcome.result == "committed":
                return Result.COMMITTED
        _note_reason(op, reason)
        journal = Journal(disk=disk, op=op, name=OpFile.STEPS_RESTORE)
        try:
            result = _Restore(effects, op, journal, after_boot=after_boot).run()
        finally:
            journal.close()
        op.finish(result)
        return result
    finally:
        lock.release()


class _Restore:
    def __init__(
        self, effects: Effects, op: OpFolder, journal: Journal, *, after_boot: bool
    ) -> None:
        self._effects = effects
        self._op = op
        self._journal = journal
        self._stops = after_boot or op.has(OpFile.STOPPING)
        self._old = op.units(OpFile.UNITS_OLD)
        self._new = op.units(OpFile.UNITS_NEW)

    def run(self) -> Result:
        is_absent = self._op.has(OpFile.ABSENT)
        try:
            self._step("restore-hold", _NAMES_MS, self._hold)
            if self._stops:
                self._step("restore-stop", self._stop_ms(), self._stop)
            self._step("restore-names", _NAMES_MS, self._names)
            self._step("restore-reload", _RELOAD_MS, self._reload)
            # An absent node keeps its hold: nothing of ours may start on it.
            if not is_absent:
                self._step("restore-unhold", _NAMES_MS, self._unhold)
                if self._op.has(OpFile.IMAGES_OLD):
                    # The journal has what failed; the unit that needs it will say so too.
                    with suppress(CapsuleError, OSError):
                        self._step("restore-images", _LOAD_MS, self._load_images)
                self._step("restore-start", 2 * self._start_ms(), self._start)
        except (CapsuleError, OSError):
            # The journal has it. The hold is still there unless all names are back.
            return Result.FAILED
        return Result.ABSENT if is_absent else Result.RESTORED

    def _step(self, name: str, limit_ms: int, action: Callable[[], None]) -> None:
        clock = self._effects.clock
        began_ms = clock.boot_ms()
        self._journal.started(name, limit_ms)
        try:
            action()
        except (CapsuleError, OSError) as error:
            self._journal.failed(name, clock.boot_ms() - began_ms, str(error))
            raise
        # A restore that is late goes on: stopping half-way would help nobody.
        self._journal.done(Step(name=name, took_ms=clock.boot_ms() - began_ms, limit_ms=limit_ms))

    def _hold(self) -> None:
        # Whoever was killed between the intent and its fsync left one that a power cut forgets,
        # but not the hold: nothing would be open then, and nothing would ever start.
        self._op.intend()
        place_hold(self._effects.disk, self._effects.layout, self._op)

    def _stop(self) -> None:
        for unit in {unit.name: unit for unit in (*self._new, *self._old)}.values():
            self._effects.services.stop(unit.name, unit.stop_ms)

    def _names(self) -> None:
        plan = self._op.plan(OpFile.PLAN_RESTORE)
        apply_names(self._effects.disk, plan)
        # `result` says that they are back, also after a power cut.
        sync_names(self._effects.disk, plan, "restored names")

    def _reload(self) -> None:
        self._effects.services.reload(_RELOAD_MS)

    def _unhold(self) -> None:
        remove_hold(self._effects.disk, self._effects.layout)

    def _load_images(self) -> None:
        """Let the engine take again what it dropped as soon as nothing ran it."""
        until_ms = self._effects.clock.boot_ms() + _LOAD_MS
        failures: list[CapsuleError | OSError] = []
        for image in self._op.images():
            try:
                self._effects.images.require([image], until_ms)
            except (CapsuleError, OSError) as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _start(self) -> None:
        for unit in self._old:
            self._effects.services.start(unit.name, unit.start_ms)
        for unit in self._old:
            self._check(unit)

    def _check(self, unit: UnitLimits) -> None:
        clock = self._effects.clock
        until_ms = clock.boot_ms() + unit.start_ms
        first = self._state(unit)
        while not first.active:
            if clock.boot_ms() >= until_ms:
                raise Failed(
                    "service-failed", "a restored unit is not active", got=first.result,
                    where=unit.name,
                )  # fmt: skip
            clock.sleep_ms(_POLL_MS)
            first = self._state(unit)
        clock.sleep_ms(_STAYS_MS)
        again = self._state(unit)
        if (again.active, again.pid) != (True, first.pid):
            raise Failed(
                "service-failed", "a restored unit does not stay up", got=again.result,
                where=unit.name,
            )  # fmt: skip

    def _state(self, unit: UnitLimits) -> UnitState:
        return self._effects.services.state(unit.name)

    def _stop_ms(self) -> int:
        return sum(unit.stop_ms for unit in (*self._old, *self._new))

    def _start_ms(self) -> int:
        return sum(unit.start_ms for unit in self._old)


def _note_reason(op: OpFolder, reason: str) -> None:
    try:
        op.note(OpFile.REASON, reason.encode())
    except Failed:
        # Why it failed is for people; that it is undone is not.
        return
