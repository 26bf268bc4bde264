"""A host on a model disk with services that only remember: thousands of ops in seconds.

`World` is one host at one moment. A *kill* ends the program and leaves services running; a *power
loss* ends everything and leaves what the disk made durable. The services watch themselves that
nothing is ever started on a mixture of two generations.
"""

import copy
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from capsule_installer.engines.base import Images, NoImages
from capsule_installer.host.receipts import ReceiptChain
from capsule_installer.host.state import HostState
from capsule_installer.op.effects import Effects, FolderAccounts
from capsule_installer.op.op_folder import OpFolder
from capsule_installer.op.prove import Expected
from capsule_installer.op.spare import ensure_spare
from capsule_installer.services.base import UnitState
from capsule_installer.services.timers import TimerKind
from capsule_installer.system.disk import Disk
from capsule_installer.system.processes import CLEAN_ENVIRONMENT, Completed, ProcessFacts
from capsule_manifest.errors import Failed
from capsule_manifest.keys import PublicKey, Signer
from capsule_manifest.records import Marker, UnitProof
from capsule_manifest.release import Unit
from support.model_disk import ModelDisk
from support.staged_host import NODE, Build, StagedHost

__all__ = ["ROOT", "Machine", "World", "generation_shown"]

ROOT = "/h"
_GENERATION = re.compile(rb"CAPSULE_GENERATION=(\S+)")


@dataclass(slots=True)
class Machine:
    """What a kill leaves and a power loss ends: running units, the clock, this boot."""

    running: dict[str, str] = field(default_factory=dict)
    starts: int = 0
    now_ms: int = 1_000_000
    boot: int = 1
    timers: list[tuple[str, TimerKind, int]] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    def copy(self) -> "Machine":
        return replace(
            self,
            running=dict(self.running),
            timers=list(self.timers),
            violations=list(self.violations),
        )

    def reboot(self) -> None:
        self.running.clear()
        self.timers.clear()
        self.boot += 1
        self.now_ms = 5_000


class RememberingSigner:
    """Sign one message one way, so that doing the same again leaves the same bytes."""

    def __init__(self, signer: Signer) -> None:
        self._signer = signer
        self._signatures: dict[bytes, bytes] = {}

    @property
    def public(self) -> PublicKey:
        return self._signer.public

    def sign(self, message: bytes) -> bytes:
        if message not in self._signatures:
            self._signatures[message] = self._signer.sign(message)
        return self._signatures[message]


class World:
    """One host: staged generations on `host.disk`, and a machine. `broken` ones never serve."""

    def __init__(self, host: StagedHost, machine: Machine, broken: frozenset[str]) -> None:
        self.host = host
        self.machine = machine
        self.broken = broken
        self.builds: dict[str, Build] = {}
        self.on_sleep: Callable[[Effects], None] = lambda _: None
        self.images: Images = NoImages()

    @classmethod
    def fresh(cls) -> "World":
        host = StagedHost(ROOT, disk=ModelDisk())
        host.signer = RememberingSigner(host.signer)
        host.controller = RememberingSigner(host.controller)
        world = cls(host, Machine(), frozenset())
        ensure_spare(world.effects())
        return world

    def stage(self, build: Build, *, broken: bool = False) -> Marker:
        marker = self.host.stage(build)
        self.builds[marker.generation] = build
        if broken:
            self.broken |= {marker.generation}
        return marker

    def on(self, disk: Disk, machine: Machine) -> "World":
        """Return the same host on another disk and machine."""
        host = copy.copy(self.host)
        host.disk = disk
        host.state = HostState(disk, host.layout)
        world = World(host, machine, self.broken)
        world.builds = self.builds
        world.on_sleep = self.on_sleep
        world.images = self.images
        return world

    def effects(self) -> Effects:
        host, machine = self.host, self.machine
        clock = FakeClock(machine)
        services = FakeServices(self)
        effects = Effects(
            disk=host.disk,
            layout=host.layout,
            state=host.state,
            chain=ReceiptChain(host.disk, host.layout, host.signer),
            signer=host.signer,
            node=NODE,
            services=services,
            processes=NoProcesses(),
            supervisors=NoSupervisors(),
            timers=FakeTimers(machine),
            prover=FakeProver(self),
            worker=NoWorker(),
            clock=clock,
            accounts=FolderAccounts(),
            images=self.images,
        )
        clock.on_sleep = lambda: self.on_sleep(effects)
        return effects

    def is_whole(self, generation: str, *, strict: bool) -> bool:
        """Say whether links, marker, units and files are those of one generation.

        Not strict, units that only another generation has may still be there.
        """
        disk, layout = self.host.disk, self.host.layout
        build = self.builds.get(generation)
        if self.host.current() != generation or self._marked() != generation:
            return False
        wanted = set() if build is None else {*build.units, *(f"{u}.run" for u in build.units)}
        present = set(disk.list(layout.units))
        if not wanted <= present or (strict and wanted != present):
            return False
        known = {target for other in self.builds.values() for target in other.files}
        files = {} if build is None else build.files
        for target in known:
            path = layout.inside(target)
            found = disk.stat(path)
            data = None if found is None else disk.read(path, 2**20)
            if data != files.get(target):
                return False
        return all(generation_shown(disk, f"{layout.units}/{name}") == generation
                   for name in wanted if not name.endswith(".run"))  # fmt: skip

    def _marked(self) -> str:
        from capsule_installer.op.installed import read_installed_marker

        host = self.host
        marker = read_installed_marker(host.disk, host.layout, host.signer.public)
        return "absent" if marker is None else marker.generation


def generation_shown(disk: Disk, path: str) -> str:
    """Return the generation that a unit file names."""
    match = _GENERATION.search(disk.read(path, 2**20))
    return match[1].decode() if match else ""


class FakeClock:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.on_sleep: Callable[[], None] = lambda: None

    def boot_ms(self) -> int:
        return self._machine.now_ms

    def boot_id(self) -> str:
        return f"boot-{self._machine.boot}"

    def sleep_ms(self, duration_ms: int) -> None:
        self._machine.now_ms += duration_ms
        self.on_sleep()


class FakeServices:
    """Units that run from the moment of their start, unless the hold is there."""

    name = "process"

    def __init__(self, world: World) -> None:
        self._world = world

    def companions(self, unit: str, text: str) -> dict[str, bytes]:
        return {f"{unit}.run": hashlib.sha256(text.encode()).hexdigest().encode()}

    def check(self, units: Mapping[str, str]) -> list[str]:
        del units
        return []

    def reload(self, deadline_ms: int) -> None:
        pass

    def stop(self, unit: str, deadline_ms: int) -> None:
        self._world.machine.running.pop(unit, None)

    def start(self, unit: str, deadline_ms: int) -> None:
        disk, layout = self._world.host.disk, self._world.host.layout
        path = f"{layout.units}/{unit}"
        if disk.stat(path) is None:
            raise Failed("service-failed", "no such unit", where=unit)
        if disk.stat(layout.hold) is not None or unit in self._world.machine.running:
            return
        generation = generation_shown(disk, path)
        machine = self._world.machine
        if not self._world.is_whole(generation, strict=False):
            machine.violations.append(f"{unit} was started on a mixture")
        machine.starts += 1
        machine.running[unit] = generation

    def state(self, unit: str) -> UnitState:
        machine = self._world.machine
        generation = machine.running.get(unit, "")
        is_up = generation != ""
        return UnitState(
            active=is_up,
            pid=100 if is_up else 0,
            invocation_id=f"{generation}/{unit}" if is_up else "",
            restarts=0,
            result="" if is_up else "down",
        )


class NoSupervisors:
    """The tests carry out an op themselves."""

    def start(self, op_id: str, argv: Sequence[str]) -> ProcessFacts:
        raise Failed("process-not-started", "no supervisors here", where=op_id)


class FakeTimers:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def start(self, op_id: str, kind: TimerKind, at_ms: int) -> None:
        self._machine.timers.append((op_id, kind, at_ms))


class FakeProver:
    """Proves what runs, unless the generation is a broken one."""

    def __init__(self, world: World) -> None:
        self._world = world

    def prove(
        self, units: Sequence[Unit], expected: Expected, until_ms: int
    ) -> tuple[UnitProof, ...]:
        running = self._world.machine.running
        if expected.generation in self._world.broken:
            raise Failed("proof-failed", "a broken release", where=expected.generation)
        assert all(running.get(unit.name) == expected.generation for unit in units), running
        return tuple(
            UnitProof(
                unit=unit.name,
                pid=100,
                started_ticks=1,
                invocation_id="i",
                restarts=0,
                commit=expected.commit,
                evidence=("fake",),
            )
            for unit in units
        )


class NoWorker:
    def levels(self) -> tuple[str, ...]:
        return ("L0",)

    def begin(self, op: OpFolder, *, level: str) -> None:
        pass

    def arm(self, op: OpFolder, *, level: str, policy: str, until_ms: int) -> None:
        assert level == "L0"

    def release(self, op: OpFolder) -> None:
        pass

    def abandon(self) -> bool:
        return True

    def run(
        self,
        op: OpFolder,
        steps: Sequence[Sequence[str]],
        *,
        folder: str,
        environment: Mapping[str, str],
        until_ms: int,
    ) -> None:
        assert not steps


class NoProcesses:
    """A machine on which nothing can be started and nothing else runs."""

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_ms: int,
        folder: str = "/",
        environment: Mapping[str, str] = CLEAN_ENVIRONMENT,
        on_start: Callable[[ProcessFacts], None] | None = None,
        own_group: bool = True,
    ) -> Completed:
        raise Failed("process-not-started", "no processes here", where=argv[0])

    def start_detached(self, argv: Sequence[str], *, log: str) -> ProcessFacts:
        raise Failed("process-not-started", "no processes here", where=argv[0])

    def facts(self, pid: int) -> ProcessFacts | None:
        return None

    def open_files(self, pid: int) -> frozenset[str]:
        return frozenset()

    def all_pids(self) -> list[int]:
        return []

    def parents(self) -> Mapping[int, int]:
        return {}

    def is_busy(self) -> bool:
        return False
