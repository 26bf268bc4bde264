import threading
import time

import pytest

from capsule.transport.handshakes import ATTEMPTS_MAX, Handshakes, with_retries
from capsule_manifest.errors import Failed
from capsule_manifest.route import Hop
from support.failures import fails_with

RETRYABLE = frozenset({"ssh-throttled"})


def hop(name):
    return Hop(address=name, port=22, user="root", host_key="k")


class Busy:
    """Refuse some calls, then answer."""

    def __init__(self, *error_ids):
        self.error_ids = list(error_ids)
        self.calls = 0

    def __call__(self):
        self.calls += 1
        if self.error_ids:
            raise Failed(self.error_ids.pop(0), "no")
        return "in"


def test_a_busy_host_is_tried_three_times_with_growing_pauses():
    pauses = []
    busy = Busy("ssh-throttled", "ssh-throttled")
    result = with_retries(busy, retryable=RETRYABLE, pause=pauses.append, draw=lambda: 1.0)
    assert result == "in"
    assert pauses == [0.5, 1.0]


def test_after_three_attempts_the_error_is_the_hosts():
    busy = Busy(*["ssh-throttled"] * 9)
    with fails_with("ssh-throttled"):
        with_retries(busy, retryable=RETRYABLE, pause=lambda _: None)
    assert busy.calls == ATTEMPTS_MAX == 3


@pytest.mark.parametrize("error_id", ["host-key-changed", "ssh-auth-refused", "sudo-refused"])
def test_what_more_attempts_can_only_make_worse_is_tried_once(error_id):
    busy = Busy(error_id)
    with fails_with(error_id):
        with_retries(busy, retryable=RETRYABLE, pause=lambda _: None)
    assert busy.calls == 1


def test_hosts_that_were_refused_together_do_not_come_back_together():
    pauses = []
    for _ in range(20):
        with_retries(Busy("ssh-throttled"), retryable=RETRYABLE, pause=pauses.append)
    assert len(set(pauses)) > 10
    assert all(0 <= pause <= 0.5 for pause in pauses)


def most_at_once(ways, handshakes, *, meeting=1):
    """Return the most handshakes at one time when all `ways` are taken together.

    So many as `meeting` wait for each other inside, however slowly the threads are started.
    """
    lock, now, most = threading.Lock(), [0], [0]
    barrier = threading.Barrier(meeting)

    def take(hops):
        with handshakes.slot(hops):
            with lock:
                now[0] += 1
                most[0] = max(most[0], now[0])
            barrier.wait(timeout=60)
            time.sleep(0.01)
            with lock:
                now[0] -= 1

    threads = [threading.Thread(target=take, args=(hops,)) for hops in ways]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
        assert not thread.is_alive(), "two ways wait for each other"
    return most[0]


def test_a_jump_host_counts_for_every_node_behind_it():
    ways = [(hop("jump"), hop(f"n{index}")) for index in range(24)]
    assert most_at_once(ways, Handshakes(), meeting=8) == 8


def test_hosts_of_their_own_do_not_wait_for_each_other():
    ways = [(hop(f"n{index}"),) for index in range(12)]
    assert most_at_once(ways, Handshakes(), meeting=12) == 12


def test_ways_that_cross_each_other_never_wait_for_ever():
    ways = [(hop("a"), hop("b")), (hop("b"), hop("a"))] * 20
    assert most_at_once(ways, Handshakes(at_once=1)) == 1


def test_a_way_through_one_host_twice_takes_one_slot():
    assert most_at_once([(hop("a"), hop("a"))], Handshakes(at_once=1)) == 1
