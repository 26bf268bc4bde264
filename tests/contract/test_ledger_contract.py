"""One suite for every ledger: in memory, SQLite, PostgreSQL."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sqlalchemy import update

from capsule.lane.budget import Budget
from capsule.lane.events import HealthSeen, Started
from capsule.lane.node import HoldTaken, StageSeen, StopIntended
from capsule.lane.plan import PlannedNode, RolloutPlan, plan_digest
from capsule.lane.ports import Ledger, Rows
from capsule.ledger.audit import audit_ledger
from capsule.ledger.engine import begin, open_engine
from capsule.ledger.schema import migrate
from capsule.ledger.store import SqlLedger
from capsule.ledger.tables import leases
from capsule_manifest.errors import ExitCode, Failed, Refused
from support.memory_ledger import MemoryLedger
from support.postgres import Cluster, running_cluster

NODES = ("n1", "n2", "n3")
STARTED = Started(plan="sha256:" + "a" * 64, fence=1)


def make_plan() -> RolloutPlan:
    return RolloutPlan(
        epoch="e1",
        capsule="sha256:" + "c" * 64,
        route="sha256:" + "d" * 64,
        preflight="sha256:" + "e" * 64,
        nodes=tuple(PlannedNode(name=n, lane="ü", domain="d", serving=True) for n in NODES),
        bystanders=3,
        max_unavailable=2,
        floor=1,
        domain_cap=None,
        max_failed_lanes=2,
        allow_outage=False,
        budget=Budget(ttl_ms=7),
    )


class World(NamedTuple):
    ledger: Any
    expire: Callable[[], None]
    hold: Callable[[str, str], None]


class SettableClock:
    def __init__(self) -> None:
        self.value_ms = 0

    def now_ms(self) -> int:
        return self.value_ms


def memory() -> Iterator[World]:
    clock = SettableClock()

    def expire() -> None:
        clock.value_ms += 60_000

    ledger = MemoryLedger(clock)
    yield World(ledger, expire, ledger.hold)


def sql(address: str) -> Iterator[World]:
    engine = open_engine(address)
    migrate(engine)
    ledger = SqlLedger(engine)
    ledger.add_nodes(NODES)

    def expire() -> None:
        with begin(engine) as connection:
            connection.execute(update(leases).values(expires_ms=0))

    yield World(ledger, expire, ledger.place_hold)
    engine.dispose()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as made:
        yield made


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    match request.param:
        case "memory":
            yield from memory()
        case "sqlite":
            yield from sql(str(tmp_path / "ledger.db"))
        case _:
            yield from sql(request.getfixturevalue("cluster").new_database())


def refusal(call: Callable[[], object]) -> tuple[str, ExitCode]:
    with pytest.raises(Refused) as caught:
        call()
    return caught.value.error_id, caught.value.exit_code


def start(ledger: Ledger, stream: str = "e1", holder: str = "c1") -> Any:
    lease = ledger.acquire("fleet", holder, takeover=False)
    ledger.append(lease, stream, expected_seq=0, events=[STARTED], rows=Rows(opened=NODES))
    return lease


def test_what_was_appended_reads_back_in_order(world: World) -> None:
    lease = start(world.ledger)
    more = [StageSeen("n1"), HoldTaken("n1", serving=True, canary=True)]
    length = world.ledger.append(lease, "e1", expected_seq=1, events=more, rows=Rows(taken=("n1",)))
    assert length == 3
    assert [item.event for item in world.ledger.read("e1")] == [STARTED, *more]
    assert [item.seq for item in world.ledger.read("e1", after=1)] == [2, 3]
    assert {item.fence for item in world.ledger.read("e1")} == {lease.fence}
    assert world.ledger.read("other") == ()


def test_a_second_controller_is_told_who_holds_the_lease(world: World) -> None:
    world.ledger.acquire("fleet", "c1", takeover=False)
    with pytest.raises(Refused) as caught:
        world.ledger.acquire("fleet", "c2", takeover=False)
    assert (caught.value.error_id, caught.value.exit_code) == ("lease-busy", ExitCode.BUSY)
    assert "c1" in caught.value.got


def test_an_expired_or_released_lease_can_be_taken(world: World) -> None:
    first = world.ledger.acquire("fleet", "c1", takeover=False)
    world.expire()
    second = world.ledger.acquire("fleet", "c2", takeover=False)
    world.ledger.release(second)
    third = world.ledger.acquire("fleet", "c3", takeover=False)
    assert first.fence < second.fence < third.fence


def test_a_renewed_lease_is_busy_again(world: World) -> None:
    lease = world.ledger.acquire("fleet", "c1", takeover=False)
    world.expire()
    world.ledger.renew(lease)
    assert refusal(lambda: world.ledger.acquire("fleet", "c2", takeover=False))[0] == "lease-busy"


def test_after_a_takeover_the_old_controller_can_write_nothing(world: World) -> None:
    old = start(world.ledger)
    new = world.ledger.acquire("fleet", "c2", takeover=True)
    assert new.fence > old.fence

    def append() -> object:
        return world.ledger.append(old, "e1", expected_seq=1, events=[StageSeen("n1")], rows=Rows())

    assert refusal(append) == ("fence-stale", ExitCode.FENCED)
    assert refusal(lambda: world.ledger.renew(old)) == ("fence-stale", ExitCode.FENCED)
    world.ledger.release(old)
    assert len(world.ledger.read("e1")) == 1
    assert refusal(lambda: world.ledger.acquire("fleet", "c3", takeover=False))[0] == "lease-busy"


def test_an_append_to_a_stream_that_has_grown_changes_nothing(world: World) -> None:
    lease = start(world.ledger)

    def append() -> object:
        return world.ledger.append(
            lease, "e1", expected_seq=0, events=[StageSeen("n1")], rows=Rows(taken=("n1",))
        )

    assert refusal(append)[0] == "ledger-conflict"
    assert len(world.ledger.read("e1")) == 1
    assert world.ledger.permits("e1") == frozenset()


def test_a_permit_and_its_intent_are_taken_together_or_not_at_all(world: World) -> None:
    lease = start(world.ledger)
    taken = [HoldTaken("n1", serving=True, canary=False)]
    world.ledger.append(lease, "e1", expected_seq=1, events=taken, rows=Rows(taken=("n1",)))

    def again() -> object:
        return world.ledger.append(
            lease, "e1", expected_seq=2, events=[StopIntended("n1", op_id="0" * 32)],
            rows=Rows(taken=("n2", "n1")),
        )  # fmt: skip

    assert refusal(again)[0] == "permit-taken"
    assert len(world.ledger.read("e1")) == 2
    assert world.ledger.permits("e1") == {"n1"}


def test_a_node_is_open_in_one_epoch_only(world: World) -> None:
    lease = start(world.ledger)

    def second() -> object:
        return world.ledger.append(
            lease, "e2", expected_seq=0, events=[STARTED], rows=Rows(opened=("n3",))
        )

    assert refusal(second) == ("epoch-unfinished", ExitCode.UNFINISHED_EPOCH)
    world.ledger.append(lease, "e1", expected_seq=1, events=[], rows=Rows(closed=NODES))
    second()


def test_a_returned_permit_ends_and_can_be_taken_again(world: World) -> None:
    lease = start(world.ledger)
    world.ledger.append(lease, "e1", expected_seq=1, events=[], rows=Rows(taken=("n1", "n2")))
    assert world.ledger.permits("e1") == {"n1", "n2"}
    world.ledger.append(
        lease, "e1", expected_seq=1, events=[], rows=Rows(returned=("n1",), kept=("n2",))
    )
    assert world.ledger.permits("e1") == frozenset()
    world.ledger.append(lease, "e1", expected_seq=1, events=[], rows=Rows(taken=("n1", "n2")))
    assert world.ledger.permits("e1") == {"n1", "n2"}


def test_only_holds_of_persons_and_other_systems_are_foreign(world: World) -> None:
    lease = start(world.ledger)
    world.ledger.append(lease, "e1", expected_seq=1, events=[], rows=Rows(taken=("n1", "n2")))
    assert world.ledger.foreign_holds("e9") == frozenset()
    world.hold("n2", "alice")
    world.hold("n3", "alice")
    assert world.ledger.foreign_holds("e1") == {"n2", "n3"}
    world.ledger.append(lease, "e1", expected_seq=1, events=[], rows=Rows(returned=("n1", "n2")))
    assert world.ledger.foreign_holds("e1") == {"n2", "n3"}


def test_fences_of_two_scopes_are_apart(world: World) -> None:
    one = world.ledger.acquire("fleet-a", "c1", takeover=False)
    two = world.ledger.acquire("fleet-b", "c2", takeover=False)
    world.ledger.acquire("fleet-b", "c3", takeover=True)
    world.ledger.renew(one)
    assert refusal(lambda: world.ledger.renew(two))[0] == "fence-stale"


def test_text_from_outside_survives_as_it_is(world: World) -> None:
    lease = start(world.ledger)
    event = HealthSeen("n1", serving=False)
    world.ledger.append(lease, "e1", expected_seq=1, events=[event], rows=Rows())
    assert world.ledger.read("e1")[-1].event == event


def test_a_server_killed_at_random_moments_loses_no_acknowledged_append(cluster: Cluster) -> None:
    seed = 20260829
    moments = random.Random(seed)
    engine = open_engine(cluster.new_database())
    migrate(engine)
    ledger = SqlLedger(engine)
    ledger.add_nodes(NODES)
    lease = ledger.acquire("fleet", "c1", takeover=False)
    acknowledged = 0
    stop = threading.Event()

    def append() -> None:
        nonlocal acknowledged
        while not stop.is_set():
            try:
                length = len(ledger.read("e1"))
                acknowledged = ledger.append(
                    lease, "e1", expected_seq=length, events=[StageSeen("n1")], rows=Rows()
                )
            except Failed as error:
                if not error.retryable:
                    raise
                time.sleep(0.02)

    worker = threading.Thread(target=append)
    worker.start()
    try:
        for _ in range(4):
            time.sleep(moments.uniform(0.05, 0.5))
            cluster.kill()
            cluster.start()
    finally:
        stop.set()
        worker.join(30)
    assert not worker.is_alive(), f"seed {seed}"
    assert acknowledged > 0
    # One more than acknowledged is possible: the answer to a durable append can be lost.
    assert acknowledged <= len(ledger.read("e1")) <= acknowledged + 1, f"seed {seed}"
    assert audit_ledger(engine).events == len(ledger.read("e1"))
    engine.dispose()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_of_two_controllers_that_race_for_a_permit_one_gets_it(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    address = str(tmp_path / "ledger.db")
    if kind == "postgres":
        address = request.getfixturevalue("cluster").new_database()
    engine = open_engine(address)
    migrate(engine)
    SqlLedger(engine).add_nodes(NODES)
    won: list[str] = []

    def take(number: int) -> None:
        ledger = SqlLedger(engine)
        lease = ledger.acquire(f"scope{number}", f"c{number}", takeover=False)
        for _ in range(50):
            try:
                ledger.append(
                    lease, f"e{number}", expected_seq=0, events=[STARTED], rows=Rows(taken=("n1",))
                )
            except Failed as error:
                if not error.retryable:
                    raise
                continue
            except Refused as error:
                if error.error_id != "permit-taken":
                    raise
                return
            won.append(f"e{number}")
            return

    workers = [threading.Thread(target=take, args=(number,)) for number in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert len(won) == 1
    assert SqlLedger(engine).permits(won[0]) == {"n1"}
    engine.dispose()


def test_what_an_ended_epoch_left_held_is_taken_over_by_a_newer_one(world: World) -> None:
    lease = start(world.ledger)
    world.ledger.append(lease, "e1", expected_seq=1, events=[], rows=Rows(taken=("n1",)))
    world.ledger.append(
        lease, "e1", expected_seq=1, events=[], rows=Rows(kept=("n1",), closed=NODES)
    )
    assert world.ledger.foreign_holds("e2") == frozenset()
    rows = Rows(opened=("n1",), taken=("n1",))
    world.ledger.append(lease, "e2", expected_seq=0, events=[STARTED], rows=rows)
    assert world.ledger.permits("e2") == {"n1"}


def test_a_plan_is_kept_once_and_found_by_its_epoch(world: World) -> None:
    plan = make_plan()
    world.ledger.keep_plan(plan)
    world.ledger.keep_plan(plan)
    lease = world.ledger.acquire("fleet", "c1", takeover=False)
    started = Started(plan=plan_digest(plan), fence=lease.fence)
    world.ledger.append(lease, "e1", expected_seq=0, events=[started], rows=Rows())
    assert world.ledger.plan("e1") == plan


def test_a_node_that_is_open_elsewhere_brings_no_permit_either(world: World) -> None:
    lease = start(world.ledger)
    rows = Rows(opened=("n1",), taken=("n2",))

    def second() -> object:
        return world.ledger.append(lease, "e2", expected_seq=0, events=[STARTED], rows=rows)

    assert refusal(second)[0] == "epoch-unfinished"
    assert world.ledger.read("e2") == ()
    assert world.ledger.permits("e2") == frozenset()
