"""What every ledger promises, whichever database is behind it."""

import pytest

from capsule.lane.epoch import Paused
from capsule.lane.ports import Rows
from capsule_manifest.errors import Refused
from support.memory_ledger import LEASE_MS, MemoryLedger


class SteppedClock:
    def __init__(self):
        self.now = 0

    def now_ms(self):
        return self.now


def memory_ledger(clock, _folder):
    return MemoryLedger(clock)


# A factory takes a clock and a folder. The SQL ledger is added here with its engines.
FACTORIES = {"memory": memory_ledger}


@pytest.fixture
def clock():
    return SteppedClock()


@pytest.fixture(params=FACTORIES.values(), ids=FACTORIES)
def ledger(request, clock, tmp_path):
    return request.param(clock, tmp_path)


def event(text="x"):
    return Paused(text)


def append(ledger, lease, *texts, stream="e1", seq=0, **rows):
    events = [event(text) for text in texts]
    return ledger.append(lease, stream, expected_seq=seq, events=events, rows=Rows(**rows))


def refused(error_id, act, *arguments, **options):
    with pytest.raises(Refused) as caught:
        act(*arguments, **options)
    assert caught.value.error_id == error_id
    return caught.value


def test_the_first_lease_has_a_fence_and_the_next_a_higher_one(ledger):
    first = ledger.acquire("fleet", "ana", takeover=False)
    ledger.release(first)
    second = ledger.acquire("fleet", "bob", takeover=False)
    assert (first.fence, second.fence, second.holder) == (1, 2, "bob")


def test_a_running_lease_refuses_another_holder_by_name(ledger):
    ledger.acquire("fleet", "ana", takeover=False)
    assert "ana" in refused("lease-busy", ledger.acquire, "fleet", "bob", takeover=False).got


def test_scopes_do_not_share_a_lease(ledger):
    ledger.acquire("cell-1", "ana", takeover=False)
    assert ledger.acquire("cell-2", "bob", takeover=False).fence == 1


def test_a_lease_that_ran_out_may_be_taken(ledger, clock):
    ledger.acquire("fleet", "ana", takeover=False)
    clock.now += LEASE_MS
    assert ledger.acquire("fleet", "bob", takeover=False).fence == 2


def test_a_renewed_lease_runs_on(ledger, clock):
    lease = ledger.acquire("fleet", "ana", takeover=False)
    clock.now += LEASE_MS - 1
    ledger.renew(lease)
    clock.now += LEASE_MS - 1
    refused("lease-busy", ledger.acquire, "fleet", "bob", takeover=False)


def test_a_takeover_needs_no_expiry_and_fences_the_old_holder(ledger):
    old = ledger.acquire("fleet", "ana", takeover=False)
    new = ledger.acquire("fleet", "bob", takeover=True)
    refused("fence-stale", append, ledger, old, "late")
    refused("fence-stale", ledger.renew, old)
    assert append(ledger, new, "mine") == 1


def test_releasing_a_stale_lease_leaves_the_new_one_alone(ledger):
    old = ledger.acquire("fleet", "ana", takeover=False)
    ledger.acquire("fleet", "bob", takeover=True)
    ledger.release(old)
    refused("lease-busy", ledger.acquire, "fleet", "eve", takeover=False)


def test_events_come_back_in_order_with_their_sequence_and_fence(ledger):
    lease = ledger.acquire("fleet", "ana", takeover=False)
    assert append(ledger, lease, "a", "b") == 2
    assert append(ledger, lease, "c", seq=2) == 3
    recorded = ledger.read("e1")
    assert [(r.seq, r.fence, r.event) for r in recorded] == [
        (1, 1, event("a")),
        (2, 1, event("b")),
        (3, 1, event("c")),
    ]
    assert ledger.read("e1", after=2) == recorded[2:]
    assert ledger.read("another") == ()


def test_an_append_that_was_decided_on_an_older_state_is_refused(ledger):
    lease = ledger.acquire("fleet", "ana", takeover=False)
    append(ledger, lease, "a")
    refused("ledger-conflict", append, ledger, lease, "b", seq=0)
    refused("ledger-conflict", append, ledger, lease, "b", seq=2)
    assert len(ledger.read("e1")) == 1


def test_a_node_is_open_in_one_epoch_at_most(ledger):
    lease = ledger.acquire("fleet", "ana", takeover=False)
    append(ledger, lease, "a", opened=("n1", "n2"))
    error = refused(
        "epoch-unfinished", append, ledger, lease, "b", stream="e2", opened=("n3", "n2")
    )
    assert (error.where, error.got) == ("n2", "epoch e1")
    append(ledger, lease, "end", seq=1, closed=("n1", "n2"))
    append(ledger, lease, "b", stream="e2", opened=("n2",))


def test_a_refused_append_changes_nothing_at_all(ledger):
    lease = ledger.acquire("fleet", "ana", takeover=False)
    append(ledger, lease, "a", opened=("n1",), taken=("n1",))
    refused("permit-taken", append, ledger, lease, "b", stream="e2", taken=("n2", "n1"))
    assert ledger.read("e2") == ()
    append(ledger, lease, "b", stream="e2", taken=("n2",))


def test_a_returned_permit_may_be_taken_again(ledger):
    lease = ledger.acquire("fleet", "ana", takeover=False)
    append(ledger, lease, "a", taken=("n1",))
    refused("permit-taken", append, ledger, lease, "b", seq=1, taken=("n1",))
    append(ledger, lease, "b", seq=1, returned=("n1",))
    assert append(ledger, lease, "c", seq=2, taken=("n1",)) == 3


def test_a_kept_hold_gives_the_permit_back_and_a_newer_epoch_takes_it_over(ledger):
    lease = ledger.acquire("fleet", "ana", takeover=False)
    append(ledger, lease, "a", opened=("n1",), taken=("n1",))
    append(ledger, lease, "b", seq=1, kept=("n1",), closed=("n1",))
    assert ledger.holders("n1") == {"e1"}
    assert ledger.foreign_holds("e2") == frozenset()
    append(ledger, lease, "a", stream="e2", opened=("n1",), taken=("n1",))
    assert ledger.holders("n1") == {"e2"}


def test_a_persons_hold_is_foreign_and_outlives_the_epochs_own(ledger):
    lease = ledger.acquire("fleet", "ana", takeover=False)
    ledger.hold("n1", "operator ana")
    append(ledger, lease, "a", taken=("n1",))
    append(ledger, lease, "b", seq=1, returned=("n1",))
    assert ledger.foreign_holds("e1") == {"n1"}
    assert ledger.holders("n1") == {"operator ana"}
    ledger.unhold("n1", "operator ana")
    assert ledger.foreign_holds("e1") == frozenset()
