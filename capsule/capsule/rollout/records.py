"""What the controller keeps of rollouts in its own folder: the last preflight, event streams.

Nothing here decides anything: the ledger does. A lost folder costs a preflight and a display.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

from capsule.durable import make_folder, read_bounded, replace_file
from capsule.home import ProductHome
from capsule.rollout.preflight import Preflight, decode_preflight, encode_preflight

if TYPE_CHECKING:
    from capsule.lane.events import Event

__all__ = ["EVENT_SCHEMA", "event_line", "keep_preflight", "last_preflight"]

EVENT_SCHEMA: Final = 1
_SIZE_BYTES_MAX: Final = 8 * 1024 * 1024


def keep_preflight(home: ProductHome, preflight: Preflight) -> None:
    """Keep a result as the last one. Raises: `controller-disk`."""
    make_folder(home.folder)
    replace_file(_path(home), encode_preflight(preflight))


def last_preflight(home: ProductHome) -> Preflight | None:
    """Return the last result. Raises: `json-*`, `document-*`."""
    raw = read_bounded(_path(home), _SIZE_BYTES_MAX)
    return None if raw is None else decode_preflight(raw, where=str(_path(home)))


def event_line(epoch: str, seq: int, event: "Event", *, at_ms: int) -> str:
    """Return one line of the NDJSON stream. `at_ms` is wall time, for people."""
    return json.dumps(
        {
            "schema": EVENT_SCHEMA,
            "epoch": epoch,
            "seq": seq,
            "at_ms": at_ms,
            "event": type(event).__name__,
            **asdict(event),
        },
        ensure_ascii=False,
    )


def _path(home: ProductHome) -> Path:
    return home.folder / "preflight.json"
