"""The short way to the verbs of an op: a controller's own words, without the command line.

Between an order and its proof a host starts this program three times, and eight hosts of a lane do
so at once. What a start loads beside the work itself is time that a service's restart waits for.
"""

import gc
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from capsule_installer.edge import exit_code_of
from capsule_installer.host.host import Host
from capsule_installer.host.layout import make_layout
from capsule_installer.system.clock import BootClock
from capsule_installer.system.disk import RealDisk
from capsule_installer.system.facts import RealMachine
from capsule_installer.system.report import standard_reporter
from capsule_manifest.errors import ExitCode

if TYPE_CHECKING:
    from io import BufferedReader

__all__ = ["answer", "greet_and_take"]

_SECONDS_DIGITS_MAX: Final = 6


def answer(root: str, words: list[str]) -> int | None:
    """Do what the words say below `root` and return the exit code; None for other words.

    The process edge of this way.
    """
    work = _work(words)
    if work is None:
        return None
    reporter = standard_reporter()
    host = Host(
        disk=RealDisk(),
        layout=make_layout(root),
        clock=BootClock(),
        machine=RealMachine(),
        reporter=reporter,
    )
    return exit_code_of(reporter, lambda: work(host))


def greet_and_take(host: Host, *, follow_ms: int | None) -> int:
    """Say a hello, then take the order that answers it. Source: `take_order`.

    The input may end after the hello: whoever asked has decided against it.

    Raises: as `hello`, and as `take_order`.
    """
    from capsule_installer.greet import hello

    host.prepare()
    host.reporter.record("hello", hello(host))
    # Loaded while the order is being made and signed.
    from capsule_installer.op.op_work import take_order

    if not cast("BufferedReader", sys.stdin.buffer).peek(1):
        return int(ExitCode.DONE)
    return take_order(host, follow_ms=follow_ms)


def _work(words: list[str]) -> Callable[[Host], int] | None:
    match words:
        case ["install", "--hello", "--follow", seconds] if _is_seconds(seconds):
            return lambda host: greet_and_take(host, follow_ms=int(seconds) * 1000)
        case ["supervise", op_id]:
            from capsule_installer.op.op_work import supervise_op

            # It runs for minutes, all others for moments. What was imported is never garbage, and
            # is not looked through while a service stands still.
            gc.freeze()
            gc.enable()
            return lambda host: supervise_op(host, op_id)
        case ["confirm"]:
            from capsule_installer.op.op_work import confirm_proof

            return confirm_proof
        case ["follow", op_id, "--timeout", seconds] if _is_seconds(seconds):
            from capsule_installer.op.op_work import host_effects, tell_op

            return lambda host: tell_op(host, host_effects(host), op_id, int(seconds) * 1000)
    return None


def _is_seconds(word: str) -> bool:
    return word.isdecimal() and word.isascii() and len(word) <= _SECONDS_DIGITS_MAX
