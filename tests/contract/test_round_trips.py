"""How often a controller waits for a host while it stages, counted on an SSH connection.

What is counted is at the two ends of the client's pipes: a wait for an answer after something was
sent. Flow control of SSH and TCP is below that and goes by bytes, whatever they are bytes of.
"""

import pytest

from capsule.transport.handshakes import Handshakes
from capsule.transport.openssh import OpensshTransport
from support.round_trips import SIZES, turns_of
from support.sshd import SSHD, Keys, SshServer


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(SSHD is None, reason="sshd is not installed")
def test_the_round_trips_of_a_staging_over_ssh_do_not_grow_with_the_number_of_files(tmp_path):
    keys = Keys(tmp_path)
    turns, handshakes = {}, {}
    for files in SIZES:
        folder = tmp_path / str(files)
        with SshServer(folder / "sshd", keys) as server:
            way = OpensshTransport(server.endpoint(), access=keys.access(), handshakes=Handshakes())
            turns[files] = turns_of(folder, files, lambda _folder, way=way: way)
            handshakes[files] = server.handshakes()
    # For the hello, which comes with the connection, for the want, and for the end.
    assert turns[100] == ["open receive", "wait", "wait", "wait"]
    assert turns[100] == turns[1_000] == turns[18_000], turns
    assert len(set(handshakes.values())) == 1, handshakes
