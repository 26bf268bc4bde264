"""What an operator decides about a running epoch, and how it reaches the controller that runs it.

A decision is a small file in the epoch's inbox, written whole; the controller carries it out in its
own thread and removes the file. Where nobody runs the epoch, the same decision is carried out by
adopting it. A decision that is repeated changes nothing the second time.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from capsule.durable import make_folder, publish_once, read_bounded
from capsule.lane.driver import Decision
from capsule.lane.proposals import (
    propose_abort,
    propose_assume_down,
    propose_lane_resume,
    propose_lane_skip,
    propose_pause,
    propose_resume,
)
from capsule.lane.state import RolloutState
from capsule_manifest.canonical import DEFAULT_LIMITS, decode, encode
from capsule_manifest.errors import Refused
from capsule_manifest.fields import root_object

__all__ = ["VERBS", "Inbox", "Wish", "check_wish", "decision_of"]

_SCHEMA: Final = "capsule-decision/1"
_SIZE_BYTES_MAX: Final = 16 * 1024
VERBS: Final = ("abort", "assume-down", "lane-resume", "lane-skip", "pause", "resume")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """One decision. `subject` is a lane or a node where the verb is about one."""

    verb: str
    subject: str
    reason: str


def check_wish(state: RolloutState, wish: Wish) -> None:
    """Refuse a decision about what the epoch does not have.

    Raises:
        Refused: `node-unknown`.
    """
    known = {"lane-resume": state.lanes, "lane-skip": state.lanes, "assume-down": state.members}
    names = known.get(wish.verb)
    if names is not None and wish.subject not in names:
        raise Refused(
            "node-unknown",
            "the epoch has no such lane" if wish.verb.startswith("lane") else "no such node",
            expected=", ".join(sorted(names)),
            got=wish.subject,
        )


def decision_of(wish: Wish) -> Decision:
    """Return what carries the decision out."""
    match wish.verb:
        case "pause":
            return lambda state: propose_pause(state, wish.reason)
        case "resume":
            return lambda state: propose_resume(state, wish.reason)
        case "abort":
            return lambda state: propose_abort(state, wish.reason)
        case "lane-resume":
            return lambda state: propose_lane_resume(state, wish.subject)
        case "lane-skip":
            return lambda state: propose_lane_skip(state, wish.subject)
        case _:
            assert wish.verb == "assume-down", wish.verb
            return lambda state: propose_assume_down(state, wish.subject)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inbox:
    """The decisions that wait for the controller of one epoch."""

    folder: Path

    def put(self, wish: Wish, name: str) -> Path:
        """Leave a decision; return its file, which is gone once it was carried out.

        Raises:
            Failed: `controller-disk`.
        """
        make_folder(self.folder)
        path = self.folder / f"{name}.json"
        publish_once(
            path,
            encode(
                {
                    "schema": _SCHEMA,
                    "verb": wish.verb,
                    "subject": wish.subject,
                    "reason": wish.reason,
                }
            ),
        )
        return path

    def waiting(self) -> list[tuple[Path, Wish]]:
        """Return what waits, by name.

        Raises:
            Refused: `json-*`, `document-*`.
        """
        if not self.folder.is_dir():
            return []
        found = []
        for path in sorted(self.folder.glob("*.json")):
            raw = read_bounded(path, _SIZE_BYTES_MAX)
            if raw is not None:
                found.append((path, _read(raw, str(path))))
        return found


def _read(raw: bytes, where: str) -> Wish:
    value = decode(raw, limits=DEFAULT_LIMITS, where=where)
    document = root_object(value, schema=_SCHEMA, name=where)
    wish = Wish(
        verb=document.text("verb", one_of=VERBS),
        subject=document.text("subject", empty=True),
        reason=document.text("reason", empty=True),
    )
    document.end()
    return wish
