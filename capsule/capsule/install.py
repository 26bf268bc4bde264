"""Install a staged capsule on hosts: what is checked before an order, and in what sequence.

`operation.py` sees one order through; here is decided whether there is one to send.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from capsule.fleet_work import for_each_node
from capsule.freeze import FrozenRoute
from capsule.home import ProductHome
from capsule.host_records import Hello
from capsule.operation import Expected, Operation, OperationWatch
from capsule.payload import Payload
from capsule.receipts_store import CheckedReceipt
from capsule.session import HostSession
from capsule.stage import NO_EPOCH, keep_receipts
from capsule.transport.base import Transport
from capsule_manifest.errors import CapsuleError, ExitCode, Refused
from capsule_manifest.keys import PublicKey, Signer
from capsule_manifest.op_reasons import restored_exit_code
from capsule_manifest.orders import (
    Order,
)
from capsule_manifest.route import GUARD_LEVELS, Endpoint

__all__ = ["InstallWatch", "Installer", "NodeInstalled", "install_on"]

_VALID_MS: Final = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInstalled:
    """What an order came to, by the host's receipt; None when nothing had to be done."""

    node: str
    generation: str
    receipt: CheckedReceipt | None
    took_s: float

    @property
    def result(self) -> str:
        """Return the receipt's result, or `unchanged` where there is none."""
        return "unchanged" if self.receipt is None else self.receipt.receipt.result

    @property
    def exit_code(self) -> ExitCode:
        """Return the exit code of this result."""
        codes = {
            "committed": ExitCode.DONE,
            "unchanged": ExitCode.DONE,
            "refused": ExitCode.PREFLIGHT_REFUSED,
        }
        if self.receipt is not None and self.result in {"restored", "restored-absent"}:
            return restored_exit_code(self.receipt.receipt.reason)
        return codes.get(self.result, ExitCode.RESTORE_FAILED)


class InstallWatch(OperationWatch, Protocol):
    """Be told how installations go; called from several threads."""

    def ended(self, node: str, result: NodeInstalled | CapsuleError) -> None:
        """Hear how it ended for a node."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Installer:
    """Install one staged capsule under the route that was frozen last."""

    home: ProductHome
    route: FrozenRoute
    payload: Payload
    controller: Signer
    connect: Callable[[Endpoint, str], Transport]
    new_op_id: Callable[[], str]
    watch: InstallWatch

    def run(self, node: str) -> NodeInstalled:
        """Install on one node and return what its receipt says.

        Raises:
            CapsuleError: `node-unknown`, `generation-not-staged`, `route-not-staged`,
                `node-key-changed`, `controller-fenced`, `guard-level-denied`, what the host
                refuses, `op-unresolved` when it acknowledged and then was not heard of again.
        """
        try:
            result = self._run(node)
        except CapsuleError as error:
            self.watch.ended(node, error)
            raise
        self.watch.ended(node, result)
        return result

    def _run(self, node: str) -> NodeInstalled:
        started = time.monotonic()
        entry = self.route.route.nodes.get(node)
        if entry is None:
            raise Refused(
                "node-unknown",
                "the frozen route has no such node",
                expected=", ".join(sorted(self.route.route.nodes)),
                got=node,
            )
        session = HostSession(self.connect(entry.endpoint, node), node=node)
        hello = session.hello()
        key = self._check_host(hello, node)
        receipt = None
        if hello.current != self.payload.generation or hello.open_op is not None:
            operation = Operation(
                session=session,
                key=key,
                order=self._order(hello, node, key),
                expected=self._expected(node),
                controller=self.controller,
                watch=self.watch,
            )
            receipt = operation.run()
            keep_receipts(session, self.home, receipt, key, self.controller)
        return NodeInstalled(
            node=node,
            generation=self.payload.generation,
            receipt=receipt,
            took_s=time.monotonic() - started,
        )

    def _check_host(self, hello: Hello, node: str) -> PublicKey:
        if hello.node != node or hello.node_key is None:
            raise Refused(
                "enrolment-differs",
                "the host does not know itself by this name",
                expected=node,
                got=hello.node or "not enrolled",
                where=node,
            )
        self.home.pin_node(node, hello.node_key)
        if hello.route != self.route.digest:
            raise Refused(
                "route-not-staged",
                "the host was staged under another route than the one frozen last",
                expected=self.route.digest,
                got=hello.route or "none",
                where=node,
            )
        if self.payload.generation not in hello.staged and hello.current != self.payload.generation:
            raise Refused(
                "generation-not-staged",
                "the capsule is not staged on the host",
                expected=self.payload.generation,
                got=", ".join(hello.staged) or "nothing",
                where=node,
            )
        return hello.node_key

    def _order(self, hello: Hello, node: str, key: PublicKey) -> Order:
        fence = self.home.fence()
        if hello.fence > fence:
            raise Refused(
                "controller-fenced",
                "a newer controller has worked with this host",
                expected=f"fence {hello.fence} or higher",
                got=fence,
                where=node,
            )
        budgets = self.payload.release.budgets
        return Order(
            op_id=self.new_op_id(),
            verb="install",
            node=node,
            node_key=key.keyid,
            capsule=self.payload.capsule,
            release_counter=self.payload.release.release_counter,
            generation=self.payload.generation,
            prior=hello.current,
            route=self.route.digest,
            epoch=NO_EPOCH,
            fence=fence,
            nonce=hello.nonce,
            boot_id=hello.boot_id,
            valid_ms=_VALID_MS,
            confirm="controller",
            d1_ms=budgets.d1_ms,
            d2_ms=budgets.d2_ms,
            guard_level=self._guard_level(hello, node),
            guard_policy=self.route.route.guard_policy(node),
        )

    def _expected(self, node: str) -> Expected:
        entry = self.route.route.nodes[node]
        selected = self.payload.release.selected(entry.role, entry.platform)
        return Expected(
            commit=self.payload.release.source.commit,
            units=frozenset(
                unit.name
                for component in selected
                for unit in component.units
                if unit.name.endswith(".service")
            ),
        )

    def _guard_level(self, hello: Hello, node: str) -> str:
        """Return the highest level that the host offers, if the route lets the node run at it."""
        floor = self.route.route.guard_floor(node)
        offered = [
            level for level in GUARD_LEVELS if level in hello.guard_levels and level >= floor
        ]
        if not offered:
            raise Refused(
                "guard-level-denied",
                "the host can't guard the network as the route demands",
                expected=f"{floor} or higher",
                got=", ".join(hello.guard_levels),
                where=node,
            )
        return max(offered)


def install_on(
    installer: Installer, nodes: tuple[str, ...]
) -> Mapping[str, NodeInstalled | CapsuleError]:
    """Install on several nodes, at most `max_unavailable` at once; stop ordering at a failure.

    A node that was not ordered because of another one has the result `install-not-begun`.
    """
    failed = threading.Event()

    def work(node: str) -> NodeInstalled:
        if failed.is_set():
            raise Refused(
                "install-not-begun",
                "the node was left as it is, because another one did not commit",
                where=node,
            )
        try:
            result = installer.run(node)
        except BaseException:
            failed.set()
            raise
        if result.exit_code is not ExitCode.DONE:
            failed.set()
        return result

    return for_each_node(nodes, work, at_once=installer.route.route.max_unavailable)
