"""Stop every staging at every write, cut the power there, stop its repetition too.

A *deed* is an enrolment or a staging, done to its end by repeating the same request, as a
controller does. For each of its writes the program is stopped before, within and after it, and then
killed or left without power, with the disks that may be left. Two things must hold at once: a
marker that is there speaks the truth, byte by byte, and nothing that the host told anybody is
forgotten. Then the request is repeated, is stopped again, and repeated once more: the release must
be staged whole, and the chain of receipts unbroken.
"""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache

from capsule_installer.care.verify_host import HostVerifier
from capsule_installer.host.identity import load_node_key
from capsule_installer.host.layout import make_layout
from capsule_installer.host.receipts import verify_chain
from capsule_installer.system.disk import Disk
from capsule_installer.verbs.trust import update_policy
from capsule_manifest.envelope import sign
from capsule_manifest.errors import CapsuleError
from capsule_manifest.policy import POLICY_TYPE, encode_policy
from capsule_manifest.policy_update import encode_policy_update
from capsule_manifest.release import ComponentKind
from crash.points import (
    WHOLE_STATES,
    Need,
    Photographer,
    Point,
    Report,
    Violation,
    lost_power,
    lost_power_again,
)
from support.deliveries import Capsule, Receiver, default_parts, make_capsule, part
from support.documents import TRUST_KEY
from support.model_disk import ModelDisk

__all__ = ["ROOT", "Said", "StageDeed", "enumerate_stage", "find_need", "stage_deeds"]

ROOT = "/h"


@dataclass(slots=True)
class Said:
    """What the host has answered: whether it is enrolled, what is staged, receipts, the policy."""

    enrolled: bool = False
    staged: list[str] = field(default_factory=list)
    receipts: int = 0
    policy: int = 0

    def copy(self) -> "Said":
        return Said(self.enrolled, list(self.staged), self.receipts, self.policy)


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
    yield StageDeed("taking the next policy", enrolled, _taking_policy, ())
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

    With `every` above 1 only each so many moments are looked at.

    Raises:
        Violation: with the point at which it happened.
    """
    points = _photograph(deed, report, skip)
    for done, point in enumerate([*points[:-1:every], points[-1]], start=1):
        report.points += 1
        where, said = f"{deed.name}, {point.where}", point.state
        if not report.is_known(_state(deed, point.disk, said), deep=nested):
            killed = f"{where}, killed"
            _check_and_repeat(deed, report, point.disk, said, killed, nested=nested)
        _lose_power(deed, report, point.disk, said, where, nested=nested)
        report.tell(done, len(points))


def find_need(label: str, first: str = "") -> Need | None:
    """Return what goes wrong without the fsync `label`; the deed `first` is tried first."""
    for deed in sorted(stage_deeds(), key=lambda deed: deed.name != first):
        report = Report()
        points = _photograph(deed, report, label)
        missing = [n for n, point in enumerate(points) if point.write.endswith(label)]
        if not missing:
            # What a repetition keeps of a killed run is none of the undisturbed one's fsyncs.
            missing = [len(points) - 1]
        try:
            # Only what comes after the missing fsync can differ; what was told is lost soonest.
            for point in (points[-1], *points[missing[0] :]):
                where = f"{deed.name}, {point.where}"
                _lose_power(deed, report, point.disk, point.state, where)
            # Some are needed only after another run was killed before its own fsync.
            for point in points:
                where = f"{deed.name}, {point.where}, killed"
                _check_and_repeat(deed, report, point.disk, point.state, where, nested=True)
        except Violation as violation:
            return Need(deed.name, str(violation))
    return None


def _photograph(deed: StageDeed, report: Report, skip: str) -> list[Point[Said]]:
    """Do a deed undisturbed, check it, and return the host at each moment; the last is told."""
    whole = _copy(deed.disk, skip)
    said = Said()
    photographer = Photographer(whole, said.copy)
    deed.act(_on(photographer.disk), said)
    told = photographer.told()
    _check_end(deed, whole, said, deed.name)
    report.labels |= whole.labels
    return [*photographer.points, told]


def _lose_power(
    deed: StageDeed,
    report: Report,
    model: ModelDisk,
    said: Said,
    where: str,
    *,
    nested: bool = False,
    few: bool = False,
) -> None:
    losses = lost_power_again(model) if few else lost_power(model)
    for index, (how, disk) in enumerate(losses):
        # A repetition is stopped only where all is lost or kept, as in the other half.
        deep = nested and index < WHOLE_STATES
        _boot(disk)
        if not report.is_known(_state(deed, disk, said), deep=deep):
            lost = f"{where}, power lost: {how}"
            _check_and_repeat(deed, report, disk, said, lost, nested=deep)


def _check_and_repeat(
    deed: StageDeed, report: Report, disk: ModelDisk, said: Said, where: str, *, nested: bool
) -> None:
    _check_now(deed, disk, said, where)
    whole = disk.copy()
    photographer = Photographer(whole, said.copy)
    answered = _repeat(deed, photographer.disk if nested else whole, where)
    report.recoveries += 1
    if not report.is_known(("repeated", _state(deed, whole, answered))):
        _check_end(deed, whole, answered, where)
    for point in photographer.points:
        report.points += 1
        deeper = f"{where}; the repetition {point.where}"
        if not report.is_known(_state(deed, point.disk, said)):
            _check_and_repeat(deed, report, point.disk, said, f"{deeper}, killed", nested=False)
        _lose_power(deed, report, point.disk, said, deeper, few=True)
    # What the first attempt left without its fsync must be durable when the second one answers.
    if nested:
        _lose_power(deed, report, whole, answered, f"{where}; the repetition has answered")


def _state(deed: StageDeed, disk: ModelDisk, said: Said) -> Hashable:
    """Return what the repetition and the checks depend on; two equal ones end equally."""
    told = (said.enrolled, tuple(said.staged), said.receipts, said.policy)
    return deed.name, disk.fingerprint(), told


def _repeat(deed: StageDeed, disk: Disk, where: str) -> Said:
    said = Said()
    try:
        deed.act(_on(disk), said)
    except (CapsuleError, OSError, AssertionError) as error:
        raise Violation(f"{where}: repeating it failed: {error!r}") from error
    return said


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
        if said.policy:
            assert receiver.state.policy().version == said.policy, "the policy is forgotten"
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


def _taking_policy(receiver: Receiver, said: Said) -> None:
    receiver.host.prepare()
    newer = replace(receiver.policy, version=2)
    record = sign(encode_policy(newer), payload_type=POLICY_TYPE, signer=TRUST_KEY)
    lock = receiver.host.take_lock()
    try:
        _, after, _ = update_policy(receiver.host, encode_policy_update([record]))
        said.policy = after.version
        said.receipts = len(receiver.chain().read_all())
    finally:
        lock.release()


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


def _boot(disk: ModelDisk) -> None:
    """Forget what is bound to the boot: to the next one it says the same as no file."""
    kept = make_layout(ROOT).kept
    if disk.stat(kept) is not None:
        disk.unlink(kept)


def _on(disk: Disk) -> Receiver:
    return Receiver(ROOT, disk=disk, uid=0)


@cache
def _one() -> Capsule:
    return make_capsule()


@cache
def _two() -> Capsule:
    more = part("more", ComponentKind.HELPER, {"tool": b"#!/bin/sh\n"}, modes={"tool": 0o755})
    return make_capsule((*default_parts("two"), more), counter=8)
