"""Streams that are opened before a command knows for sure where they lead."""

import sys
import threading

import pytest

from capsule import early
from capsule.early import EARLY_MAX, EarlyStreams, first_sight, streams_for
from capsule.inventory import read_fleet
from capsule.transport.base import QUICK, RECEIVE
from capsule_manifest.errors import Failed
from capsule_manifest.route import Endpoint
from support.failures import fails_with

HEAD = """\
format = 1
product = "acme/hello"
[fleet]
floor = 0
max_unavailable = 1
guard_min = "L0"
"""
NODE = 'role = "web"\nplatform = "bookworm"\n'
PLAIN = f"""\
[nodes.n1]
address = "10.0.0.1"
host_key = "ssh-ed25519 AAAA comment"
{NODE}lane = "a"
[nodes.n2]
address = "10.0.0.2"
port = 2222
user = "deploy"
host_ca = "ssh-ed25519 BBBB"
jump = ["gate", "inner"]
{NODE}lane = "b"
[nodes.n3]
local = "n3"
{NODE}lane = "b"
[nodes.n4]
address = "10.0.0.4"
host_key = "ssh-ed25519 CCCC"
{NODE}
[jumps.gate]
address = "gate.example"
host_key = "ssh-ed25519 DDDD"
[jumps.inner]
address = "inner.example"
port = 23
user = "hop"
host_ca = "ssh-ed25519 EEEE of ours"
"""
ARGV = ("program", "receive", "--hello")


class Stream:
    """A channel that only remembers; what else is asked of it fails."""

    def __init__(self):
        self.limits, self.closed = [], threading.Event()

    def limit(self, limits):
        self.limits.append(limits)

    def __exit__(self, *error):
        self.closed.set()


class Way:
    """A transport whose openings wait until they are let through."""

    root, place = "", "a host"

    def __init__(self, failure=None):
        self.opened, self.streams, self.failure = [], [], failure
        self.let_through = threading.Event()

    def open(self, argv, *, limits):
        self.opened.append((argv, limits))
        assert self.let_through.wait(10)
        if self.failure is not None:
            raise self.failure
        self.streams.append(Stream())
        return self.streams[-1]


@pytest.fixture
def way():
    return Way()


def early_on(way):
    return EarlyStreams(lambda *_: way, lambda _: ARGV, limits=RECEIVE)


def endpoint(address="10.0.0.1"):
    return Endpoint(kind="ssh", address=address, port=22, user="root", host_key="k k", jump=())


def seen(tmp_path, text, **selection):
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    return first_sight(path, **{"lane": None, "nodes": (), **selection})


def test_what_is_seen_at_first_sight_is_what_the_checked_inventory_says(tmp_path):
    fleet = read_fleet((HEAD + PLAIN).encode(), folder=tmp_path, where="fleet.toml")
    found = seen(tmp_path, HEAD + PLAIN, lane="all")
    assert dict(found) == {name: fleet.nodes[name].endpoint for name in ("n1", "n2", "n4")}


def test_only_selected_nodes_are_seen(tmp_path):
    assert list(seen(tmp_path, HEAD + PLAIN, lane="b")) == ["n2"]
    assert list(seen(tmp_path, HEAD + PLAIN, nodes=("n4", "n1"))) == ["n4", "n1"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nodes",
        "nodes = 3",
        "[nodes]\nn1 = 4",
        '[nodes.n1]\naddress = "10.0.0.1"',
        '[nodes.n1]\naddress = 3\nhost_key = "a b"',
        '[nodes.n1]\naddress = "10.0.0.1"\nport = "22"\nhost_key = "a b"',
        '[nodes.n1]\naddress = "10.0.0.1"\nhost_key = "a b"\njump = 3',
        '[nodes.n1]\naddress = "10.0.0.1"\nhost_key = "a b"\njump = ["gone"]',
        'jumps = 3\n[nodes.n1]\naddress = "10.0.0.1"\nhost_key = "a b"\njump = ["gone"]',
    ],
)
def test_an_inventory_that_is_not_plain_shows_nothing(tmp_path, text):
    assert seen(tmp_path, text, lane="all") == {}


def test_an_inventory_that_is_not_there_or_no_text_shows_nothing(tmp_path):
    assert first_sight(tmp_path / "gone.toml", lane="all", nodes=()) == {}
    (tmp_path / "fleet.toml").write_bytes(b"\xff")
    assert first_sight(tmp_path / "fleet.toml", lane="all", nodes=()) == {}


def test_the_first_who_opens_gets_the_stream_that_was_begun_and_its_deadlines_anew(way):
    with early_on(way) as early:
        early.begin({"n1": endpoint()})
        transport = early.connect(endpoint(), "n1")
        way.let_through.set()
        stream = transport.open(ARGV, limits=RECEIVE)
        assert stream is way.streams[0]
        assert stream.limits == [RECEIVE]
        assert transport.open(ARGV, limits=RECEIVE) is way.streams[1]
    assert not stream.closed.is_set()


def test_a_stream_to_another_place_or_for_another_program_is_never_used(way):
    way.let_through.set()
    with early_on(way) as early:
        early.begin({"n1": endpoint()})
        while not way.streams:
            pass
        assert early.connect(endpoint("10.0.0.2"), "n1") is way
        assert early.connect(endpoint(), "n2") is way
        transport = early.connect(endpoint(), "n1")
        for argv, limits in ((("program", "hello"), RECEIVE), (ARGV, QUICK)):
            transport.open(argv, limits=limits)
            assert way.opened[-1] == (argv, limits)
    assert len(way.opened) == 3
    assert way.streams[0].closed.wait(10)


def test_what_nobody_claimed_is_closed_also_when_it_opens_late(way):
    with early_on(way) as early:
        early.begin({"n1": endpoint()})
    way.let_through.set()
    while not way.streams:
        pass
    assert way.streams[0].closed.wait(10)


def test_a_host_that_cannot_be_reached_is_said_to_whoever_opens(way):
    way.failure = Failed("host-unreachable", "no host")
    way.let_through.set()
    with early_on(way) as early:
        early.begin({"n1": endpoint()})
        transport = early.connect(endpoint(), "n1")
        with fails_with("host-unreachable"):
            transport.open(ARGV, limits=RECEIVE)


def test_no_more_are_begun_than_are_worked_on_at_a_time(way):
    way.let_through.set()
    with early_on(way) as early:
        early.begin({f"n{index}": endpoint(f"10.0.0.{index}") for index in range(EARLY_MAX + 3)})
        assert len(way.opened) == EARLY_MAX


@pytest.mark.parametrize(
    ("arguments", "begun"),
    [
        (["a.capsule", "--lane", "all"], ["n1", "n2", "n4"]),
        (["a.capsule", "--lane=a", "--json"], ["n1"]),
        (["--node=n4", "--node", "n1", "a.capsule"], ["n4", "n1"]),
        (["a.capsule"], []),
        (["--help"], []),
        (["a.capsule", "--lane", "all", "--help"], []),
        (["a.capsule", "--lane", "all", "--node", "n1"], []),
        (["a.capsule", "--lane"], []),
        (["a.capsule", "--node", "gone"], []),
    ],
)
def test_streams_begin_as_the_arguments_say_and_none_if_they_contradict(
    tmp_path, monkeypatch, way, arguments, begun
):
    (tmp_path / "fleet.toml").write_text(HEAD + PLAIN)
    met = []
    monkeypatch.setattr(early, "connect", lambda _endpoint, node: met.append(node) or way)
    with streams_for([*arguments, f"--fleet={tmp_path / 'fleet.toml'}"]):
        assert met == begun
    way.let_through.set()


def test_what_the_machine_refuses_while_a_stream_is_opened_is_said_to_whoever_opens(way):
    way.failure = OSError(28, "No space left on device", "/tmp/config")
    way.let_through.set()
    with early_on(way) as early_streams:
        early_streams.begin({"n1": endpoint()})
        transport = early_streams.connect(endpoint(), "n1")
        with pytest.raises(OSError, match="No space left"):
            transport.open(ARGV, limits=RECEIVE)


def test_threads_take_turns_as_usual_once_the_streams_are_asked_for(way):
    usual = sys.getswitchinterval()
    way.let_through.set()
    with early_on(way) as early_streams:
        early_streams.begin({"n1": endpoint()})
        assert sys.getswitchinterval() < usual
        early_streams.connect(endpoint(), "n1")
        assert sys.getswitchinterval() == usual
