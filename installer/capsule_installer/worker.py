"""Run the declared steps of a release while its services are stopped, such as a migration.

The supervisor runs no hook in its own process: each step is a process group of its own, whose name
is in the op's folder before it begins, so that rescue can always end it.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from capsule_installer.clock import Clock
from capsule_installer.op_folder import OpFile, OpFolder
from capsule_installer.processes import CLEAN_ENVIRONMENT, Processes, ProcessFacts
from capsule_manifest.errors import Failed

__all__ = ["StepWorker", "Worker"]


class Worker(Protocol):
    """Run guarded steps."""

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
            Failed: `guarded-step-failed`, `process-timeout`, `process-not-started`.
        """
        ...


class StepWorker:
    """Run steps as plain processes: guard level L0, which monitors nothing."""

    def __init__(self, *, processes: Processes, clock: Clock) -> None:
        self._processes = processes
        self._clock = clock

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
