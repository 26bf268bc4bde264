"""What both halves share: the moments of one run, what was tried already, how it is told.

One run of a deed on a watched disk gives a copy of the host at each moment at which the program can
be stopped. Such a copy owes nothing to the program's clean-up code, just as after a real kill.
"""

import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Generic, TypeVar

from support.crashing_disk import CrashingDisk, Moment
from support.model_disk import ModelDisk, survivor, survivors

__all__ = [
    "NEEDED",
    "NEEDED_ELSEWHERE",
    "WHOLE_STATES",
    "Half",
    "Need",
    "Photographer",
    "Point",
    "Report",
    "Violation",
    "lost_power",
    "lost_power_again",
]

StateT = TypeVar("StateT")


class Half(StrEnum):
    """The two halves of what a host does."""

    INSTALL = "install"
    STAGE = "stage"


NEEDED: Final[Mapping[Half, Mapping[str, str]]] = {
    Half.INSTALL: {
        "found name": "upgrade",
        "hold's name": "upgrade",
        "hold's removal": "upgrade",
        "intent's name": "upgrade",
        "kept copy's data": "upgrade without second names",
        "new folder's name": "first install",
        "new units' names": "upgrade",
        "op file's data": "upgrade",
        "prepared op files' names": "upgrade",
        "published file's name": "upgrade",
        "removed markers": "collection",
        "removed names": "rollback right after an upgrade",
        "removed ops' names": "collection",
        "replaced file's name": "upgrade",
        "restored names": "upgrade after a restore",
        "result's name": "rollback right after an upgrade",
        "switched names": "upgrade",
        "temporary file's data": "upgrade",
        "waiting and kept names": "upgrade",
        "waiting file's data": "upgrade",
    },
    Half.STAGE: {
        "found name": "enrolment",
        "new folder's name": "enrolment",
        "published file's name": "enrolment",
        "replaced file's name": "first staging",
        "staged content": "first staging",
        "temporary file's data": "enrolment",
        "withdrawn marker's name": "staging with another value",
    },
}
"""Each fsync of both halves, and a deed that goes wrong without it."""

NEEDED_ELSEWHERE: Final[Mapping[str, str]] = {
    "finished load's note": "test_the_note_of_a_finished_load_does_not_come_back",
    "kept file's data": "test_without_any_one_fsync_an_edit_could_be_lost",
    "kept file's name": "test_without_any_one_fsync_an_edit_could_be_lost",
    "late edit's name": "test_without_its_fsync_an_edit_made_during_an_op_could_be_lost",
    "loaded image": "test_the_store_is_durable_before_a_load_is_said_to_be_done",
    "name of what is set aside": "test_without_any_one_fsync_an_edit_could_be_lost",
    "put-back file's data": "test_without_its_fsync_what_was_put_back_could_come_undone",
    "put-back file's name": "test_without_its_fsync_what_was_put_back_could_come_undone",
    "spent reserve's name": ("test_space_comes_back_only_when_the_spent_reserve_is_durably_gone"),
    "switched link's name": "test_a_link_leads_to_the_old_or_the_new_target",
}
"""Fsyncs that no deed reaches, a full disk's and a real host's; and a test that misses each."""

WHOLE_STATES: Final = 2
"""The first so many of `lost_power` are: no change of names kept, and all of them kept."""

# With more changes of names than this, only the newest is also lost alone and kept alone: the
# others were, after the writes that made them.
_CHANGES_MAX: Final = 24
_PROGRESS_S: Final = 20.0


class Violation(AssertionError):
    """What must hold did not; the text says where the program was stopped."""


@dataclass(frozen=True, slots=True)
class Need:
    """What goes wrong in `deed` without an fsync."""

    deed: str
    violation: str


@dataclass(frozen=True, slots=True)
class Point(Generic[StateT]):
    """A host at one moment; `state` is what a half keeps beside the disk."""

    number: int
    moment: Moment
    write: str
    disk: ModelDisk
    state: StateT

    @property
    def where(self) -> str:
        return f"{self.moment} write {self.number}: {self.write}"


class Photographer(Generic[StateT]):
    """Keep a copy of `model` and of what `state` returns at each moment of what `disk` is used for.

    `disk` is to be given to the program.
    """

    def __init__(self, model: ModelDisk, state: Callable[[], StateT]) -> None:
        self._model = model
        self._state = state
        self.points: list[Point[StateT]] = []
        self.disk = CrashingDisk(model, watch=self._take)

    def told(self) -> Point[StateT]:
        """Return the host as it is when everything was done and answered."""
        return Point(
            number=self.disk.count + 1,
            moment=Moment.BEFORE,
            write="nothing is left to do",
            disk=self._model.copy(),
            state=self._state(),
        )

    def _take(self, moment: Moment, write: str) -> None:
        copied = self._model.copy()
        self.points.append(Point(self.disk.count, moment, write, copied, self._state()))


@dataclass(slots=True)
class Report:
    """How much was tried. With `name` it tells how far it is."""

    name: str = ""
    points: int = 0
    recoveries: int = 0
    labels: set[str] = field(default_factory=set)
    # Hosts that were tried already: most power losses leave what another one left as well.
    seen: set[Hashable] = field(default_factory=set)
    began: float = field(default_factory=time.monotonic)
    told: float = field(default_factory=time.monotonic)

    def is_known(self, state: Hashable, *, deep: bool = False) -> bool:
        """Say whether this was there before, as deep; remember it."""
        if (state, deep) in self.seen or (state, True) in self.seen:
            return True
        self.seen.add((state, deep))
        return False

    def tell(self, done: int, total: int) -> None:
        """Print how far this is, now and then."""
        now = time.monotonic()
        if self.name and now - self.told > _PROGRESS_S:
            self.told = now
            rate = self.points / (now - self.began)
            print(
                f"  … {self.name}: {done} of {total} moments, {self.points} points, "
                f"{self.recoveries} recoveries, {rate:.0f} points/s",
                flush=True,
            )


def lost_power_again(disk: ModelDisk) -> Iterator[tuple[str, ModelDisk]]:
    """Yield the few of `lost_power` that are tried after a program was killed before.

    The oldest change is what that program may have left without its fsync.
    """
    every = frozenset(range(len(disk.pending)))
    yield "no change of names kept, bytes lost", survivor(disk, frozenset(), "lost")
    yield "all changes of names kept, bytes lost", survivor(disk, every, "lost")
    if len(every) > 1:
        yield "all but the oldest change of names kept", survivor(disk, every - {0}, "kept")


def lost_power(disk: ModelDisk) -> Iterator[tuple[str, ModelDisk]]:
    """Yield (how, disk) for what a loss of power now may leave."""
    count = len(disk.pending)
    return survivors(disk, alone=range(0 if count <= _CHANGES_MAX else count - 1, count))
