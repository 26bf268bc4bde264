"""Stop every staging at every write, cut the power there, stop its repetition too.

A *deed* is an enrolment or a staging, done to its end by repeating the same request, as a
controller does. For each of its writes the program is stopped before, within and after it, and then
killed or left without power, with the disks that may be left. Two things must hold at once: a
marker that is there speaks the truth, byte by byte, and nothing that the host told anybody is
forgotten. Then the request is repeated, is stopped again, and repeated once more: the release must
be staged whole, and the chain of receipts unbroken.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import islice

from capsule_installer.disk import Disk
from capsule_installer.identity import load_node_key
from capsule_installer.receipts import verify_chain
from capsule_installer.verify_host import HostVerifier
from capsule_manifest.errors import CapsuleError
from capsule_manifest.release import ComponentKind
from crash.install import Report, Violation
from support.crashing_disk import CrashingDisk, Moment, Stopped
from support.deliveries import Capsule, Receiver, default_parts, make_capsule, part
from support.model_disk import ModelDisk, survivors

__all__ = ["StageDeed", "enumerate_stage", "stage_deeds"]

ROOT = "/h"
_WHOLE_STATES = 6
_CHANGES_MAX = 12


@dataclass(slots=True)
class Said:
    """What the host has answered: whether it is enrolled, what is staged, which receipts."""

    enrolled: bool = False
    staged: list[str] = field(default_factory=list)
    receipts: int = 0


@dataclass(frozen=True, slots=True)
class StageDeed:
    """One request, from `disk`. `staged` must be there whole before, during and after."""

    name: str
    disk: ModelDisk
    act: Callable[[Receiver, Said], None]
    staged: tuple[str, ...]
    fence: int = 0


def stage_deeds() -> Iterator[StageDeed]:
    """Yield every deed, each on a host that earlier ones have made."""
    blank = ModelDisk()
    blank.mkdir(ROOT, 0o755)
    blank.sync_filesystem("/", "between deeds")
    yield StageDeed("enrolment", blank, _enrolling, ())
    enrolled = _done(blank, _enrolling)
    yield StageDeed("first staging", enrolled, _staging(_one()), ())
    with_one = _done(enrolled, _staging(_one()))
    one = _one().generation
    yield StageDeed("staging a second release", with_one, _staging(_two()), (one,), 3)
    yield StageDeed("the same staging again", with_one, _staging(_one()), (one,), 3)
    other_route = _staging(_one(), max_unavailable=2)
    yield StageDeed("staging under another route", with_one, other_route, (one,), 3)
    # The generation is rendered anew: until it is sealed again it is not staged.
    yield StageDeed("staging with another value", with_one, _staging(_one(), port="9"), (), 3)
    damaged = with_one.copy()
    generation = f"{ROOT}/opt/capsule/generations/{one}"
    damaged.unlink(f"{generation}/app/main.py")
    damaged.sync_filesystem("/", "between deeds")
    yield StageDeed("staging over a damage", damaged, _staging(_one()), (), 3)


def enumerate_stage(
    deed: StageDeed, report: Report, *, skip: str = "", nested: bool = True, every: int = 1
) -> None:
    """Stop a deed everywhere and check what is left; `skip` is an fsync that is not done.

    With `every` above 1 only each so many writes are stopped, for a quick look.

    Raises:
        Violation: with the point at which it happened.
    """
    whole = _copy(deed.disk, skip)
    counter = CrashingDisk(whole)
    said = Said()
    deed.act(_on(counter), said)
    _check_end(deed, whole, said, deed.name)
    report.labels |= whole.labels
    report.points += 1
    _lose_power(deed, report, whole, said, f"{deed.name}, answered", nested=nested)
    for number in range(1, counter.count + 1, every):
        for moment in Moment:
            # Before a write is the same as after the one before it.
            if moment is not Moment.BEFORE or number == 1:
                _stop_at(deed, report, number, moment, skip=skip, nested=nested)


def _stop_at(
    deed: StageDeed, report: Report, number: int, moment: Moment, *, skip: str, nested: bool
) -> None:
    model = _copy(deed.disk, skip)
    said = Said()
    where = ""
    try:
        deed.act(_on(CrashingDisk(model, stop_at=number, moment=moment)), said)
    except Stopped as stopped:
        where = f"{deed.name}, {stopped}"
    assert where, "the deed must come as far as when it was counted"
    report.points += 1
    model.locked.clear()
    _check_and_repeat(deed, report, model, said, f"{where}, killed", nested=nested)
    _lose_power(deed, report, model, said, where, nested=nested)


def _lose_power(
    deed: StageDeed, report: Report, model: ModelDisk, said: Said, where: str, *, nested: bool
) -> None:
    few = len(model.pending) <= _CHANGES_MAX
    for index, (how, disk) in enumerate(islice(survivors(model), None if few else _WHOLE_STATES)):
        state = (deed.name, disk.fingerprint(), said.enrolled, len(said.staged), said.receipts)
        if state in report.seen:
            continue
        report.seen.add(state)
        _check_and_repeat(
            deed, report, disk, said, f"{where}, power lost: {how}", nested=nested and index < 2
        )


def _check_and_repeat(
    deed: StageDeed, report: Report, disk: ModelDisk, said: Said, where: str, *, nested: bool
) -> None:
    _check_now(deed, disk, said, where)
    whole = disk.copy()
    counter = CrashingDisk(whole)
    _repeat(deed, counter, where)
    report.recoveries += 1
    _check_end(deed, whole, said, where)
    # Every third write: the repetition makes the same writes, and each was stopped above.
    for number in range(1 + report.points % 3, counter.count + 1, 3) if nested else ():
        report.points += 1
        again = disk.copy()
        deeper = f"{where}; the repetition stopped after write {number}"
        try:
            deed.act(_on(CrashingDisk(again, stop_at=number, moment=Moment.AFTER)), Said())
        except Stopped:
            again.locked.clear()
        _check_now(deed, again, said, deeper)
        _repeat(deed, again, deeper)
        report.recoveries += 1
        _check_end(deed, again, said, deeper)


def _repeat(deed: StageDeed, disk: Disk, where: str) -> None:
    try:
        deed.act(_on(disk), Said())
    except (CapsuleError, OSError, AssertionError) as error:
        raise Violation(f"{where}: repeating it failed: {error!r}") from error


def _check_now(deed: StageDeed, disk: ModelDisk, said: Said, where: str) -> None:
    """Check what must hold at every moment, also before anything was repeated."""
    receiver = _on(disk)
    try:
        signer = load_node_key(disk, receiver.layout)
        enrolment = receiver.state.enrolment()
        assert not said.enrolled or enrolment is not None, "the enrolment is forgotten"
        if signer is None:
            assert enrolment is None, "a host is enrolled without a key"
            return
        staged = receiver.state.staged_generations()
        assert set(staged) >= {*deed.staged, *said.staged}, f"a staging is forgotten: {staged}"
        assert receiver.state.fence() >= deed.fence, "the fence is forgotten"
        verifier = HostVerifier(receiver.host)
        problems = verifier.run() if deed.name != "staging over a damage" else []
        told = [p for p in problems if not p.path.startswith(receiver.layout.store)]
        assert told == [], f"a marker lies: {told[:3]}"
        receipts = receiver.chain().read_all()
        verify_chain([item.envelope for item in receipts], signer.public)
        assert len(receipts) >= said.receipts, "a receipt is forgotten"
    except (AssertionError, CapsuleError, FileNotFoundError) as error:
        raise Violation(f"{where}: {error!r}") from error


def _check_end(deed: StageDeed, disk: ModelDisk, said: Said, where: str) -> None:
    _check_now(deed, disk, said, where)
    problems = HostVerifier(_on(disk).host).run()
    if problems:
        raise Violation(f"{where}: not whole in the end: {problems[:3]}")


def _enrolling(receiver: Receiver, said: Said) -> None:
    receiver.enrol()
    said.enrolled = True
    said.receipts = 1


def _staging(capsule: Capsule, **route: object) -> Callable[[Receiver, Said], None]:
    def act(receiver: Receiver, said: Said) -> None:
        receiver.host.prepare()
        lock = receiver.host.take_lock()
        try:
            receiver.receive(capsule, route=receiver.route(**route))  # type: ignore[arg-type]
            # The answer is on its way: from here on nothing of it may be forgotten.
            said.staged.append(capsule.generation)
            said.receipts = len(receiver.chain().read_all())
        finally:
            lock.release()

    return act


def _done(disk: ModelDisk, act: Callable[[Receiver, Said], None]) -> ModelDisk:
    after = _copy(disk, "")
    act(_on(after), Said())
    after.sync_filesystem("/", "between deeds")
    return after


def _copy(disk: ModelDisk, skip: str) -> ModelDisk:
    copied = disk.copy()
    copied.skip = frozenset({skip})
    copied.labels = set()
    return copied


def _on(disk: Disk) -> Receiver:
    return Receiver(ROOT, disk=disk, uid=0)


@cache
def _one() -> Capsule:
    return make_capsule()


@cache
def _two() -> Capsule:
    more = part("more", ComponentKind.HELPER, {"tool": b"#!/bin/sh\n"}, modes={"tool": 0o755})
    return make_capsule((*default_parts("two"), more), counter=8)
