"""Order an installation on one host and see it through to the host's own, signed outcome.

The controller asks; the host decides. An order goes out once; if the connection is lost before the
host acknowledged it, the *same* order is sent again, and a host that knows its op id answers as
before. After that only questions by op id are repeated. The controller's part in between is one
decision: to confirm a proof. Without its confirm the host restores itself.

What a host says counts only as far as its node key signed it: `committed` and `restored` are read
from the receipt, never from a progress record.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from capsule.fleet_work import for_each_node
from capsule.freeze import FrozenRoute
from capsule.home import ProductHome
from capsule.host_records import Hello, HostRecord
from capsule.payload import Payload
from capsule.receipts_store import CheckedReceipt, check_receipt
from capsule.session import HostSession
from capsule.stage import NO_EPOCH, keep_receipts
from capsule.transport.base import QUICK, Limits, Transport
from capsule_manifest.envelope import Envelope, decode_record, encode_record, sign
from capsule_manifest.errors import CapsuleError, ExitCode, Failed, Refused
from capsule_manifest.fields import Object
from capsule_manifest.keys import PublicKey, Signer, b64decode
from capsule_manifest.orders import (
    CONFIRM_TYPE,
    ORDER_TYPE,
    Confirm,
    Order,
    encode_confirm,
    encode_order,
)
from capsule_manifest.records import PROOF_TYPE, Proof, decode_proof
from capsule_manifest.route import GUARD_LEVELS, Endpoint

__all__ = ["InstallWatch", "Installer", "NodeInstalled", "install_on"]

_VALID_MS: Final = 60_000
_SEND_ATTEMPTS: Final = 3
_FOLLOW_ATTEMPTS: Final = 5
_BACK_OFF_S: Final = (0.2, 1.0, 3.0, 5.0)
_FOLLOW_S: Final = 20
_RESTORE_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInstalled:
    """What an order came to, by the host's receipt; None when nothing had to be done."""

    node: str
    generation: str
    receipt: CheckedReceipt | None
    took_s: float

    @property
    def result(self) -> str:
        """Return `committed`, `restored`, `restored-absent`, `restore-failed` or `unchanged`."""
        return "unchanged" if self.receipt is None else self.receipt.receipt.result

    @property
    def exit_code(self) -> ExitCode:
        """Return the exit code of this result."""
        codes = {
            "committed": ExitCode.DONE,
            "unchanged": ExitCode.DONE,
            "restored": ExitCode.RESTORED,
            "restored-absent": ExitCode.RESTORED,
        }
        return codes.get(self.result, ExitCode.RESTORE_FAILED)


class InstallWatch(Protocol):
    """Be told how an installation goes; called from several threads."""

    def ordered(self, node: str, order: Order) -> None:
        """Hear that a host has taken an order."""
        ...

    def step(self, node: str, *, name: str, state: str, took_ms: int | None) -> None:
        """Hear of one step on the host."""
        ...

    def confirmed(self, node: str, proof: Proof) -> None:
        """Hear that a proof was accepted and confirmed."""
        ...

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
            operation = _Operation(
                installer=self,
                session=session,
                key=key,
                order=self._order(hello, node, key),
                boot_id=hello.boot_id,
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
            guard_policy="fail",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operation:
    """One op id from its order to its receipt."""

    installer: Installer
    session: HostSession
    key: PublicKey
    order: Order
    boot_id: str

    def run(self) -> CheckedReceipt:
        self._send()
        self.installer.watch.ordered(self.order.node, self.order)
        # What the host itself will not exceed, and the time to tell us of it.
        end = time.monotonic() + (self.order.d1_ms + self.order.d2_ms) / 1000 + _RESTORE_S
        failures = 0
        while time.monotonic() < end and failures < _FOLLOW_ATTEMPTS:
            try:
                receipt = self._follow()
            except Failed as failure:
                if not failure.retryable:
                    raise
                time.sleep(_BACK_OFF_S[min(failures, len(_BACK_OFF_S) - 1)])
                failures += 1
                continue
            if receipt is not None:
                return receipt
            failures = 0
        raise Failed(
            "op-unresolved",
            "the host took the order and was not heard of again",
            got=f"op id {self.order.op_id}",
            where=self.order.node,
        )

    def _send(self) -> None:
        envelope = sign(
            encode_order(self.order), payload_type=ORDER_TYPE, signer=self.installer.controller
        )
        record = encode_record(envelope)
        for attempt in range(_SEND_ATTEMPTS):
            try:
                # A known op id is answered with what became of it, so sending again is asking.
                with self.session.dialogue("install") as dialogue:
                    dialogue.channel.write(record)
                    dialogue.channel.end_input()
                    if dialogue.next() is None:
                        raise Refused(
                            "wire-malformed",
                            "a host said nothing to an order",
                            where=self.order.node,
                        )
            except Failed as failure:
                if not failure.retryable or attempt + 1 == _SEND_ATTEMPTS:
                    raise
                time.sleep(_BACK_OFF_S[attempt])
                continue
            return

    def _follow(self) -> CheckedReceipt | None:
        """Watch the op until its receipt or the end of this round; confirm a proof on the way."""
        limits = Limits(total_s=_FOLLOW_S + QUICK.idle_s, idle_s=_FOLLOW_S + QUICK.idle_s)
        arguments = (self.order.op_id, "--timeout", str(_FOLLOW_S))
        with self.session.dialogue("follow", *arguments, limits=limits) as dialogue:
            dialogue.channel.end_input()
            for record in _records(dialogue.next):
                match record.get("record"):
                    case "step":
                        self._tell(record)
                    case "proof":
                        self._confirm(self._check_proof(record))
                    case "receipt":
                        item = Object(record, f"receipt of {self.order.node}")
                        return self._check_receipt(b64decode(item.text("receipt"), item.where))
                    case _:
                        pass  # an outcome that no receipt carries yet is a claim
        return None

    def _tell(self, record: HostRecord) -> None:
        item = Object(record, f"step of {self.order.node}")
        self.installer.watch.step(
            self.order.node,
            name=item.text("name"),
            state=item.text("state"),
            took_ms=item.optional_integer("took_ms") if item.has("took_ms") else None,
        )

    def _check_proof(self, record: HostRecord) -> tuple[Envelope, Proof]:
        item = Object(record, f"proof of {self.order.node}")
        envelope = decode_record(b64decode(item.text("proof"), item.where), where=item.where)
        payload = envelope.verify(self.key, payload_type=PROOF_TYPE, where=item.where)
        proof = decode_proof(payload, where=item.where)
        release = self.installer.payload.release
        role = self.installer.route.route.nodes[self.order.node].role
        platform = self.installer.route.route.nodes[self.order.node].platform
        units = {
            unit.name
            for component in release.selected(role, platform)
            for unit in component.units
            if unit.name.endswith(".service")
        }
        expected = (self.order.op_id, self.order.node, self.order.capsule, self.order.generation)
        got = (proof.op_id, proof.node, proof.capsule, proof.generation)
        commits = {unit.commit for unit in proof.units}
        if (
            got != expected
            or proof.boot_id != self.boot_id
            or not units <= {unit.unit for unit in proof.units}
            or commits - {release.source.commit}
        ):
            raise Refused(
                "proof-refused",
                "a proof is about something else than what was ordered",
                expected=f"{' '.join(expected)}, units {sorted(units)}, {release.source.commit}",
                got=f"{' '.join(got)}, units {sorted(unit.unit for unit in proof.units)}",
                where=self.order.node,
            )
        return envelope, proof

    def _confirm(self, checked: tuple[Envelope, Proof]) -> None:
        envelope, proof = checked
        confirm = Confirm(
            op_id=self.order.op_id,
            node=self.order.node,
            proof=envelope.digest,
            route=self.order.route,
            fence=self.order.fence,
        )
        signed = sign(
            encode_confirm(confirm), payload_type=CONFIRM_TYPE, signer=self.installer.controller
        )
        try:
            self.session.ask("confirm", answer="confirmed", stdin=encode_record(signed))
        except CapsuleError as error:
            if error.error_id != "confirm-refused":
                raise
            # The host has decided already, for or against; its receipt says which.
            return
        self.installer.watch.confirmed(self.order.node, proof)

    def _check_receipt(self, record: bytes) -> CheckedReceipt:
        receipt = check_receipt(record, node=self.order.node, key=self.key)
        said = receipt.receipt
        expected = (self.order.op_id, self.order.capsule, self.order.route)
        got = (said.op_id, said.capsule, said.route)
        if got != expected or said.kind != "install":
            raise Refused(
                "receipt-refused",
                "a receipt speaks of something else than what was ordered",
                expected=" ".join(expected),
                got=f"{said.kind}: {' '.join(got)}",
                where=self.order.node,
            )
        return receipt


def _records(next_record: Callable[[], HostRecord | None]) -> Iterator[HostRecord]:
    """Yield records until the end; that a follow ran into its time-out is such an end."""
    while True:
        try:
            record = next_record()
        except CapsuleError as error:
            if error.error_id == "op-not-finished":
                return
            raise
        if record is None:
            return
        yield record
