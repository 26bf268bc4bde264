"""`verify` recomputes every state, and finds every row that says something else."""

import pytest

from capsule.lane.node import CommitSeen
from capsule.lane.ports import Rows
from capsule.ledger.audit import audit_ledger
from capsule.ledger.engine import snapshot
from capsule.ledger.fold import check_states
from capsule.ledger.plans import epochs as epochs_of
from capsule.ledger.rebuild import rebuild
from capsule.ledger.rebuilt import NodeRebuilt
from capsule_manifest.errors import ExitCode, Refused
from sim.fleet import Simulation
from support.ledgers import opened, record_epoch, tamper
from support.postgres import running_cluster


@pytest.fixture(scope="module")
def epochs():
    """Run three epochs in the simulator, under faults; each leaves other nodes behind."""
    made = []
    for seed in (9, 17, 26):
        simulation = Simulation(seed, 12)
        simulation.run()
        plan = simulation.plan
        made.append((plan, [r.event for r in simulation.ledger.read(plan.epoch)], simulation))
    return made


@pytest.fixture
def path(tmp_path, epochs):
    with opened(tmp_path / "ledger.db") as ledger:
        plan, events, _ = epochs[0]
        record_epoch(ledger, plan, events)
    return tmp_path / "ledger.db"


def found_wrong(path):
    with opened(path) as ledger, pytest.raises(Refused) as caught:
        audit_ledger(ledger.engine)
        check_states(ledger.engine)
    assert (caught.value.error_id, caught.value.exit_code) == (
        "ledger-damaged",
        ExitCode.INTEGRITY,
    )
    return caught.value


def test_the_recomputed_states_are_those_that_the_controller_had(tmp_path, epochs):
    for number, (plan, events, simulation) in enumerate(epochs):
        with opened(tmp_path / f"{number}.db") as ledger:
            record_epoch(ledger, plan, events)
            (fold,) = check_states(ledger.engine)
            assert fold.length == len(events) == audit_ledger(ledger.engine).events
        state = simulation.controllers[-1].driver.state
        assert (fold.state.epoch, fold.state.lanes) == (state.epoch, state.lanes)
        assert {m.name: (m.state, m.hold) for m in fold.state.members.values()} == {
            m.name: (m.state, m.hold) for m in state.members.values()
        }


@pytest.mark.parametrize(
    ("statement", "where"),
    [
        ("DELETE FROM open_members WHERE node = 'n0003'", "open_members, n0003"),
        ("UPDATE open_members SET stream = 'other' WHERE node = 'n0003'", "open_members, n0003"),
        ("INSERT INTO permits VALUES ('n0002', 'e9')", "permits, n0002"),
        ("DELETE FROM holds WHERE node = 'n0008'", "holds, n0008"),
        ("INSERT INTO holds VALUES ('n0001', 'e9')", "holds, n0001"),
        ("DELETE FROM plans", "e9, event 1"),
        ("UPDATE plans SET body = replace(body, '\"floor\":', '\"floor\":1')", "e9, event 1"),
        ("DELETE FROM events WHERE seq > 40", ""),
    ],
)
def test_the_first_wrong_row_is_named(path, statement, where):
    tamper(path, statement)
    assert where in found_wrong(path).where


def test_an_event_that_no_state_allows_is_named(path):
    with opened(path) as ledger:
        lease = ledger.acquire("fleet", "mallory", takeover=True)
        length = len(ledger.read("e9"))
        ledger.append(
            lease, "e9", expected_seq=length, events=[CommitSeen("n0001")] * 2, rows=Rows()
        )
    assert found_wrong(path).where.startswith("e9, event ")


def test_a_hold_that_a_later_epoch_took_over_is_no_damage(tmp_path, epochs):
    with opened(tmp_path / "ledger.db") as ledger:
        for plan, events, _ in epochs:
            if events[-1].__class__.__name__ == "Ended":
                record_epoch(ledger, plan, events)
        check_states(ledger.engine)


def test_postgresql_is_verified_by_the_same_code_while_others_write(epochs):
    with running_cluster() as cluster, opened(cluster.new_database()) as ledger:
        plan, events, _ = epochs[1]
        record_epoch(ledger, plan, events)
        with snapshot(ledger.engine) as connection:
            before = epochs_of(connection)
            other, more, _ = epochs[2]
            record_epoch(ledger, other, more)
            assert epochs_of(connection) == before == (plan.epoch,)
        assert {fold.stream for fold in check_states(ledger.engine)} == {plan.epoch, other.epoch}
        assert audit_ledger(ledger.engine).events == len(events) + len(more)
        rebuilt = [NodeRebuilt("n1", "k", "g", 40, 1, "h", "host")]
        with pytest.raises(Refused, match="ledger-not-empty"):
            rebuild(ledger, rebuilt, held=[], scope="fleet", holder="rebuild")
    with running_cluster() as cluster, opened(cluster.new_database()) as ledger:
        assert rebuild(ledger, rebuilt, held=["n1"], scope="fleet", holder="rebuild") == 41
        check_states(ledger.engine)
        assert ledger.acquire("fleet", "c1", takeover=False).fence == 42


def test_a_persons_hold_is_not_the_events_business(path):
    with opened(path) as ledger:
        ledger.place_hold("n0001", "alice")
        check_states(ledger.engine)
