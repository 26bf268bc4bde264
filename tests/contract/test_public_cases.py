"""What users of other fleet tools met on the way to a host and in a ledger, by its symptom."""

import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest

from capsule.ledger.opening import open_ledger
from capsule.transport.base import Limits
from capsule.transport.fabric_ssh import FabricTransport
from capsule.transport.handshakes import Handshakes
from capsule.transport.openssh import OpensshTransport
from capsule_manifest.errors import Refused
from support.postgres import running_cluster
from support.sshd import SSHD, Keys, SshServer

LIMITS = Limits(total_s=20.0, idle_s=10.0)
MIB = 1024 * 1024
needs_sshd = pytest.mark.skipif(SSHD is None, reason="sshd is not installed")
# Leaves its transport open, as a controller does whose last command failed.
CONTROLLER = """\
import sys
from capsule.transport.base import QUICK
from capsule.transport.fabric_ssh import FabricTransport
from capsule.transport.handshakes import Handshakes
from capsule.transport.ssh_entry import Access
from capsule_manifest.route import Endpoint
port, user, key, identity = sys.argv[1:]
endpoint = Endpoint(kind="ssh", address="127.0.0.1", port=int(port), user=user, host_key=key)
way = FabricTransport(endpoint, access=Access(identity=identity), handshakes=Handshakes())
with way.open(["echo", "x"], limits=QUICK) as channel:
    print(channel.read().decode(), end="", flush=True)
"""


@pytest.fixture
def server(tmp_path):
    with SshServer(tmp_path / "sshd", Keys(tmp_path)) as made:
        yield made


def way(kind, server):
    return kind(server.endpoint(), access=server.keys.access(), handshakes=Handshakes())


def said(transport, *argv):
    with transport.open(argv, limits=LIMITS) as channel:
        channel.end_input()
        output = b""
        while chunk := channel.read():
            output += chunk
        assert channel.wait().exit_code == 0
    return output


@needs_sshd
def test_a_kept_connection_that_ended_between_two_verbs_is_made_anew(server):
    transport = way(FabricTransport, server)
    try:
        assert said(transport, "echo", "1") == b"1\n"
        server.cut()
        # Its end is told by the peer's reset, which takes a moment to arrive.
        time.sleep(0.5)
        assert said(transport, "echo", "2") == b"2\n"
        assert server.handshakes() == 2
    finally:
        transport.close()


@needs_sshd
def test_a_controller_with_an_open_connection_and_running_deadlines_ends_at_once(server):
    identity = server.keys.access().identity
    argv = [sys.executable, "-c", CONTROLLER, str(server.port), server.user,
            server.keys.public("host"), identity]  # fmt: skip
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "x\n"
        began = time.monotonic()
        assert process.wait(timeout=15) == 0
    # Its deadlines are of 10 s and more: whoever waited for their threads would be later.
    assert time.monotonic() - began < 5


@needs_sshd
@pytest.mark.parametrize("kind", [OpensshTransport, FabricTransport])
def test_a_host_that_complains_without_end_fills_no_memory(kind, server):
    noisy = "import os\nfor _ in range(512): os.write(2, b'x' * 65536)\n"
    transport = way(kind, server)
    assert said(transport, "echo", "x") == b"x\n"  # what is imported once is no leak
    tracemalloc.start()
    try:
        assert said(transport, sys.executable, "-I", "-S", "-c", noisy) == b""
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        if isinstance(transport, FabricTransport):
            transport.close()
    assert peak_bytes < 8 * MIB  # of the 32 MiB that were said


@pytest.fixture(params=["sqlite", "postgres"])
def address(request, tmp_path: Path):
    if request.param == "sqlite":
        yield str(tmp_path / "ledger.sqlite")
    else:
        with running_cluster() as cluster:
            yield cluster.new_database()


def test_a_lease_outlives_the_connection_that_took_it_and_is_nobody_elses_by_that(address):
    with open_ledger(address, create=True) as ledger:
        lease = ledger.acquire("fleet", "first", takeover=False)
    # Every connection of the first is closed: a lock of a session would be free now, and one that
    # a pool had passed on would be somebody's who never asked for it.
    with open_ledger(address, create=False) as ledger:
        with pytest.raises(Refused) as caught:
            ledger.acquire("fleet", "second", takeover=False)
        assert (caught.value.error_id, "first" in caught.value.got) == ("lease-busy", True)
        ledger.renew(lease)
        ledger.release(lease)
        assert ledger.acquire("fleet", "second", takeover=False).fence > lease.fence
