"""What proves that restarted processes run a generation, and what does not."""

from dataclasses import dataclass, field, replace

import pytest

from capsule_installer.engines.base import Container, WantedImage
from capsule_installer.op.prove import Expected, ProbeHttp, ServiceProver
from capsule_installer.services.base import UnitState
from capsule_installer.system.processes import ProcessFacts
from capsule_manifest.digest import CapsuleId
from capsule_manifest.errors import Failed
from capsule_manifest.release import Probe, Unit

FOLDER = "/opt/capsule/generations/7-01234567"
EXPECTED = Expected(
    capsule=CapsuleId("sha256:" + "0" * 64), commit="a" * 40, generation="7-01234567", folder=FOLDER
)
UNIT = Unit(
    name="a.service",
    file="a.service",
    start_timeout_ms=1_000,
    stop_timeout_ms=1_000,
    soak_ms=500,
    probe=Probe(http="http://127.0.0.1:1/", timeout_ms=100),
)
UP = UnitState(active=True, pid=7, invocation_id="i1", restarts=0, result="")
FACTS = ProcessFacts(
    pid=7,
    started_ticks=42,
    cwd="/",
    arguments=("python", f"{FOLDER}/app/main.py"),
    environment={
        "CAPSULE_ID": EXPECTED.capsule,
        "CAPSULE_COMMIT": EXPECTED.commit,
        "CAPSULE_GENERATION": EXPECTED.generation,
    },
    files=frozenset(),
)


@dataclass
class Scene:
    """A unit whose state and answers are functions of the time, in ms."""

    state_at: object = field(default_factory=lambda: lambda _: UP)
    answer_at: object = field(default_factory=lambda: lambda _: "")
    process: ProcessFacts | None = FACTS
    now_ms: int = 0
    asked: int = 0

    def state(self, unit):
        self.asked += 1
        return self.state_at(self.now_ms)

    def __call__(self, address, timeout_ms):
        return self.answer_at(self.now_ms)

    def facts(self, pid):
        return self.process(self.now_ms) if callable(self.process) else self.process

    def open_files(self, pid):
        return frozenset()

    def parents(self):
        return {}

    def boot_ms(self):
        return self.now_ms

    def sleep_ms(self, duration_ms):
        self.now_ms += duration_ms


def prove(scene, unit=UNIT, until_ms=10_000):
    prover = ServiceProver(services=scene, processes=scene, clock=scene, probe=scene)
    return prover.prove([unit], EXPECTED, until_ms)


def test_a_unit_that_answers_and_stays_is_proved_by_what_its_process_shows():
    (proof,) = prove(Scene())
    assert (proof.pid, proof.started_ticks, proof.invocation_id) == (7, 42, "i1")
    assert proof.evidence == (
        f"argument {FOLDER}/app/main.py",
        "0 further processes, none of another generation",
    )


@pytest.mark.parametrize(
    "change",
    [
        {"cwd": f"{FOLDER}/app", "arguments": ()},
        {"arguments": (), "files": frozenset({f"{FOLDER}/wheels/lib/x.so"})},
    ],
)
def test_its_folder_or_its_memory_show_it_too(change):
    (proof,) = prove(Scene(process=replace(FACTS, **change)))
    assert FOLDER in proof.evidence[0]


def test_a_unit_may_need_a_while_until_it_answers():
    scene = Scene(answer_at=lambda ms: "" if ms >= 400 else "refused")
    assert len(prove(scene)) == 1
    assert scene.now_ms >= 900


@pytest.mark.parametrize(
    "scene",
    [
        Scene(answer_at=lambda _: "status 500"),
        Scene(state_at=lambda _: replace(UP, active=False)),
        Scene(state_at=lambda ms: UP if ms < 300 else replace(UP, active=False)),
        Scene(state_at=lambda ms: UP if ms < 300 else replace(UP, pid=8)),
        Scene(state_at=lambda ms: UP if ms < 300 else replace(UP, invocation_id="i2")),
        Scene(state_at=lambda ms: UP if ms < 300 else replace(UP, restarts=1)),
        Scene(answer_at=lambda ms: "" if ms < 450 else "refused"),
        Scene(process=None),
        Scene(process=replace(FACTS, environment={})),
        Scene(process=replace(FACTS, environment=FACTS.environment | {"CAPSULE_COMMIT": "b"})),
        Scene(process=replace(FACTS, arguments=("python", "/opt/capsule/current/main.py"))),
        Scene(process=replace(FACTS, cwd=FOLDER + "0", arguments=())),
    ],
    ids=[
        "never answers",
        "never active",
        "stops in its soak",
        "another process",
        "another invocation",
        "was restarted",
        "stops answering",
        "process gone",
        "no commit",
        "another commit",
        "path through a link",
        "a folder with the same beginning",
    ],
)
def test_everything_else_proves_nothing(scene):
    with pytest.raises(Failed, match="proof-failed"):
        prove(scene)


def test_a_process_that_stays_is_looked_at_and_its_unit_asked_about_at_both_ends():
    scene = Scene()
    prove(scene, replace(UNIT, soak_ms=5_000))
    assert scene.asked == 2


def test_a_process_that_is_gone_ends_the_soak_at_once():
    scene = Scene(
        process=lambda ms: FACTS if ms < 1_000 else None,
        state_at=lambda ms: UP if ms < 1_000 else replace(UP, active=False),
    )
    with pytest.raises(Failed, match="proof-failed"):
        prove(scene, replace(UNIT, soak_ms=5_000))
    assert scene.now_ms < 1_300


def test_a_pid_that_is_used_again_is_another_process():
    scene = Scene(
        process=lambda ms: FACTS if ms < 1_000 else replace(FACTS, started_ticks=43),
        state_at=lambda ms: UP if ms < 1_000 else replace(UP, restarts=1),
    )
    with pytest.raises(Failed, match="1 restarts"):
        prove(scene, replace(UNIT, soak_ms=5_000))
    assert scene.now_ms < 1_300


def test_the_first_deadline_ends_the_soak():
    with pytest.raises(Failed, match="proof-failed"):
        prove(Scene(), replace(UNIT, soak_ms=5_000), until_ms=1_000)


def test_a_timer_unit_is_active_without_a_process():
    unit = replace(UNIT, name="a.timer", probe=None)
    assert prove(Scene(process=None), unit) == ()


@pytest.mark.parametrize(
    "address", ["https://127.0.0.1/", "http://192.0.2.1/", "http://example.org/", "ftp://::1/"]
)
def test_only_loopback_is_probed(address):
    assert ProbeHttp()(address, 100) == "not an http address on loopback"


IMAGE = "sha256:" + "1" * 64
WANTED = WantedImage(name="web", id=IMAGE, layout=f"{FOLDER}/web", units=("a.service",))
GROUPS = {77: "/system.slice/a.service", 78: "/system.slice/b.service", 79: "/machine.slice/x"}


def prove_container(*containers):
    scene = Scene(process=replace(FACTS, arguments=("podman", "run", IMAGE)))
    prover = ServiceProver(
        services=scene,
        processes=scene,
        clock=scene,
        probe=scene,
        containers=lambda: containers,
        groups=lambda pid: GROUPS.get(pid, ""),
    )
    (proof,) = prover.prove([UNIT], replace(EXPECTED, images=(WANTED,)), 10_000)
    return proof.evidence


def container(image, pid):
    return Container(id="c" * 64, image=image, pid=pid)


def test_a_unit_that_runs_an_image_is_proved_by_the_container_in_its_own_control_group():
    other = container("sha256:" + "2" * 64, 78)
    assert prove_container(container(IMAGE, 77), other) == (
        f"container cccccccccccc of {IMAGE}, pid 77",
        "0 further processes, none of another generation",
    )


@pytest.mark.parametrize(
    "containers",
    [
        (),
        (container("sha256:" + "2" * 64, 77),),
        (container(IMAGE, 77), container("sha256:" + "2" * 64, 77)),
        (container(IMAGE, 78),),
        (container(IMAGE, 79),),
        (container(IMAGE, 80),),
    ],
    ids=["none", "of another image", "also of another", "of another unit", "outside", "gone"],
)
def test_no_container_of_its_image_in_its_control_group_is_no_proof(containers):
    with pytest.raises(Failed) as failed:
        prove_container(*containers)
    assert failed.value.error_id == "proof-failed"
    assert IMAGE in str(failed.value)
