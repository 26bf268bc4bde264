"""Programs that are spoken with, line by line."""

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from capsule_installer.system.conversation import RealConversations
from capsule_manifest.errors import Failed

ECHO = [sys.executable, "-c", "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"]


@pytest.fixture
def start():
    begun = []

    def one(argv):
        begun.append(RealConversations().start(argv))
        return begun[-1]

    yield one
    for conversation in begun:
        conversation.kill()


def test_lines_come_back_whole_and_in_order(start):
    echo = start(ECHO)
    long = b"x" * 200_000
    echo.say(b"one")
    assert echo.hear(5_000) == b"one"
    echo.say(long)
    echo.say(b"two")
    assert echo.hear(5_000) == long
    assert echo.hear(5_000) == b"two"


def test_silence_is_none_and_the_end_is_empty(start):
    echo = start(ECHO)
    assert echo.hear(50) is None
    echo.close()
    assert echo.hear(5_000) == b""


def test_what_is_said_to_a_program_that_is_gone_is_met_by_the_next_hear(start):
    gone = start(["/bin/true"])
    time.sleep(0.2)
    gone.say(b"hello")
    assert gone.hear(5_000) == b""


def test_its_whole_group_is_killed(start):
    parent = start(["/bin/sh", "-c", "sleep 1000 & echo $!; wait"])
    child = int(parent.hear(5_000))
    parent.kill()
    parent.kill()
    assert parent.await_gone(10_000)
    with suppress(FileNotFoundError):
        # Whoever adopted it may not have looked yet.
        assert Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_group_that_does_not_end_is_told(start):
    stays = start(["/bin/sleep", "1000"])
    assert not stays.await_gone(20)
    stays.kill()
    assert stays.await_gone(10_000)


def test_a_program_that_is_not_there_is_not_started():
    with pytest.raises(Failed, match="process-not-started"):
        RealConversations().start(["/no/such/program"])


def test_nothing_but_the_clean_environment_reaches_it(start, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.test")
    shown = start(["/bin/sh", "-c", "echo ${HTTP_PROXY-none}"])
    assert shown.hear(5_000) == b"none"
    assert os.environ["HTTP_PROXY"]
