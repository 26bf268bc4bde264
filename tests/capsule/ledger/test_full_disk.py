"""A controller whose disk fills up: what was started ends in the ledger, and nothing new begins."""

import os
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from capsule.lane.budget import Budget
from capsule.lane.epoch import Parked
from capsule.lane.node import HoldTaken, NodeState, StageSeen
from capsule.lane.plan import PlannedNode, RolloutPlan
from capsule.lane.ports import Lease, Rows
from capsule.ledger.audit import audit_ledger
from capsule.ledger.fold import check_states
from capsule.ledger.opening import open_ledger, reserve_path
from capsule.ledger.reserve import RESERVE_BYTES, Reserve
from capsule_manifest.errors import ExitCode, Failed
from sim.bench import Bench
from support.ledgers import AuditedSqlLedger

PLAN = RolloutPlan(
    epoch="e1",
    capsule="c",
    route="r",
    preflight="p",
    nodes=tuple(
        PlannedNode(name=f"n{number}", lane=f"l{number // 4}", domain="d", serving=True)
        for number in range(8)
    ),
    bystanders=0,
    max_unavailable=2,
    floor=4,
    domain_cap=None,
    max_failed_lanes=None,
    allow_outage=False,
    budget=Budget(),
)
DISK_BYTES = RESERVE_BYTES + 8 * 1024 * 1024


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own with little more room than the reserve."""
    if os.geteuid() != 0:
        pytest.skip("not run, needs root to mount a file system")
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)], check=True
    )
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Write until not a byte is left, page by page at the end."""
    with (folder / "filler").open("ab", buffering=0) as stream:
        for size in (1 << 20, 1 << 12):
            with suppress(OSError):
                while True:
                    stream.write(b"x" * size)
    free = os.statvfs(folder)
    assert free.f_bavail == 0


def rollout(ledger):
    ledger.add_nodes([node.name for node in PLAN.nodes])
    bench = Bench(PLAN, {})
    bench.ledger = AuditedSqlLedger(ledger)
    bench.ledger.audit = bench.audit
    return bench


def run_until_full(bench, folder, committed):
    """Run an epoch and fill the disk while nodes are between their stop and their outcome."""
    controller = bench.controller(lambda _controller: None)
    controller.run(controller.driver.start)
    members = controller.driver.state.members
    while bench.world.step():
        members = controller.driver.state.members
        states = [member.state for member in members.values()]
        if states.count(NodeState.COMMITTED) >= committed and NodeState.STOPPED in states:
            break
    fill(folder)
    under_way = {m.name for m in members.values() if m.hold != "free"}
    assert under_way
    while bench.world.step():
        pass
    return controller, under_way


def test_on_a_full_disk_nodes_under_way_end_and_no_other_is_taken(small_disk):
    address = str(small_disk / "ledger.db")
    with open_ledger(address, create=True) as ledger:
        bench = rollout(ledger)
        controller, under_way = run_until_full(bench, small_disk, committed=3)
        recorded = [item.event for item in ledger.read("e1")]
        taken = {event.node for event in recorded if isinstance(event, HoldTaken)}
        state = controller.driver.state
        for name in under_way:
            assert state.members[name].state is NodeState.COMMITTED
            assert state.members[name].hold == "free"
        untaken = {node.name for node in PLAN.nodes} - taken
        assert untaken, "the disk was full too late"
        assert {state.members[name].state for name in untaken} == {NodeState.STAGED}
        parked = recorded[-1]
        assert isinstance(parked, Parked)
        assert parked.exit_code == ExitCode.SPACE
        assert controller.driver.refusal.error_id == "ledger-full"
        assert not reserve_path(address).exists()
        assert bench.audit.violations == []
        assert audit_ledger(ledger.engine).events == len(recorded)
        check_states(ledger.engine)


def test_with_space_again_the_epoch_is_adopted_and_ends(small_disk):
    address = str(small_disk / "ledger.db")
    with open_ledger(address, create=True) as ledger:
        bench = rollout(ledger)
        run_until_full(bench, small_disk, committed=3)
        (small_disk / "filler").unlink()
        adopter = bench.controller(lambda _controller: None)
        adopter.run(adopter.driver.adopt, takeover=True)
        bench.run()
        assert adopter.driver.state.tally.committed == len(PLAN.nodes)
        assert bench.audit.violations == []
        check_states(ledger.engine)


def test_no_epoch_begins_on_a_full_disk_and_the_exit_code_is_20(small_disk):
    address = str(small_disk / "ledger.db")
    with open_ledger(address, create=True) as ledger:
        bench = rollout(ledger)
        fill(small_disk)
        controller = bench.controller(lambda _controller: None)
        with pytest.raises(Failed) as caught:
            controller.driver.start()
        assert (caught.value.error_id, caught.value.exit_code) == ("ledger-full", ExitCode.SPACE)
        assert ledger.read("e1") == ()
        # The lease was given back: whoever makes space can begin at once.
        assert ledger.acquire("fleet", "c2", takeover=False).fence == 2


def test_no_new_permit_is_paid_from_the_reserve(small_disk):
    address = str(small_disk / "ledger.db")
    with open_ledger(address, create=True) as ledger:
        bench = rollout(ledger)
        controller = bench.controller(lambda _controller: None)
        controller.run(controller.driver.start)
        lease = Lease(scope="fleet", holder="c0", fence=controller.driver.fence)
        length = len(ledger.read("e1"))
        fill(small_disk)
        events = [StageSeen("n0")] * 200  # more than any page has left
        with pytest.raises(Failed) as caught:
            ledger.append(lease, "e1", expected_seq=length, events=events, rows=Rows(taken=("n7",)))
        assert caught.value.error_id == "ledger-full"
        assert reserve_path(address).exists()
        assert ledger.append(lease, "e1", expected_seq=length, events=events, rows=Rows()) > length
        assert not reserve_path(address).exists()


def test_a_sparse_file_is_no_reserve(tmp_path):
    path = tmp_path / "reserve"
    with path.open("wb") as stream:
        stream.truncate(1 << 20)
    reserve = Reserve(path, size_bytes=1 << 20)
    assert not reserve.is_whole
    reserve.require()
    assert reserve.is_whole
    assert (reserve.release(), reserve.release()) == (True, False)


def test_half_a_reserve_is_given_back(small_disk):
    reserve = Reserve(small_disk / "reserve", size_bytes=2 * DISK_BYTES)
    with pytest.raises(Failed):
        reserve.require()
    assert list(small_disk.iterdir()) == []
    assert os.statvfs(small_disk).f_bavail * 4096 > DISK_BYTES // 2
