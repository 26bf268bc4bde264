"""Whether the restarted processes really run the ordered generation, seen from the host itself.

A start that returned proves nothing: a service crashes a second later, or is the old process. So a
unit must answer its probe (or be active), stay the same process with the same restart count over
its soak, and `/proc` must show the generation's commit in its environment and the generation's
files in its folder, command line or memory. A unit that runs an image shows no file: its containers
must be of that image, and their first processes in the unit's own control group.

Source: design, section 9 ("Proof"); proc(5).
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import urlsplit

from capsule_installer.engines.base import Container, WantedImage
from capsule_installer.op.loaded import check_fragment, check_processes, is_in_unit
from capsule_installer.services.base import ServiceManager, UnitState
from capsule_installer.system.clock import Clock
from capsule_installer.system.processes import Processes, ProcessFacts, control_group
from capsule_manifest.digest import CapsuleId
from capsule_manifest.errors import Failed
from capsule_manifest.records import UnitProof
from capsule_manifest.release import Unit

__all__ = ["Expected", "HttpProbe", "ProbeHttp", "Prover", "ServiceProver"]

_POLL_MS: Final = 20
_FIRST_LOOK_MS: Final = 150
_SOAK_POLL_MS: Final = 250
_EVIDENCE_MAX: Final = 4
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a process of the new generation must show. `folder` is its final path.

    `units_folder` is where its unit files are, "" where that is not to be compared.
    """

    capsule: CapsuleId
    commit: str
    generation: str
    folder: str
    images: tuple[WantedImage, ...] = ()
    units_folder: str = ""


class Prover(Protocol):
    """Prove that units run a generation."""

    def prove(
        self, units: Sequence[Unit], expected: Expected, until_ms: int
    ) -> tuple[UnitProof, ...]:
        """Return what was seen of each unit with a process, after its soak.

        Raises:
            Failed: `proof-failed`.
        """
        ...


class HttpProbe(Protocol):
    """Ask an address on loopback."""

    def __call__(self, address: str, timeout_ms: int) -> str:
        """Return "" for 200, else what came instead."""
        ...


class ProbeHttp:
    """A probe by HTTP GET. Proxies are not asked: it connects to loopback itself."""

    def __call__(self, address: str, timeout_ms: int) -> str:
        """Return "" for 200, else what came instead."""
        # What reads mail and speaks TLS comes along with it: a fifth of a start of this program.
        import http.client

        parts = urlsplit(address)
        if parts.scheme != "http" or parts.hostname not in _LOOPBACK:
            return "not an http address on loopback"
        connection = http.client.HTTPConnection(
            parts.hostname, parts.port or 80, timeout=timeout_ms / 1000
        )
        try:
            connection.request(
                "GET", (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            )
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            return str(error) or type(error).__name__
        finally:
            connection.close()
        return "" if status == http.client.OK else f"status {status}"


class ServiceProver:
    """Prove by asking the service manager, the probe and `/proc`."""

    def __init__(
        self,
        *,
        services: ServiceManager,
        processes: Processes,
        clock: Clock,
        probe: HttpProbe,
        containers: Callable[[], tuple[Container, ...]] = tuple,
        groups: Callable[[int], str] = control_group,
    ) -> None:
        self._services = services
        self._processes = processes
        self._clock = clock
        self._probe = probe
        self._containers = containers
        self._groups = groups

    def prove(
        self, units: Sequence[Unit], expected: Expected, until_ms: int
    ) -> tuple[UnitProof, ...]:
        """Await all units, then soak all at once. Source: `Prover.prove`."""
        # Each look is a program: what was just started gets the processor first, and serves sooner.
        self._clock.sleep_ms(_FIRST_LOOK_MS)
        first = {unit.name: self._await_ready(unit, until_ms) for unit in units}
        began = {name: self._began(state) for name, state in first.items()}
        soak_until_ms = self._clock.boot_ms() + max((unit.soak_ms for unit in units), default=0)
        while self._clock.boot_ms() < soak_until_ms:
            self._clock.sleep_ms(min(_SOAK_POLL_MS, soak_until_ms - self._clock.boot_ms()))
            # To ask about a unit is a program, four times a second; to look at a process is not.
            for unit in units:
                now = self._began(first[unit.name])
                if now is None or now != began[unit.name]:
                    self._check_same((unit,), first)
            self._check_time(until_ms, "soak")
        last = self._check_same(units, first)
        for unit in units:
            if unit.probe is not None:
                answer = self._probe(unit.probe.http, unit.probe.timeout_ms)
                if answer:
                    raise _failed(unit.name, "a unit stopped answering in its soak", answer)
        return tuple(
            self._look(unit, last[unit.name], expected) for unit in units if _has_process(unit)
        )

    def _await_ready(self, unit: Unit, until_ms: int) -> UnitState:
        limit_ms = min(until_ms, self._clock.boot_ms() + unit.start_timeout_ms)
        while True:
            state = self._services.state(unit.name)
            missing = "" if state.active else f"inactive: {state.result}"
            if state.active and unit.probe is not None:
                left_ms = max(1, limit_ms - self._clock.boot_ms())
                missing = self._probe(unit.probe.http, min(unit.probe.timeout_ms, left_ms))
            if not missing:
                return state
            if self._clock.boot_ms() >= limit_ms:
                raise _failed(unit.name, "a unit is not ready in time", missing)
            self._clock.sleep_ms(_POLL_MS)

    def _began(self, state: UnitState) -> int | None:
        """Return when the process of a unit began; None when there is none to be seen."""
        facts = self._processes.facts(state.pid) if state.pid else None
        return None if facts is None else facts.started_ticks

    def _check_same(
        self, units: Sequence[Unit], first: Mapping[str, UnitState]
    ) -> dict[str, UnitState]:
        """Return how the units are now, which is as they were. Raises: `proof-failed`."""
        now = {}
        for unit in units:
            then, state = first[unit.name], self._services.state(unit.name)
            same = (then.pid, then.invocation_id, then.restarts)
            if not state.active or (state.pid, state.invocation_id, state.restarts) != same:
                raise _failed(
                    unit.name,
                    "a unit did not stay up over its soak",
                    f"{'active' if state.active else 'inactive'}, "
                    f"{state.restarts} restarts, {state.result}",
                )
            now[unit.name] = state
        return now

    def _check_time(self, until_ms: int, what: str) -> None:
        if self._clock.boot_ms() > until_ms:
            raise _failed(what, "the proof took too long", f"{self._clock.boot_ms()} ms")

    def _look(self, unit: Unit, state: UnitState, expected: Expected) -> UnitProof:
        facts = self._processes.facts(state.pid)
        if facts is None:
            raise _failed(unit.name, "the main process can't be seen", state.pid)
        named = {
            "CAPSULE_ID": expected.capsule,
            "CAPSULE_COMMIT": expected.commit,
            "CAPSULE_GENERATION": expected.generation,
        }
        for name, value in named.items():
            if facts.environment.get(name) != value:
                raise Failed(
                    "proof-failed", f"the main process has another {name}", expected=value,
                    got=facts.environment.get(name, "nothing"), where=unit.name,
                )  # fmt: skip
        images = {item.id for item in expected.images if unit.name in item.units}
        if images:
            evidence = self._container_evidence(unit, images)
        else:
            evidence = _evidence(facts, expected.folder)
        if not evidence:
            raise Failed(
                "proof-failed", "the main process uses no file of the generation",
                expected=expected.folder, got=f"folder {facts.cwd}", where=unit.name,
            )  # fmt: skip
        others = check_processes(
            self._processes, self._groups, unit=unit.name, pid=state.pid, folder=expected.folder
        )
        return UnitProof(
            unit=unit.name,
            pid=state.pid,
            started_ticks=facts.started_ticks,
            invocation_id=state.invocation_id,
            restarts=state.restarts,
            commit=expected.commit,
            evidence=(
                *evidence,
                *check_fragment(unit.name, state, expected.units_folder),
                f"{others} further processes, none of another generation",
            ),
        )

    def _container_evidence(self, unit: Unit, images: AbstractSet[str]) -> tuple[str, ...]:
        """Return what runs in the unit's containers, all of which must be of its images."""
        found = [
            container
            for container in self._containers()
            if is_in_unit(self._groups(container.pid), unit.name)
        ]
        foreign = [container.image for container in found if container.image not in images]
        if foreign or not found:
            raise Failed(
                "proof-failed", "the unit's containers are not of its image",
                expected=", ".join(sorted(images)), got=", ".join(foreign) or "no container",
                where=unit.name,
            )  # fmt: skip
        return tuple(
            f"container {container.id[:12]} of {container.image}, pid {container.pid}"
            for container in found[:_EVIDENCE_MAX]
        )


def _evidence(facts: ProcessFacts, folder: str) -> tuple[str, ...]:
    def is_inside(path: str) -> bool:
        return path == folder or path.startswith(folder + "/")

    found = [f"cwd {facts.cwd}"] if is_inside(facts.cwd) else []
    found += [f"argument {path}" for path in facts.arguments if is_inside(path)]
    found += [f"mapped {path}" for path in sorted(facts.files) if is_inside(path)]
    return tuple(found[:_EVIDENCE_MAX])


def _has_process(unit: Unit) -> bool:
    # Timers, sockets, targets and paths are active without a process of their own.
    return unit.name.endswith(".service")


def _failed(where: str, what: str, got: object) -> Failed:
    return Failed("proof-failed", what, got=got, where=where)
