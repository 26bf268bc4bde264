"""Stop every op at every write, cut the power there, stop its recovery too: old or new, whole.

A *deed* is one thing that a host does to its end: an install, a restore, a rollback, a collection.
For each write of a deed the program is stopped before, within and after it. Then either only the
program is gone (a kill) or also the power, with every disk that may be left. Recovery runs, is
stopped at each of its own writes and runs again. After that one generation must be there whole,
with its services running, the chain of receipts unbroken and everything true that was said.
"""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field

from capsule_installer.care.collect import OPS_KEPT, collect
from capsule_installer.host.receipts import verify_chain
from capsule_installer.op.accept import accept_order
from capsule_installer.op.boot import recover
from capsule_installer.op.effects import Effects
from capsule_installer.op.op_folder import Result, list_ops
from capsule_installer.op.outcome import confirm_op
from capsule_installer.op.rollback import rollback_order
from capsule_installer.op.supervisor import supervise
from capsule_manifest.errors import CapsuleError
from capsule_manifest.orders import ABSENT
from capsule_manifest.records import Marker
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
from support.install_world import Machine, World
from support.model_disk import ModelDisk
from support.staged_host import Build

__all__ = [
    "Deed",
    "deeds",
    "enumerate_deed",
    "find_need",
    "host_at",
    "photograph",
    "recovered",
]

CONFIG, MORE = "/etc/hello/hello.toml", "/srv/more/more.toml"


@dataclass(slots=True)
class Said:
    """What the host has told others, which no power loss may take back."""

    accepted: list[str] = field(default_factory=list)
    committed: list[str] = field(default_factory=list)
    ended: dict[str, Result] = field(default_factory=dict)

    def copy(self) -> "Said":
        return Said(list(self.accepted), list(self.committed), dict(self.ended))


Photo = Point[tuple[Machine, Said]]


@dataclass(frozen=True, slots=True)
class Deed:
    """One thing to do from `world`. `before` and `after` are the generations installed."""

    name: str
    world: World
    act: Callable[[World, Said], None]
    before: str
    after: str


def deeds(skip: str = "") -> Iterator[Deed]:
    """Yield every deed, each on a host that earlier deeds have made.

    `skip` is an fsync that earlier deeds don't do either where that can matter later.
    """
    world = World.fresh()
    one = world.stage(
        Build(counter=1, units=("hello.service", "old.service"), files={CONFIG: b"one\n"})
    )
    two = world.stage(
        Build(
            counter=2,
            units=("hello.service", "new.service"),
            files={CONFIG: b"two\n", MORE: b"more\n"},
        )
    )
    bad = world.stage(Build(counter=3, files={MORE: b"bad\n"}), broken=True)
    three = world.stage(Build(counter=4, units=("hello.service", "old.service"), files={}))
    first = _settled(world)
    yield Deed("first install", first, _ordering(one, "1", confirm="controller"), ABSENT,
               one.generation)  # fmt: skip
    yield Deed("first install of a broken release", first, _ordering(bad, "2"), ABSENT, ABSENT)
    with_one = _done(first, _ordering(one, "1", confirm="controller"))
    yield Deed("upgrade", with_one, _ordering(two, "3", confirm="controller"), one.generation,
               two.generation)  # fmt: skip
    unlinkable = _copy(with_one, skip="")
    _model(unlinkable).unlinkable = "/h/etc/"
    yield Deed("upgrade without second names", unlinkable, _ordering(two, "9"), one.generation,
               two.generation)  # fmt: skip
    yield Deed("upgrade to a broken release", with_one, _ordering(bad, "4"), one.generation,
               one.generation)  # fmt: skip
    # What comes after a restore must survive a power loss that forgets the restore.
    restored = _copy(with_one, skip=skip)
    _ordering(bad, "4")(restored, Said())
    yield Deed("upgrade after a restore", restored, _ordering(two, "5"), one.generation,
               two.generation)  # fmt: skip
    removed = _copy(with_one, skip=skip)
    _ordering(two, "3", confirm="controller")(removed, Said())
    yield Deed("rollback right after an upgrade", removed, _rolling_back("8"), two.generation,
               one.generation)  # fmt: skip
    with_two = _done(with_one, _ordering(two, "3", confirm="controller"))
    yield Deed("rollback", with_two, _rolling_back("6"), two.generation, one.generation)
    with_three = _done(with_two, _ordering(three, "7"))
    yield Deed("collection", _worn(with_three), _collecting, three.generation, three.generation)


def enumerate_deed(deed: Deed, report: Report, *, every: int = 1, nested: bool = True) -> None:
    """Stop a deed everywhere, or at each `every`-th moment, and check what is left.

    Raises:
        Violation: with the point at which it happened.
    """
    points = photograph(deed, report, skip="")
    for done, point in enumerate(points[::every], start=1):
        report.points += 1
        where = f"{deed.name}, {point.where}"
        world, said = host_at(deed, point)
        _recover_and_check(deed, report, world, said, f"{where}, killed", nested=nested)
        _lose_power(deed, report, world, said, where, nested=nested)
        report.tell(done, len(points))


def find_need(label: str, first: str = "") -> Need | None:
    """Return what goes wrong without the fsync `label`; the deed `first` is tried first.

    Only what comes after the missing fsync can differ, so deeds are stopped from there on, and only
    by power losses.
    """
    for deed in sorted(deeds(skip=label), key=lambda deed: deed.name != first):
        try:
            _stop_without(deed, label)
        except Violation as violation:
            return Need(deed.name, str(violation))
    return None


def _stop_without(deed: Deed, label: str) -> None:
    report = Report()
    points = photograph(deed, report, skip=label)
    missing = [n for n, point in enumerate(points) if point.write.endswith(label)]
    if not missing and deed.world.machine.starts == 0:
        return
    after = points[missing[0] if missing else 0 :]
    for point in (after[-1], *after):
        world, said = host_at(deed, point)
        _lose_power(deed, report, world, said, f"{deed.name}, {point.where}")
    # Some are needed only after another program was killed before its own fsync.
    for point in points:
        world, said = host_at(deed, point)
        where = f"{deed.name}, {point.where}, killed"
        _recover_and_check(deed, report, world, said, where, nested=True)


def photograph(deed: Deed, report: Report, *, skip: str) -> list[Photo]:
    """Do a deed undisturbed, check it, and return the host at each moment; the last is told."""
    whole = _copy(deed.world, skip=skip)
    said = Said()
    photographer = Photographer(_model(whole), lambda: (whole.machine.copy(), said.copy()))
    deed.act(whole.on(photographer.disk, whole.machine), said)
    told = photographer.told()
    _check(whole, deed, said, f"{deed.name}, undisturbed")
    report.labels |= _model(whole).labels
    return [*photographer.points, told]


def host_at(deed: Deed, point: Photo) -> tuple[World, Said]:
    machine, said = point.state
    return deed.world.on(point.disk, machine), said


def _lose_power(
    deed: Deed,
    report: Report,
    world: World,
    said: Said,
    where: str,
    *,
    nested: bool = False,
    few: bool = False,
) -> None:
    losses = lost_power_again(_model(world)) if few else lost_power(_model(world))
    for index, (how, disk) in enumerate(losses):
        after = world.on(disk, world.machine.copy())
        after.machine.reboot()
        # Within recovery only for all lost and all kept: the others differ in what recovery finds,
        # not in how it can be stopped.
        deep = nested and index < WHOLE_STATES
        if report.is_known(_state(after, said), deep=deep):
            continue
        lost = f"{where}, power lost: {how}"
        _check_held(after, lost)
        _recover_and_check(deed, report, after, said, lost, nested=deep)


def _recover_and_check(
    deed: Deed, report: Report, world: World, said: Said, where: str, *, nested: bool
) -> None:
    whole = world.on(_model(world).copy(), world.machine.copy())
    points = _recover(whole, where, is_watched=nested)
    report.recoveries += 1
    if not report.is_known(("recovered", _state(whole, said))):
        _check(whole, deed, said, where)
    for point in points:
        report.points += 1
        again = world.on(point.disk, point.state)
        deeper = f"{where}; recovery {point.where}"
        if not report.is_known(_state(again, said)):
            _recover_and_check(deed, report, again, said, f"{deeper}, killed", nested=False)
        _lose_power(deed, report, again, said, deeper, few=True)
    # What a killed program left without its fsync must be durable when others can read it.
    if nested:
        told = _with_results(whole, said)
        _lose_power(deed, report, whole, told, f"{where}; recovered and read")


def _with_results(world: World, said: Said) -> Said:
    """Return what others know once they have asked for each op; a failed restore may still end."""
    told = said.copy()
    for op in list_ops(world.host.disk, world.host.layout):
        result = op.result()
        if result is not None and result is not Result.FAILED:
            told.ended[op.op_id] = result
            if result is Result.COMMITTED and op.op_id in told.accepted:
                told.committed.append(op.op_id)
    return told


def recovered(world: World, said: Said, deed: Deed) -> list[Point[Machine]]:
    """Recover a host and return it at each moment of the recovery."""
    points = _recover(world, deed.name, is_watched=True)
    _check(world, deed, said, deed.name)
    return points


def _recover(world: World, where: str, *, is_watched: bool) -> list[Point[Machine]]:
    photographer = Photographer(_model(world), world.machine.copy)
    disk = photographer.disk if is_watched else world.host.disk
    try:
        recover(world.on(disk, world.machine).effects())
    except Exception as error:
        raise Violation(f"{where}: recovery failed: {error!r}") from error
    return photographer.points


def _state(world: World, said: Said) -> Hashable:
    """Return what recovery and the checks depend on; two equal ones end equally.

    The clock is not part of it: at recovery an open op is undone whatever its deadlines are.
    """
    machine = world.machine
    return (
        _model(world).fingerprint(),
        tuple(sorted(machine.running.items())),
        machine.boot,
        tuple(said.accepted),
        tuple(said.committed),
        tuple(said.ended.items()),
    )


def _check(world: World, deed: Deed, said: Said, where: str) -> None:
    try:
        _check_said(world, deed, said, world.machine)
    except (AssertionError, CapsuleError, FileNotFoundError) as error:
        raise Violation(f"{where}: {error}") from error


def _check_said(world: World, deed: Deed, said: Said, machine: Machine) -> None:
    host, effects = world.host, world.effects()
    current = host.current()
    assert current in {deed.before, deed.after}, f"{current} is installed"
    assert world.is_whole(current, strict=True), f"{current} is not whole"
    assert not machine.violations, machine.violations
    receipts = verify_chain(
        [item.envelope for item in effects.chain.read_all()], host.signer.public
    )
    results = {receipt.op_id: receipt.result for receipt in receipts if receipt.op_id}
    for op in list_ops(host.disk, host.layout):
        result = op.result()
        assert result is not None, f"{op.op_id} is open"
        assert op.op_id in results, f"{op.op_id} has no receipt"
        assert (result is Result.COMMITTED) == (results[op.op_id] == "committed"), result
        assert op.op_id not in said.ended or said.ended[op.op_id] is result, "a result changed"
    for op_id in said.accepted:
        assert op_id in results, "an accepted order is forgotten"
    for op_id in said.committed:
        assert results[op_id] == "committed", "a commit is forgotten"
        assert current == deed.after, "a commit was undone"
    for generation in host.state.staged_generations():
        manifest = f"{host.layout.generation(generation)}/capsule.json"
        assert host.disk.stat(manifest) is not None, f"{generation} is promised and gone"
    is_held = host.disk.stat(host.layout.hold) is not None
    was_held = deed.world.host.disk.stat(deed.world.host.layout.hold) is not None
    assert not is_held or current == ABSENT, "the hold stays on an installed node"
    assert not was_held or is_held or current != ABSENT, "the hold of an absent node is gone"
    assert host.state.fence() >= (1 if said.accepted else 0), "the fence is forgotten"
    if said.committed and deed.name != "rollback":
        counter = world.builds[deed.after].counter
        assert host.state.counter_floor() >= counter, "the floor is forgotten"
    if machine.boot and not is_held and current != ABSENT:
        units = set(world.builds[current].units)
        assert machine.running in ({}, dict.fromkeys(units, current)), f"running {machine.running}"


def _check_held(world: World, where: str) -> None:
    """What is no whole generation must not be able to start."""
    host = world.host
    if host.disk.stat(host.layout.hold) is not None:
        return
    try:
        # Also a generation that is whole and about to prove that it is broken.
        is_whole = any(world.is_whole(name, strict=False) for name in (ABSENT, *world.builds))
    except CapsuleError as error:
        raise Violation(f"{where}: {error}") from error
    if not is_whole:
        raise Violation(f"{where}: a mixture without a hold")


def _ordering(
    marker: Marker, digit: str, *, confirm: str = "local"
) -> Callable[[World, Said], None]:
    op_id = digit * 32

    def act(world: World, said: Said) -> None:
        effects = world.effects()
        world.on_sleep = lambda effects: _confirm(world, effects, op_id, said)
        envelope = world.host.order(
            marker,
            op_id=op_id,
            boot_id=effects.clock.boot_id(),
            boot_ms=effects.clock.boot_ms(),
            confirm=confirm,
        )
        accept_order(effects, envelope)
        said.accepted.append(op_id)
        _carry_out(effects, op_id, said)

    return act


def _rolling_back(digit: str, *, whole_id: bool = False) -> Callable[[World, Said], None]:
    op_id = digit if whole_id else digit * 32

    def act(world: World, said: Said) -> None:
        effects = world.effects()
        accept_order(effects, rollback_order(effects, op_id=op_id, nonce=op_id))
        said.accepted.append(op_id)
        _carry_out(effects, op_id, said)

    return act


def _collecting(world: World, said: Said) -> None:
    del said
    collect(world.effects(), dry_run=False)


def _carry_out(effects: Effects, op_id: str, said: Said) -> None:
    result = supervise(effects, op_id)
    assert result is not None
    said.ended[op_id] = result
    if result is Result.COMMITTED:
        said.committed.append(op_id)


def _confirm(world: World, effects: Effects, op_id: str, said: Said) -> None:
    proof = world.host.op(op_id).proof()
    if proof is not None and op_id not in said.committed:
        confirm_op(effects, world.host.confirm(op_id, proof.digest))
        said.committed.append(op_id)


def _worn(world: World) -> World:
    """Return the host after so many ops that a collection removes some."""
    for number in range(OPS_KEPT + 2):
        world = _done(world, _rolling_back(f"{number:032x}", whole_id=True))
    return world


def _done(world: World, act: Callable[[World, Said], None]) -> World:
    """Return the host after a deed that nothing disturbed, all of it durable."""
    after = _copy(world, skip="")
    act(after, Said())
    return _settled(after)


def _settled(world: World) -> World:
    _model(world).sync_filesystem("/", "between deeds")
    return world


def _copy(world: World, *, skip: str) -> World:
    disk = _model(world).copy()
    disk.skip = frozenset({skip})
    disk.labels = set()
    return world.on(disk, world.machine.copy())


def _model(world: World) -> ModelDisk:
    disk = world.host.disk
    assert isinstance(disk, ModelDisk)
    return disk
