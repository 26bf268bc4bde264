"""What a run took, from what it left: the epoch's events, signed receipts, the staging's answer.

Everything here is a median over nodes, in milliseconds; `None` where nothing of the kind happened.
"""

import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.old_algorithm import Costs

__all__ = ["Measured", "events_of", "measure", "pair_ms", "window_ms"]

Fields = Mapping[str, Any]
_WINDOW = ("stop", "switch", "run-steps", "release-network", "unhold", "start", "prove")
_INSTALL = _WINDOW[1:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The durations of one run that the old transaction is walked through with."""

    stage_ms: int | None
    drain_ms: int | None
    stop_ms: int | None
    install_ms: int | None
    restore_ms: int | None
    timeout_ms: int | None

    def costs(self) -> Costs:
        """Return them as the old transaction's costs.

        Raises:
            ValueError: one was not measured; a guess in its place would be no measurement.
        """
        values = {name: getattr(self, name) for name in Measured.__slots__}
        missing = [name for name, value in values.items() if value is None]
        if missing:
            message = f"the run measured no {', '.join(missing)}"
            raise ValueError(message)
        return Costs(**values)


def events_of(home: Path, epoch: str) -> list[Fields]:
    """Return an epoch's events in order; every controller of the epoch appended to one file."""
    [path] = home.rglob(f"rollouts/{epoch}/events.ndjson")
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]


def pair_ms(events: Iterable[Fields], first: str, then: str) -> dict[str, int]:
    """Return, for each node, the time from its first event `first` to the next `then`."""
    began: dict[str, int] = {}
    took: dict[str, int] = {}
    for event in events:
        node = event.get("node", "")
        if event["event"] == first:
            began.setdefault(node, event["at_ms"])
        elif event["event"] == then and node in began and node not in took:
            took[node] = event["at_ms"] - began[node]
    return took


def window_ms(receipt: Fields) -> int | None:
    """Return the stopped window that a receipt of an install tells of.

    For a committed op it is from the stop to proved. A receipt lists only steps that ended well, so
    of a restored op it is the least that it was; None when `rescue.sh`, which keeps no times, was
    the one that restored.
    """
    restores = _sum(receipt, lambda name: name.startswith("restore-"))
    if receipt["result"] != "committed" and not restores:
        return None
    return restores + _sum(receipt, _WINDOW.__contains__)


def measure(
    *,
    staged: Fields,
    events: list[Fields],
    receipts: Iterable[Fields],
    timeout_ms: int | None,
) -> Measured:
    """Return the medians of a run. `receipts` are those of its installs."""
    kept = list(receipts)
    committed = [receipt for receipt in kept if receipt["result"] == "committed"]
    restored = [receipt for receipt in kept if receipt["result"] == "restored"]
    restores = (_sum(receipt, lambda name: name.startswith("restore-")) for receipt in restored)
    return Measured(
        stage_ms=_median(
            node["took_ms"] for node in staged["nodes"].values() if node["state"] == "staged"
        ),
        drain_ms=_median(pair_ms(events, "HoldTaken", "StopIntended").values()),
        stop_ms=_median(_sum(receipt, "stop".__eq__) for receipt in committed),
        install_ms=_median(_sum(receipt, _INSTALL.__contains__) for receipt in committed),
        restore_ms=_median(took for took in restores if took),
        timeout_ms=timeout_ms,
    )


def _sum(receipt: Fields, chosen: Any) -> int:
    return sum(int(step["took_ms"]) for step in receipt["steps"] if chosen(step["name"]))


def _median(values: Iterable[int]) -> int | None:
    found = list(values)
    return round(statistics.median(found)) if found else None
