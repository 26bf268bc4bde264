"""What SSH hosts do to those who connect, each on both SSH transports and a real sshd."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from capsule.transport.base import Limits
from capsule.transport.fabric_ssh import FabricTransport
from capsule.transport.handshakes import Handshakes
from capsule.transport.openssh import OpensshTransport
from capsule.transport.ssh_entry import Timing
from capsule_manifest.errors import CapsuleError, ExitCode
from support.sshd import SSHD, Keys, SshServer, talking_port

pytestmark = [
    pytest.mark.skipif(SSHD is None, reason="sshd is not installed"),
    pytest.mark.timeout(60),
]

LIMITS = Limits(total_s=20.0, idle_s=10.0)
HURRIED = Timing(connect_s=1, start_s=2)
both = pytest.mark.parametrize("kind", [OpensshTransport, FabricTransport])


@pytest.fixture
def keys(tmp_path):
    return Keys(tmp_path)


@pytest.fixture
def transports():
    made = []

    def make(kind, endpoint, keys, *, timing=Timing(), key="client"):  # noqa: B008 - frozen
        way = kind(endpoint, access=keys.access(key), handshakes=Handshakes(), timing=timing)
        made.append(way)
        return way

    yield make
    for way in made:
        if isinstance(way, FabricTransport):
            way.close()


def run(transport, *argv, limits=LIMITS):
    with transport.open(argv, limits=limits) as channel:
        channel.end_input()
        output = b""
        while chunk := channel.read():
            output += chunk
        return output, channel.wait().exit_code


def stand_in_the_door(server):
    """Return a connection that never logs in, once the server counts it."""
    while True:
        there = socket.create_connection(("127.0.0.1", server.port))
        if there.recv(4) == b"SSH-":
            return there
        there.close()


def alive(group):
    """Return the processes of a group that still run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(path)
    return found


def refusal(transport, *argv, limits=LIMITS):
    """Return the error that `argv` ends with, and how long it took."""
    started = time.monotonic()
    with pytest.raises(CapsuleError) as caught:
        run(transport, *argv, limits=limits)
    return caught.value, time.monotonic() - started


@both
def test_a_changed_host_key_is_refused_with_its_fingerprint(kind, tmp_path, keys, transports):
    with SshServer(tmp_path / "a", keys) as server:
        endpoint = server.endpoint(host_key=keys.public("before"))
        error, _ = refusal(transports(kind, endpoint, keys), "true")
        assert (error.error_id, error.exit_code) == ("host-key-changed", ExitCode.INTEGRITY)
        assert "SHA256:" in error.got
        assert server.handshakes() == 0


@both
def test_a_jump_host_has_its_own_pin(kind, tmp_path, keys, transports):
    with (
        SshServer(tmp_path / "a", keys) as server,
        SshServer(tmp_path / "j", keys, host_key="jump") as jump,
    ):
        way = transports(kind, server.endpoint(jump=(jump.hop(),)), keys)
        assert run(way, "echo", "here") == (b"here\n", 0)
        assert jump.handshakes() == 1
        # The target's key at the jump host: taken only where each hop is not told apart.
        jump.host_key = "host"
        error, _ = refusal(transports(kind, server.endpoint(jump=(jump.hop(),)), keys), "true")
        assert error.error_id == "host-key-changed"


@both
def test_a_jump_host_that_may_not_forward_is_named_as_that(kind, tmp_path, keys, transports):
    settings = ("AllowTcpForwarding no",)
    with (
        SshServer(tmp_path / "a", keys) as server,
        SshServer(tmp_path / "j", keys, settings=settings) as jump,
    ):
        way = transports(kind, server.endpoint(jump=(jump.hop(),)), keys)
        error, _ = refusal(way, "true")
        assert error.error_id == "ssh-jump-refused"


def test_a_host_with_a_certificate_is_known_by_its_authority(tmp_path, keys, transports):
    keys.private("host")
    keys.certify("host", authority="authority", principal="127.0.0.1")
    with SshServer(tmp_path / "a", keys, certified=True) as server:
        endpoint = server.endpoint(host_key=server.authority_pin("authority"))
        assert run(transports(OpensshTransport, endpoint, keys), "echo", "x") == (b"x\n", 0)
        endpoint = server.endpoint(host_key=server.authority_pin("another"))
        error, _ = refusal(transports(OpensshTransport, endpoint, keys), "true")
        assert error.error_id == "host-key-changed"


@both
def test_a_key_that_the_host_does_not_take_is_not_tried_again(kind, tmp_path, keys, transports):
    with SshServer(tmp_path / "a", keys) as server:
        error, _ = refusal(transports(kind, server.endpoint(), keys, key="stranger"), "true")
        assert error.error_id == "ssh-auth-refused"
        assert not error.retryable
        assert server.log.read_text().count("Connection from") <= 2


@both
def test_a_port_where_nobody_listens_is_unreachable(kind, keys, transports, tmp_path):
    server = SshServer(tmp_path / "a", keys)
    error, took = refusal(transports(kind, server.endpoint(), keys), "true")
    assert error.error_id == "host-unreachable"
    assert took < 5


@both
def test_a_port_that_accepts_and_says_nothing_ends_at_the_deadline(
    kind, tmp_path, keys, transports
):
    with talking_port(b"") as port:
        endpoint = SshServer(tmp_path / "a", keys).endpoint(port=port)
        error, took = refusal(transports(kind, endpoint, keys, timing=HURRIED), "true")
    assert error.error_id == "ssh-connect-deadline"
    assert took < 8


@both
def test_a_greeting_without_more_ends_at_the_deadline(kind, tmp_path, keys, transports):
    with talking_port(b"SSH-2.0-tarpit\r\n") as port:
        endpoint = SshServer(tmp_path / "a", keys).endpoint(port=port)
        error, took = refusal(transports(kind, endpoint, keys, timing=HURRIED), "true")
    # OpenSSH's own time-out ends with the greeting; ours does not.
    assert error.error_id in {"ssh-connect-deadline", "ssh-start-deadline"}
    assert took < 8


@both
@pytest.mark.parametrize(
    "words", [b"HTTP/1.1 400 Bad Request\r\n\r\n" + b"x\r\n" * 2000, b"SSH-1.3-old\r\n"]
)
def test_garbage_for_a_banner_is_called_that(kind, words, tmp_path, keys, transports):
    with talking_port(words) as port:
        endpoint = SshServer(tmp_path / "a", keys).endpoint(port=port)
        error, took = refusal(transports(kind, endpoint, keys, timing=HURRIED), "true")
    assert error.error_id == "ssh-banner-invalid"
    assert took < 8


@both
def test_a_frozen_host_ends_at_the_deadline_and_not_later(kind, tmp_path, keys, transports):
    with SshServer(tmp_path / "a", keys) as server:
        server.freeze()
        error, took = refusal(transports(kind, server.endpoint(), keys, timing=HURRIED), "true")
        assert error.error_id == "ssh-connect-deadline"
        assert took < 8


@both
def test_a_host_that_freezes_in_the_middle_ends_at_the_idle_deadline(
    kind, tmp_path, keys, transports
):
    with SshServer(tmp_path / "a", keys) as server:
        way = transports(kind, server.endpoint(), keys)
        started = time.monotonic()
        limits = Limits(total_s=60.0, idle_s=1.0)
        with (
            pytest.raises(CapsuleError) as caught,
            way.open(["cat"], limits=limits) as channel,
        ):
            channel.write(b"x")
            assert channel.read() == b"x"
            server.freeze()
            channel.write(b"x" * (32 * 1024 * 1024))
        assert caught.value.error_id == "transport-deadline"
        assert time.monotonic() - started < 15


def test_a_kept_connection_to_a_host_that_froze_does_not_hang_the_next_verb(
    tmp_path, keys, transports
):
    with SshServer(tmp_path / "a", keys) as server:
        way = transports(FabricTransport, server.endpoint(), keys, timing=HURRIED)
        assert run(way, "true") == (b"", 0)
        server.freeze()
        error, took = refusal(way, "true")
        assert error.error_id in {"ssh-start-deadline", "ssh-connect-deadline"}
        assert took < 12


@both
def test_a_connection_that_is_cut_is_lost_and_not_an_exit_code(kind, tmp_path, keys, transports):
    with SshServer(tmp_path / "a", keys) as server:
        way = transports(kind, server.endpoint(), keys)
        with (
            pytest.raises(CapsuleError) as caught,
            way.open(["/bin/sh", "-c", "echo up; sleep 20"], limits=LIMITS) as channel,
        ):
            assert channel.read() == b"up\n"
            server.cut()
            channel.wait()
        assert caught.value.error_id == "connection-lost"
        assert caught.value.retryable
        # The next verb makes a connection of its own.
        assert run(way, "echo", "again") == (b"again\n", 0)


@both
def test_a_busy_host_that_drops_connections_is_tried_again_with_pauses(
    kind, tmp_path, keys, transports
):
    with SshServer(tmp_path / "a", keys, settings=("MaxStartups 1:100:1",)) as server:
        # Somebody who never logs in holds the only place for a while.
        held = stand_in_the_door(server)
        timer = threading.Timer(0.2, held.close)
        timer.start()
        outcomes = set()
        for _ in range(3):
            try:
                outcomes.add(run(transports(kind, server.endpoint(), keys), "echo", "in"))
            except CapsuleError as error:
                outcomes.add(error.error_id)
        timer.join()
        assert (b"in\n", 0) in outcomes
        assert outcomes <= {(b"in\n", 0), "ssh-throttled"}


@both
def test_a_host_that_stays_busy_is_named_as_that_after_three_attempts(
    kind, tmp_path, keys, transports
):
    with (
        SshServer(tmp_path / "a", keys, settings=("MaxStartups 1:100:1",)) as server,
        stand_in_the_door(server),
    ):
        error, took = refusal(transports(kind, server.endpoint(), keys), "true")
        assert error.error_id == "ssh-throttled"
        assert took < 10


def test_no_session_left_on_a_connection_is_named_as_that(tmp_path, keys, transports):
    with SshServer(tmp_path / "a", keys, settings=("MaxSessions 1",)) as server:
        way = transports(FabricTransport, server.endpoint(), keys)
        with way.open(["cat"], limits=LIMITS):
            error, _ = refusal(way, "true")
            assert error.error_id == "ssh-sessions-exhausted"
        assert run(way, "echo", "free") == (b"free\n", 0)


@both
@pytest.mark.parametrize(
    "noise",
    [
        "echo 'Welcome to this host!'; echo warning >&2\n",
        "printf '\\377\\376\\000'\n",
        "set -v -x\n",
        "seq 9000\n",
        "cd /nowhere; false\n",
        "export LC_ALL=tr_TR.UTF-8 PATH=/nowhere\n",
    ],
    ids=["words", "bytes", "trace", "much", "failing", "environment"],
)
def test_what_start_up_files_print_is_not_an_answer(kind, noise, tmp_path, keys, transports):
    with SshServer(tmp_path / "a", keys, start_up=noise) as server:
        assert run(transports(kind, server.endpoint(), keys), "echo", "answer") == (b"answer\n", 0)


@both
@pytest.mark.parametrize(
    ("start_up", "error_id"),
    [
        ("echo no entry; exit 3\n", "ssh-start-failed"),
        ("sleep 60\n", "ssh-start-deadline"),
        ("yes\n", "wire-malformed"),
    ],
)
def test_a_start_up_file_in_the_way_is_told_apart(
    kind, start_up, error_id, tmp_path, keys, transports
):
    with SshServer(tmp_path / "a", keys, start_up=start_up) as server:
        error, took = refusal(transports(kind, server.endpoint(), keys, timing=HURRIED), "true")
        assert error.error_id == error_id
        assert took < 12
        if error_id == "ssh-start-failed":
            assert "no entry" in error.got


def test_at_most_eight_handshakes_meet_one_host(tmp_path, keys):
    # With ten at once sshd would begin to drop connections at random.
    with SshServer(tmp_path / "a", keys, settings=("MaxStartups 9:100:9",)) as server:
        shared = Handshakes()

        def once(_):
            way = OpensshTransport(server.endpoint(), access=keys.access(), handshakes=shared)
            return run(way, "echo", "in")

        with ThreadPoolExecutor(20) as pool:
            assert set(pool.map(once, range(20))) == {(b"in\n", 0)}
        assert "drop connection" not in server.log.read_text()


def test_one_kept_connection_carries_many_verbs(tmp_path, keys, transports):
    with SshServer(tmp_path / "a", keys) as server:
        way = transports(FabricTransport, server.endpoint(), keys)
        for number in range(12):
            assert run(way, "echo", str(number)) == (f"{number}\n".encode(), 0)
        assert server.handshakes() == 1


def test_a_persons_own_ssh_settings_take_no_part(tmp_path, keys, transports, monkeypatch):
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh/config").write_text("Host *\n  ProxyCommand false\n  Port 1\n")
    (home / ".fabric.yaml").write_text("user: nobody\nport: 1\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("FABRIC_PORT", "1")
    monkeypatch.setenv("SSH_AUTH_SOCK", str(home / "agent"))
    with SshServer(tmp_path / "a", keys) as server:
        for kind in (OpensshTransport, FabricTransport):
            assert run(transports(kind, server.endpoint(), keys), "echo", "x") == (b"x\n", 0)


def test_no_process_of_ours_is_left_behind(tmp_path, keys, transports):
    with SshServer(tmp_path / "a", keys) as server, SshServer(tmp_path / "j", keys) as jump:
        way = transports(OpensshTransport, server.endpoint(jump=(jump.hop(),)), keys)
        with way.open(["sleep", "20"], limits=LIMITS) as channel:
            group = channel.process_group
            assert len(alive(group)) > 1
        deadline = time.monotonic() + 5
        while alive(group):
            assert time.monotonic() < deadline
