"""What a host remembers: numbers only grow, nonces end with the boot, damage is named."""

from pathlib import Path

import pytest

from capsule_installer.host.identity import (
    load_node_key,
    make_node_key,
    node_key_path,
    require_node_key,
)
from capsule_installer.host.layout import make_layout
from support.deliveries import Receiver
from support.failures import fails_with


@pytest.fixture
def receiver(tmp_path: Path) -> Receiver:
    made = Receiver(str(tmp_path))
    made.enrol()
    return made


def test_a_fence_only_grows(receiver):
    assert receiver.state.fence() == 0
    receiver.state.raise_fence(7)
    receiver.state.raise_fence(7)
    with fails_with("order-fenced"):
        receiver.state.raise_fence(6)
    assert receiver.state.fence() == 7


def test_a_counter_floor_is_never_lowered(receiver):
    receiver.state.raise_counter_floor(5)
    receiver.state.raise_counter_floor(4)
    assert receiver.state.counter_floor() == 5


@pytest.mark.parametrize("text", ["", "-1", "1.5", "seven", "٣", "9" * 20, "1 2"])
def test_a_damaged_number_is_named_and_not_guessed(receiver, text):
    Path(receiver.layout.state, "fence").write_text(text)
    with fails_with("state-malformed"):
        receiver.state.fence()


def test_a_nonce_is_known_in_its_boot_only(receiver):
    receiver.state.remember_nonce("abc", boot_id="b1", boot_ms=123)
    assert receiver.state.nonce_ms("abc", boot_id="b1") == 123
    assert receiver.state.nonce_ms("abc", boot_id="b2") is None
    assert receiver.state.nonce_ms("other", boot_id="b1") is None
    assert receiver.state.nonce_ms("../lock", boot_id="b1") is None


def test_only_the_newest_nonces_are_kept(receiver):
    for index in range(80):
        receiver.state.remember_nonce(f"n{index}", boot_id="b1", boot_ms=index)
    assert len(list(Path(receiver.layout.nonces).iterdir())) == 64
    assert receiver.state.nonce_ms("n79", boot_id="b1") == 79
    assert receiver.state.nonce_ms("n0", boot_id="b1") is None


@pytest.mark.parametrize("target", ["/etc", "generations/", "../generations/7-01234567"])
def test_a_link_that_leads_elsewhere_is_named(receiver, target):
    Path(receiver.layout.current).symlink_to(target)
    with fails_with("state-malformed"):
        receiver.state.generation_of(receiver.layout.current)


def test_a_host_that_was_never_enrolled_says_so(tmp_path):
    receiver = Receiver(str(tmp_path))
    receiver.host.prepare()
    with fails_with("host-not-enrolled"):
        receiver.state.require_enrolment()
    with fails_with("host-not-enrolled"):
        receiver.state.policy()
    with fails_with("host-not-enrolled"):
        require_node_key(receiver.disk, receiver.layout)
    assert receiver.state.route(receiver.policy) is None


def test_the_node_key_is_made_once_and_closed_to_others(receiver):
    path = Path(node_key_path(receiver.layout))
    assert path.stat().st_mode & 0o777 == 0o600
    first = load_node_key(receiver.disk, receiver.layout)
    assert make_node_key(receiver.disk, receiver.layout).public == first.public
    first.public.verify(first.sign(b"message"), b"message", "test")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_an_exposed_node_key_is_not_used(receiver, mode):
    Path(node_key_path(receiver.layout)).chmod(mode)
    with fails_with("node-key-exposed"):
        load_node_key(receiver.disk, receiver.layout)


def test_a_damaged_node_key_is_named(receiver):
    Path(node_key_path(receiver.layout)).write_bytes(b"-----BEGIN PRIVATE KEY-----\n")
    with fails_with("key-malformed"):
        load_node_key(receiver.disk, receiver.layout)


@pytest.mark.parametrize(
    "root", ["", "a", "/a/", "/a//b", "/a/../b", "/.", "/a b", "/a'b", '/a"b', "/a%b", "/a\nb"]
)
def test_a_root_that_is_no_plain_path_is_refused(root):
    with fails_with("root-invalid"):
        make_layout(root)


@pytest.mark.parametrize("root", ["/", "/srv/n1", "/tmp/x-1.y_2/.hidden"])
def test_a_plain_root_is_taken(root):
    assert make_layout(root).opt.endswith("/opt/capsule")
