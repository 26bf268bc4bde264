"""The worker of an op under a guard, as the supervisor sees it: armed, then told steps, then ended.

The supervisor reads no address, name or command line of a step: the guard's own program does, and
says what it found in words.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from capsule_installer.guard.counters import Traffic
from capsule_installer.guard.finding import FINDINGS_MAX, Finding, decode_finding
from capsule_installer.guard.record import note_armed, note_findings
from capsule_installer.op.op_folder import OpFile, OpFolder
from capsule_installer.op.worker import Worker
from capsule_installer.system.clock import Clock
from capsule_installer.system.conversation import Conversation, Conversations
from capsule_installer.system.processes import CLEAN_ENVIRONMENT, Processes
from capsule_manifest.errors import Failed, Refused

__all__ = ["GuardedWorker"]

_UNGUARDED: Final = frozenset({"L0", "L1"})
_END_MS: Final = 2_000
_OUTPUT_CHARACTERS: Final = 300


class GuardedWorker:
    """Run steps under the guard that the order names; at L0 and L1 as `plain` runs them.

    `program` is the argv of the guard's own program. `on_refusal` hears of a level that could not
    be armed; `traffic` is what this host's network has sent.
    """

    def __init__(
        self,
        *,
        plain: Worker,
        conversations: Conversations,
        processes: Processes,
        clock: Clock,
        program: Sequence[str],
        levels: tuple[str, ...],
        on_refusal: Callable[[str], None],
        traffic: Callable[[], Traffic],
    ) -> None:
        self._plain = plain
        self._conversations = conversations
        self._processes = processes
        self._clock = clock
        self._program = program
        self._levels = levels
        self._on_refusal = on_refusal
        self._traffic = traffic
        self._counts = False
        self._guard: Conversation | None = None
        self._killed: Conversation | None = None
        self._why_not = "it was not begun"
        self._level = "L0"
        self._has_run = False
        self._reports_only = False
        self._findings: list[Finding] = []
        self._found_count = 0

    def levels(self) -> tuple[str, ...]:
        """Return what this host can arm. Source: `Worker.levels`."""
        return self._levels

    def begin(self, op: OpFolder, *, level: str) -> None:
        """Start the guard's program and tell it the level. Source: `Worker.begin`."""
        self._level = level
        if level in _UNGUARDED:
            return
        try:
            self._guard = self._conversations.start(self._program)
        except Failed as error:
            self._why_not = error.got
            return
        facts = self._processes.facts(self._guard.pid)
        if facts is not None:
            op.note(OpFile.WORKER, f"{facts.pid} {facts.started_ticks}\n".encode())
        # It does nothing before this: by now rescue could end it.
        self._guard.say(json.dumps({"level": level}).encode())

    def arm(self, op: OpFolder, *, level: str, policy: str, until_ms: int) -> None:
        """Wait for the guard's canary. Source: `Worker.arm`."""
        if level in _UNGUARDED:
            self._counts = level == "L1"
            if self._counts:
                note_armed(op, level)
            return
        self._reports_only = policy == "report"
        why = self._why_not if self._guard is None else self._await_armed(until_ms)
        if why is not None:
            self._kill()
            # On a full disk only the hint is missing.
            with suppress(Failed):
                self._on_refusal(level)
            raise Failed("guard-not-armed", "the network guard does not hold", got=why)
        note_armed(op, level)

    def run(
        self,
        op: OpFolder,
        steps: Sequence[Sequence[str]],
        *,
        folder: str,
        environment: Mapping[str, str],
        until_ms: int,
    ) -> None:
        """Run all steps. Source: `Worker.run`."""
        if self._level in _UNGUARDED:
            base = self._traffic() if self._counts else None
            try:
                self._plain.run(
                    op, steps, folder=folder, environment=environment, until_ms=until_ms
                )
            finally:
                if base is not None and steps:
                    # Others send too, so it is told and never a reason to fail.
                    sent = Finding(call="counted", target=self._traffic().since(base))
                    note_findings(op, [sent])
            return
        for argv in steps:
            if self._guard is None:
                raise Failed(
                    "guarded-step-failed", "there is no guard to run a step under",
                    expected=self._level, where=" ".join(argv),
                )  # fmt: skip
            self._has_run = True
            step = {
                "argv": list(argv),
                "folder": folder,
                "environment": {**CLEAN_ENVIRONMENT, **environment},
            }
            self._guard.say(json.dumps({"run": step}).encode())
            where = " ".join(argv)
            code, output = self._attend(op, until_ms, where)
            if self._found_count > FINDINGS_MAX:
                # Only now: a step that tries for ever must not keep the disk busy too.
                note_findings(op, self._findings, more=self._found_count - FINDINGS_MAX)
            if code != 0:
                raise Failed(
                    "guarded-step-failed", "a declared step failed",
                    got=f"exit {code}: {output.strip()[-_OUTPUT_CHARACTERS:]}", where=where,
                )  # fmt: skip

    def release(self, op: OpFolder) -> None:
        """End the guard with everything in it. Source: `Worker.release`."""
        guard = self._guard
        if guard is None:
            return
        if not self._has_run:
            self._kill()
            return
        # What a step left behind may have tried since.
        guard.close()
        until_ms = self._clock.boot_ms() + _END_MS
        while (said := self._hear(until_ms)) and "finding" in said:
            self._found(op, said["finding"], "a declared step, after its end")
        self._kill()
        # Silent or ended, by itself or by another's hand: only this says that nothing is left.
        if not self._await_gone():
            raise Failed("guarded-step-failed", "something of a declared step does not end")

    def abandon(self) -> bool:
        """Kill whatever is left of the guard, and wait for it. Source: `Worker.abandon`."""
        self._kill()
        return self._await_gone()

    def _await_gone(self) -> bool:
        # Its first process is gone only once everything in its namespace is.
        if self._killed is not None and not self._killed.await_gone(_END_MS):
            return False
        self._killed = None
        return True

    def _await_armed(self, until_ms: int) -> object:
        """Return None when the guard stands, and why not otherwise."""
        try:
            said = self._hear(until_ms)
        except Failed as error:
            return error.got
        if said is None:
            return "no answer in time"
        return None if "armed" in said else said.get("failed", "it ended")

    def _attend(self, op: OpFolder, until_ms: int, where: str) -> tuple[int, str]:
        """Return a step's exit code and its output."""
        while True:
            said = self._hear(until_ms)
            if said is None:
                self._kill()
                raise Failed(
                    "process-timeout", "a program did not end in time",
                    expected="within the limit of guarded steps", where=where,
                )  # fmt: skip
            match said:
                case {"finding": item}:
                    self._found(op, item, where)
                case {"exit": int() as code, "output": str() as output}:
                    return code, output
                case _ if not said:
                    self._kill()
                    raise Failed("guarded-step-failed", "the guard ended", where=where)
                case _:
                    raise self._garbled(json.dumps(said))

    def _found(self, op: OpFolder, item: object, where: str) -> None:
        try:
            finding = decode_finding(item)
        except Refused as error:
            raise self._garbled(error.got) from error
        self._found_count += 1
        if self._found_count <= FINDINGS_MAX:
            self._findings.append(finding)
            note_findings(op, self._findings)
        if self._reports_only:
            return
        # At once: it is denied already, and every moment more is one in which nothing serves.
        self._kill()
        raise Failed(
            "network-violation", "a declared step tried to use a network",
            got=finding.text(), where=where,
        )  # fmt: skip

    def _hear(self, until_ms: int) -> dict[str, Any] | None:
        """Return what the guard says next, {} when it has ended, None when the time is over."""
        assert self._guard is not None
        line = self._guard.hear(max(1, until_ms - self._clock.boot_ms()))
        if line is None:
            return None
        try:
            said = json.loads(line) if line else {}
        except (ValueError, RecursionError) as error:
            raise self._garbled(line.decode("utf-8", "backslashreplace")) from error
        if not isinstance(said, dict):
            raise self._garbled(line.decode("utf-8", "backslashreplace"))
        return said

    def _garbled(self, got: object) -> Failed:
        """End a guard that says what none says, and return the failure to raise."""
        self._kill()
        return Failed(
            "guarded-step-failed", "the guard can't be understood",
            got=str(got)[:_OUTPUT_CHARACTERS],
        )  # fmt: skip

    def _kill(self) -> None:
        if self._guard is not None:
            self._guard.kill()
            self._killed = self._guard
            self._guard = None
