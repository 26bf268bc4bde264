"""What a controller keeps of an epoch for people: its events with their times, and hosts' reasons.

Two files of lines in the epoch's own folder. Nothing here decides anything: the ledger does, and a
lost folder costs a display. The last line may be half there after a kill.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from capsule.durable import make_folder
from capsule.receipts_store import CheckedReceipt

__all__ = ["keep_event", "keep_reason", "kept_events", "kept_reasons"]

_EVENTS: Final = "events.ndjson"
_REASONS: Final = "reasons.ndjson"


def keep_event(folder: Path, line: str) -> None:
    """Append an event's own line, as programs are told it."""
    _append(folder / _EVENTS, line)


def keep_reason(folder: Path, node: str, receipt: CheckedReceipt) -> None:
    """Append why an op of `node` ended as it did, from its signed receipt."""
    said = receipt.receipt
    row = {"node": node, "op_id": said.op_id, "result": said.result, "reason": said.reason,
           "receipt": receipt.digest}  # fmt: skip
    _append(folder / _REASONS, json.dumps(row, ensure_ascii=False))


def kept_events(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the events that are kept, oldest first."""
    yield from _lines(folder / _EVENTS)


def kept_reasons(folder: Path) -> dict[str, str]:
    """Return each op's own reason, by op id; an op that has none is missing."""
    return {row["op_id"]: row["reason"] for row in _lines(folder / _REASONS) if row["reason"]}


def _append(path: Path, line: str) -> None:
    make_folder(path.parent)
    with path.open("a", encoding="utf-8") as stream:
        stream.write(line + "\n")


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            # What a controller that was killed while it wrote has left.
            continue
        if isinstance(row, dict):
            yield row
