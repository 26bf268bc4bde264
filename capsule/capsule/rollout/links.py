"""The way to the hosts of one epoch: `capsule.lane.ports.Hosts` over transports.

Each node that is spoken to has a worker thread with a queue of messages, and while an op runs one
more that follows it. A node whose host hangs holds up its own threads and nothing else. The same
message is never queued twice, so that a silent host costs a bounded amount of everything.

What a thread finds out goes to `hear` and comes to the driver in the shell's own thread.

Source: design, section 11; `docs/adr/0181-threads-per-node.md`.
"""

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

from capsule.lane.ports import HostReport, Unreachable
from capsule.rollout.link import NodeLink
from capsule_manifest.errors import CapsuleError

__all__ = ["Links"]

_logger = logging.getLogger(__name__)
_Job = tuple[str, Callable[[], None]]


class _Worker:
    """One node's thread and its queue, in which each kind of message waits at most once."""

    def __init__(self, node: str, failed: Callable[[str, Exception], None]) -> None:
        self._node = node
        self._failed = failed
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._waiting: set[str] = set()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"node {node}", daemon=True)
        self._thread.start()

    def put(self, name: str, job: Callable[[], None]) -> None:
        with self._lock:
            if name in self._waiting:
                return
            self._waiting.add(name)
        self._jobs.put((name, job))

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            name, job = item
            try:
                job()
            except CapsuleError as error:
                self._failed(self._node, error)
            except Exception as error:  # the edge of a thread: the other nodes must go on
                _logger.exception("node %s", self._node)
                self._failed(self._node, error)
            finally:
                with self._lock:
                    self._waiting.discard(name)

    def end(self) -> None:
        self._jobs.put(None)


class Links:
    """Implement `Hosts`. `make` gives the link of a node; `hear` takes what it finds out."""

    def __init__(
        self,
        make: Callable[[str], NodeLink],
        *,
        hear: Callable[[HostReport | Unreachable], None],
    ) -> None:
        self._make = make
        self._hear = hear
        self._links: dict[str, NodeLink] = {}
        self._workers: dict[str, _Worker] = {}
        self._followers: dict[str, _Worker] = {}

    def order(self, node: str, op_id: str, *, fence: int) -> None:
        """Send the node's order, or the very same again."""

        def work() -> None:
            report = self._link(node).order(op_id, fence=fence)
            if report is not None:
                self._hear(report)
            self._follow(node, op_id)

        self._worker(node).put(f"order {op_id}", work)

    def confirm(self, node: str, op_id: str, *, proof: str, fence: int) -> None:
        """Accept a proof."""
        self._worker(node).put(
            f"confirm {op_id}",
            lambda: self._link(node).confirm(op_id, proof=proof, fence=fence),
        )

    def query(self, node: str, op_id: str, *, fence: int) -> None:
        """Have the host record `fence`, and follow the op if it is known."""

        def work() -> None:
            report = self._link(node).query(op_id, fence=fence)
            if report is None:
                self._follow(node, op_id)
            else:
                self._hear(report)

        self._worker(node).put(f"query {op_id} {fence}", work)

    def end(self) -> None:
        """Let idle threads end; those that wait for a host end with the process."""
        for worker in (*self._workers.values(), *self._followers.values()):
            worker.end()

    def _follow(self, node: str, op_id: str) -> None:
        link = self._link(node)
        follower = self._followers.get(node)
        if follower is None:
            follower = self._followers[node] = _Worker(node, self._lost)
        follower.put(f"follow {op_id}", lambda: link.follow(op_id, self._hear))

    def _link(self, node: str) -> NodeLink:
        # Made in the node's own thread: a host that was never met is asked who it is.
        link = self._links.get(node)
        if link is None:
            link = self._links[node] = self._make(node)
        return link

    def _worker(self, node: str) -> _Worker:
        worker = self._workers.get(node)
        if worker is None:
            worker = self._workers[node] = _Worker(node, self._lost)
        return worker

    def _lost(self, node: str, error: Exception) -> None:
        self._hear(Unreachable(node=node, reason=str(error)))
