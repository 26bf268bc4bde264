"""The same work on several nodes at once: bounded threads, no node lost, one exit code.

A node that fails or hangs costs only its own place among the workers and never the result of
another; whatever leaves a node's thread is that node's result.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from capsule_manifest.errors import CapsuleError, ExitCode, Failed
from capsule_manifest.route import LANE_NODES_MAX

__all__ = ["exit_code", "for_each_node"]

_logger = logging.getLogger(__name__)

_PRECEDENCE: Final = (
    ExitCode.INTEGRITY,
    ExitCode.FENCED,
    ExitCode.NOT_SERVING,
    ExitCode.RESTORE_FAILED,
    ExitCode.NODES_HELD,
)

Result = TypeVar("Result")


def for_each_node(
    nodes: Iterable[str],
    work: Callable[[str], Result],
    *,
    at_once: int = LANE_NODES_MAX,
) -> Mapping[str, Result | CapsuleError]:
    """Run `work` for every node, at most eight at a time; return each one's result or error."""

    def guarded(node: str) -> Result | CapsuleError:
        try:
            return work(node)
        except CapsuleError as error:
            return error
        except Exception as error:  # the edge of a thread: the other nodes must go on
            _logger.exception("node %s", node)
            return _internal(error, node)

    names = tuple(nodes)
    with ThreadPoolExecutor(max_workers=min(at_once, LANE_NODES_MAX)) as pool:
        return dict(zip(names, pool.map(guarded, names), strict=True))


def exit_code(codes: Iterable[ExitCode]) -> ExitCode:
    """Return the code that tells most when several apply. Source: design, section 13."""
    present = list(codes)
    for code in _PRECEDENCE:
        if code in present:
            return code
    return next((code for code in present if code is not ExitCode.DONE), ExitCode.DONE)


def _internal(error: Exception, node: str) -> Failed:
    failure = Failed("node-work-failed", "a program error", got=repr(error), where=node)
    failure.__cause__ = error
    return failure
