"""The same work on several nodes at once: bounded threads, no node lost, one exit code.

A node that fails or hangs costs only its own place among the workers and never the result of
another; whatever leaves a node's thread is that node's result.
"""

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Final, TypeVar

from capsule.transport.base import Transport
from capsule.transport.connect import Connector, access_from
from capsule_manifest.errors import CapsuleError, ExitCode, Failed
from capsule_manifest.route import LANE_NODES_MAX, Endpoint

__all__ = ["connect", "exit_code", "for_each_node"]

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


def connect(endpoint: Endpoint, node: str) -> Transport:
    """Return the transport to a frozen endpoint. All of a process share one limit of handshakes.

    Raises:
        Refused: `endpoint-invalid`; the node is in the message.
    """
    return _connector()(endpoint, node)


@cache
def _connector() -> Connector:
    return Connector(access_from(os.environ))


def _internal(error: Exception, node: str) -> Failed:
    failure = Failed("node-work-failed", "a program error", got=repr(error), where=node)
    failure.__cause__ = error
    return failure
