"""The way to the hosts of one epoch: `capsule.lane.ports.Hosts` over transports.

Each node that is spoken to has a worker thread with a queue of messages, and while an op runs one
more that follows it. A node whose host hangs holds up its own threads and nothing else. The same
message is never queued twice, so that a silent host costs a bounded amount of everything.

What a thread finds out goes to `hear` and comes to the driver in the shell's own thread.

Source: design, section 11; `docs/adr/0181-threads-per-node.md`.
"""

from collections.abc import Callable

from capsule.lane.ports import HostReport, HostStep, Unreachable
from capsule.rollout.link import NodeLink
from capsule.rollout.worker import Worker

__all__ = ["Links"]


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
        self._workers: dict[str, Worker] = {}
        self._followers: dict[str, Worker] = {}

    def order(self, node: str, op_id: str, *, fence: int) -> None:
        """Send the node's order, or the very same again."""

        def work() -> None:
            report = self._link(node).order(op_id, fence=fence)
            self._hear(report)
            if report.step is HostStep.ACCEPTED:
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
        for link in tuple(self._links.values()):
            link.close()

    def _follow(self, node: str, op_id: str) -> None:
        link = self._link(node)
        follower = self._followers.get(node)
        if follower is None:
            follower = self._followers[node] = Worker(
                f"node {node}", lambda error: self._lost(node, error)
            )
        follower.put(f"follow {op_id}", lambda: link.follow(op_id, self._hear))

    def _link(self, node: str) -> NodeLink:
        # Made in the node's own thread: a host that was never met is asked who it is.
        link = self._links.get(node)
        if link is None:
            link = self._links[node] = self._make(node)
        return link

    def _worker(self, node: str) -> Worker:
        worker = self._workers.get(node)
        if worker is None:
            worker = self._workers[node] = Worker(
                f"node {node}", lambda error: self._lost(node, error)
            )
        return worker

    def _lost(self, node: str, error: Exception) -> None:
        self._hear(Unreachable(node=node, reason=str(error)))
