"""What every transport promises, run on each of them."""

import sys
import time
from functools import partial
from pathlib import Path

import pytest

from capsule.transport.base import EXIT_NOT_FOUND, Limits
from capsule.transport.fabric_ssh import FabricTransport
from capsule.transport.handshakes import Handshakes
from capsule.transport.local import LocalTransport
from capsule.transport.openssh import OpensshTransport
from capsule_manifest.errors import Failed
from support.sshd import SSHD, Keys, SshServer

SSH_TRANSPORTS = {
    "openssh": partial(OpensshTransport, handshakes=Handshakes()),
    "fabric": partial(FabricTransport, handshakes=Handshakes()),
}
LIMITS = Limits(total_s=20.0, idle_s=10.0)


needs_sshd = pytest.mark.skipif(SSHD is None, reason="sshd is not installed")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sshd")
    with SshServer(folder / "host", Keys(folder)) as server:
        yield server


@pytest.fixture(
    params=[
        "local",
        pytest.param("openssh", marks=needs_sshd),
        pytest.param("fabric", marks=needs_sshd),
    ]
)
def transport(request, tmp_path):
    if request.param == "local":
        yield LocalTransport(tmp_path)
        return
    server = request.getfixturevalue("server")
    way = SSH_TRANSPORTS[request.param](server.endpoint(), access=server.keys.access())
    yield way
    if isinstance(way, FabricTransport):
        way.close()


def python(text):
    return [sys.executable, "-I", "-S", "-c", text]


def wait_for(condition, seconds):
    """Return whether `condition` came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
    return True


def run(transport, argv, data=b"", limits=LIMITS):
    """Return (output, how it ended)."""
    with transport.open(argv, limits=limits) as channel:
        channel.write(data)
        channel.end_input()
        output = b""
        while chunk := channel.read():
            output += chunk
        return output, channel.wait()


def test_bytes_arrive_unchanged_in_both_directions(transport):
    data = bytes(range(256)) * 5000
    output, ended = run(transport, ["cat"], data)
    assert output == data
    assert ended.exit_code == 0


def test_an_argument_is_never_read_by_a_shell(transport):
    argument = "a b; $(touch x) 'q' \"d\" * \\ \n~"
    output, _ = run(transport, [*python("import sys; print(sys.argv[1], end='')"), argument])
    assert output.decode() == argument


def test_more_than_a_pipe_holds_is_written_while_the_host_answers(transport):
    # Echo line by line: a writer that didn't read would wait for ever.
    output, ended = run(transport, ["cat"], b"x" * (8 * 1024 * 1024))
    assert len(output) == 8 * 1024 * 1024
    assert ended.exit_code == 0


def test_an_answer_in_the_middle_of_the_stream_is_seen_before_the_end(transport):
    text = (
        "import sys\n"
        "line = sys.stdin.buffer.readline()\n"
        "sys.stdout.buffer.write(b'want ' + line); sys.stdout.flush()\n"
        "sys.stdout.buffer.write(b'rest ' + sys.stdin.buffer.read())\n"
    )
    with transport.open(python(text), limits=LIMITS) as channel:
        channel.write(b"plan\n")
        assert channel.read() == b"want plan\n"
        channel.write(b"frames")
        channel.end_input()
        assert channel.read() == b"rest frames"
        assert channel.wait().exit_code == 0


def test_an_exit_code_and_the_end_of_stderr_come_back(transport):
    text = "import sys; sys.stderr.write('x' * 100_000 + 'the reason'); sys.exit(21)"
    output, ended = run(transport, python(text))
    assert output == b""
    assert ended.exit_code == 21
    assert ended.stderr_tail.endswith("the reason")
    assert len(ended.stderr_tail) < 10_000


def test_a_program_that_is_not_there_ends_with_the_code_of_shells(transport):
    _, ended = run(transport, ["/nowhere/at/all"])
    assert ended.exit_code == EXIT_NOT_FOUND


def test_a_program_that_stops_reading_does_not_block_the_writer(transport):
    with transport.open(python("print('no')"), limits=LIMITS) as channel:
        assert not channel.write(b"x" * (4 * 1024 * 1024))
        assert channel.read() == b"no\n"
        assert channel.wait().exit_code == 0


@pytest.mark.parametrize(
    "text", ["import time; time.sleep(60)", "import sys; sys.stdin.buffer.read()"]
)
def test_a_silent_program_ends_at_the_idle_deadline(transport, text):
    started = time.monotonic()
    limits = Limits(total_s=60.0, idle_s=0.3)
    with pytest.raises(Failed) as caught, transport.open(python(text), limits=limits) as channel:
        channel.read()
    assert caught.value.error_id == "transport-deadline"
    assert caught.value.retryable
    assert time.monotonic() - started < 10


def test_a_busy_program_ends_at_the_total_deadline(transport):
    text = "import time\nwhile True:\n    print('x', flush=True); time.sleep(0.01)"
    limits = Limits(total_s=0.5, idle_s=10.0)
    with pytest.raises(Failed) as caught:
        run(transport, python(text), limits=limits)
    assert caught.value.error_id == "transport-deadline"


def test_a_writer_whose_host_does_not_read_ends_at_the_deadline(transport):
    limits = Limits(total_s=60.0, idle_s=0.3)
    text = "import time; time.sleep(60)"
    with pytest.raises(Failed) as caught, transport.open(python(text), limits=limits) as channel:
        channel.write(b"x" * (4 * 1024 * 1024))
    assert caught.value.error_id == "transport-deadline"


def test_leaving_a_channel_ends_the_program_and_what_it_started(transport, tmp_path):
    mark = tmp_path / "alive"
    text = (
        "import subprocess, sys, time\n"
        f"subprocess.Popen(['/bin/sh', '-c', 'while sleep 0.05; do date > {mark}; done'])\n"
        "print('up', flush=True)\n"
        "time.sleep(60)\n"
    )
    # Over SSH nobody tells the program: there the host ends it, a little after its limit.
    local = isinstance(transport, LocalTransport)
    limits = LIMITS if local else Limits(total_s=1.0, idle_s=1.0)
    with transport.open(python(text), limits=limits) as channel:
        assert channel.read() == b"up\n"

    def ended():
        mark.unlink(missing_ok=True)
        time.sleep(0.3)
        return not mark.exists()

    assert ended() if local else wait_for(ended, 12)


def test_a_program_that_a_signal_ended_is_not_a_lost_connection(transport):
    _, ended = run(transport, ["/bin/sh", "-c", "kill -9 $$"])
    assert ended.exit_code in {-9, 137}


def test_twenty_megabytes_on_both_outputs_do_not_block_each_other(transport):
    text = (
        "import os, threading\n"
        "def fill(to):\n"
        "    for _ in range(320): os.write(to, b'x' * 65536)\n"
        "other = threading.Thread(target=fill, args=(2,)); other.start(); fill(1); other.join()\n"
    )
    output, ended = run(transport, python(text))
    assert len(output) == 20 * 1024 * 1024
    assert ended.exit_code == 0


def test_output_that_is_not_text_comes_back_as_it_is(transport):
    text = "import os, sys; os.write(1, b'\\xff\\x00\\xfe'); os.write(2, b'\\xc3('); sys.exit(3)"
    output, ended = run(transport, python(text))
    assert output == b"\xff\x00\xfe"
    assert (ended.exit_code, ended.stderr_tail) == (3, "\\xc3(")


def test_the_environment_of_a_person_does_not_reach_the_host(transport, monkeypatch):
    for name in ("PYTHONPATH", "LD_PRELOAD", "https_proxy", "PIP_INDEX_URL", "HOME"):
        monkeypatch.setenv(name, "/somewhere")
    output, _ = run(transport, ["/usr/bin/env"])
    names = {line.partition("=")[0] for line in output.decode().splitlines()}
    assert names == {"PATH", "LC_ALL"}


def test_a_local_host_without_its_folder_is_unreachable(tmp_path):
    for place in (tmp_path / "gone", tmp_path / "link"):
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to(Path("/"))
        with pytest.raises(Failed) as caught:
            LocalTransport(place).open(["true"], limits=LIMITS)
        assert caught.value.error_id == "host-unreachable"
