"""What every transport promises, run on each of them."""

import sys
import time
from pathlib import Path

import pytest

from capsule.transport.base import EXIT_NOT_FOUND, Limits
from capsule.transport.local import LocalTransport
from capsule_manifest.errors import Failed

LIMITS = Limits(total_s=20.0, idle_s=10.0)


@pytest.fixture(params=["local"])
def transport(request, tmp_path):
    assert request.param == "local"
    return LocalTransport(tmp_path)


def python(text):
    return [sys.executable, "-I", "-S", "-c", text]


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
    with transport.open(python(text), limits=LIMITS) as channel:
        assert channel.read() == b"up\n"
    mark.unlink(missing_ok=True)
    time.sleep(0.3)
    assert not mark.exists()


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
