"""A stop waits for a processor, and not for ever."""

import os
import subprocess
import sys
import time

import pytest

from capsule_installer.op.calm import CALM_WAIT_MS, wait_until_calm
from capsule_installer.system.processes import RealProcesses


class Busy:
    """A machine whose looks are told beforehand; the last one lasts."""

    def __init__(self, *looks):
        self.looks = list(looks)

    def is_busy(self):
        return bool(self.looks.pop(0) if len(self.looks) > 1 else self.looks[0])


class Clock:
    def __init__(self):
        self.now_ms = 0

    def boot_ms(self):
        return self.now_ms

    def sleep_ms(self, duration_ms):
        self.now_ms += duration_ms


@pytest.mark.parametrize(
    ("looks", "waited_ms"),
    [((0,), 20), ((1, 0), 30), ((0, 0, 4, 0), 50), ((0, 7, 0, 7, 0), 60)],
)
def test_three_calm_looks_in_a_row_are_enough(looks, waited_ms):
    clock = Clock()
    wait_until_calm(Busy(*looks), clock)
    assert clock.now_ms == waited_ms


def test_a_machine_that_is_always_busy_is_waited_for_no_longer_than_said():
    clock = Clock()
    wait_until_calm(Busy(5), clock)
    assert clock.now_ms == CALM_WAIT_MS


def test_a_machine_is_busy_while_all_its_processors_are_used():
    programs = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(os.cpu_count() or 1)
    ]
    try:
        until_s = time.monotonic() + 20
        while not RealProcesses().is_busy():
            assert time.monotonic() < until_s
    finally:
        for program in programs:
            program.kill()
            program.wait()
