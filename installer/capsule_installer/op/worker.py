"""Run the declared steps of a release while its services are stopped, such as a migration.

The supervisor runs no hook in its own process: each step is a process group of its own, whose name
is in the op's folder before it begins, so that rescue can always end it.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from capsule_installer.op.op_folder import OpFile, OpFolder
from capsule_installer.system.clock import Clock
from capsule_installer.system.processes import CLEAN_ENVIRONMENT, Processes, ProcessFacts
from capsule_manifest.errors import Failed

__all__ = ["StepWorker", "Worker"]


class Worker(Protocol):
    """Run guarded steps, between `arm`, before anything is stopped, and `release`."""

    def levels(self) -> tuple[str, ...]:
        """Return the guard levels that can be armed on this host, lowest first."""
        ...

    def begin(self, op: OpFolder, *, level: str) -> None:
        """Begin to make the guard while other work goes on; `arm` says how it went."""
        ...

    def arm(self, op: OpFolder, *, level: str, policy: str, until_ms: int) -> None:
        """Wait until the guard is armed and proved. From now on no step may use a network.

        With the policy `report` a try is denied and told; with `fail` it also fails the op.

        Raises:
            Failed: `guard-not-armed`.
        """
        ...

    def run(
        self,
        op: OpFolder,
        steps: Sequence[Sequence[str]],
        *,
        folder: str,
        environment: Mapping[str, str],
        until_ms: int,
    ) -> None:
        """Run all steps in order, in `folder`, until the first that fails.

        Raises:
            Failed: `guarded-step-failed`, `process-timeout`, `process-not-started`,
                `network-violation`.
        """
        ...

    def release(self, op: OpFolder) -> None:
        """End the guard, with every process that steps have left in it.

        Raises:
            Failed: `network-violation` for what they tried since; `guarded-step-failed` when
                something of them does not end.
        """
        ...

    def abandon(self) -> bool:
        """Kill what is left of an op that failed; say whether nothing of it is alive any more."""
        ...


class StepWorker:
    """Run steps as plain processes: guard level L0, which monitors nothing."""

    def __init__(self, *, processes: Processes, clock: Clock) -> None:
        self._processes = processes
        self._clock = clock

    def levels(self) -> tuple[str, ...]:
        """Return L0 alone."""
        return ("L0",)

    def begin(self, op: OpFolder, *, level: str) -> None:
        """Begin nothing."""

    def arm(self, op: OpFolder, *, level: str, policy: str, until_ms: int) -> None:
        """Arm nothing; the receipt says "not monitored"."""
        del op, policy, until_ms
        assert level == "L0", level

    def release(self, op: OpFolder) -> None:
        """Release nothing."""

    def abandon(self) -> bool:
        """Leave steps to their own ends: each is waited for, or killed, as it runs."""
        return True

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

        def record(facts: ProcessFacts) -> None:
            op.note(OpFile.WORKER, f"{facts.pid} {facts.started_ticks}\n".encode())

        for argv in steps:
            completed = self._processes.run(
                argv,
                timeout_ms=max(1, until_ms - self._clock.boot_ms()),
                folder=folder,
                environment={**CLEAN_ENVIRONMENT, **environment},
                on_start=record,
            )
            if completed.exit_code != 0:
                raise Failed(
                    "guarded-step-failed", "a declared step failed",
                    got=f"exit {completed.exit_code}: {completed.output.strip()[-300:]}",
                    where=" ".join(argv),
                )  # fmt: skip
