"""How a running epoch is told: one line a change for people, NDJSON for programs, kept beside."""

import threading

import click

from capsule.cli.output import duration_text
from capsule.clock import utc_now
from capsule.home import ProductHome
from capsule.lane.driver import Driver
from capsule.lane.epoch import EpochEvent, TenureEvent
from capsule.lane.events import Event, Started
from capsule.lane.lane import LaneEvent
from capsule.lane.node import NodeEvent
from capsule.receipts_store import CheckedReceipt
from capsule.rollout.decisions import Wish
from capsule.rollout.epoch import epoch_folder
from capsule.rollout.kept import keep_event, keep_reason
from capsule.rollout.records import event_line
from capsule_manifest.errors import CapsuleError, ExitCode, clean, render

__all__ = ["TerminalWatch", "event_text"]

_QUIET = frozenset({"StageSeen", "HoldSeen", "SwitchSeen", "HealthSeen", "HoldReturned"})


class TerminalWatch:
    """Implement `EpochWatch` for a terminal or a program."""

    def __init__(self, home: ProductHome, epoch: str, *, as_json: bool) -> None:
        self._epoch = epoch
        self._as_json = as_json
        self._lock = threading.Lock()
        self._folder = epoch_folder(home, epoch)
        self._troubles: list[CapsuleError] = []

    def event(self, seq: int, event: Event) -> None:
        """Keep the event in the epoch's stream, and show it."""
        now = utc_now()
        line = event_line(self._epoch, seq, event, at_ms=int(now.timestamp() * 1000))
        keep_event(self._folder, line)
        if self._as_json:
            self._say(line, err=False)
        elif type(event).__name__ not in _QUIET:
            self._say(f"{now:%H:%M:%S} {event_text(event)}")

    def step(self, node: str, *, name: str, state: str, took_ms: int | None) -> None:
        """Show a step that failed; the others show themselves in the node's state."""
        if state == "failed" and not self._as_json:
            took = "" if took_ms is None else f" after {duration_text(took_ms)}"
            self._say(f"         {node}: {name} failed{took}")

    def receipt(self, node: str, receipt: CheckedReceipt) -> None:
        """Keep and show why an op was not committed."""
        said = receipt.receipt
        keep_reason(self._folder, node, receipt)
        if said.reason and not self._as_json:
            self._say(f"         {node}: {said.result}: {said.reason}")

    def trouble(self, node: str, error: CapsuleError) -> None:
        """Show what an operator has to look at, whatever the op came to."""
        self._troubles.append(error)
        self._say(f"{node}: {render(error)}")

    def refused(self, wish: Wish, error: CapsuleError) -> None:
        """Show a decision that could not be carried out."""
        self._say(f"{wish.verb} {wish.subject}: {render(error)}")

    def turned(self, driver: Driver) -> None:
        """Nothing is shown between two events."""

    def codes(self) -> tuple[ExitCode, ...]:
        """Return the exit codes of what was shown as trouble."""
        return tuple(error.exit_code for error in self._troubles)

    def _say(self, text: str, *, err: bool = True) -> None:
        with self._lock:
            click.echo(text if not err else "\n".join(clean(line) for line in text.splitlines()),
                       err=err)  # fmt: skip


def event_text(event: Event) -> str:
    """Return an event as a line for people: of what, and what became true."""
    name = _words(type(event).__name__)
    detail = getattr(event, "reason", "")
    told = f"{name}: {detail}" if detail else name
    if isinstance(event, NodeEvent):
        return f"{event.node}: {told}"
    if isinstance(event, LaneEvent):
        return f"lane {event.lane}: {told}"
    if isinstance(event, EpochEvent | TenureEvent | Started):
        return f"epoch: {told}"
    return told


def _words(name: str) -> str:
    return "".join(f" {c.lower()}" if c.isupper() else c for c in name).strip()
