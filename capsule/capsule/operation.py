"""One op id on one host, from its order to its receipt.

The controller asks; the host decides. An order goes out once; if the connection is lost before the
host acknowledged it, the *same* order is sent again, and a host that knows its op id answers as
before. After that only questions by op id are repeated. The controller's part in between is one
decision: to confirm a proof. Without its confirm the host restores itself.

What a host says counts only as far as its node key signed it: how an op ended is read from the
receipt, never from a progress record.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from capsule.host_records import HostRecord
from capsule.receipts_store import CheckedReceipt, check_receipt
from capsule.session import HostSession
from capsule.transport.base import QUICK, Limits
from capsule_manifest.envelope import Envelope, decode_record, encode_record, sign
from capsule_manifest.errors import CapsuleError, Failed, Refused
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

__all__ = ["Expected", "Operation", "OperationWatch"]

_SEND_ATTEMPTS: Final = 3
_FOLLOW_ATTEMPTS: Final = 5
_BACK_OFF_S: Final = (0.2, 1.0, 3.0, 5.0)
_FOLLOW_S: Final = 20
_RESTORE_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a proof must show beside what the order says: the commit, and at least these units."""

    commit: str
    units: frozenset[str]


class OperationWatch(Protocol):
    """Be told how one operation goes."""

    def ordered(self, node: str, order: Order) -> None:
        """Hear that a host has taken an order."""
        ...

    def step(self, node: str, *, name: str, state: str, took_ms: int | None, why: str) -> None:
        """Hear of one step on the host; `why` is empty unless it failed."""
        ...

    def confirmed(self, node: str, proof: Proof) -> None:
        """Hear that a proof was accepted and confirmed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One op id from its order to its receipt."""

    session: HostSession
    key: PublicKey
    order: Order
    expected: Expected
    controller: Signer
    watch: OperationWatch

    def run(self) -> CheckedReceipt:
        """Send the order and follow it to its receipt.

        Raises:
            CapsuleError: what the host refuses, `op-unresolved`, `proof-refused`,
                `receipt-refused`.
        """
        self._send()
        self.watch.ordered(self.order.node, self.order)
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
        envelope = sign(encode_order(self.order), payload_type=ORDER_TYPE, signer=self.controller)
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
        self.watch.step(
            self.order.node,
            name=item.text("name"),
            state=item.text("state"),
            took_ms=item.optional_integer("took_ms") if item.has("took_ms") else None,
            why=item.text("why", empty=True) if item.has("why") else "",
        )

    def _check_proof(self, record: HostRecord) -> tuple[Envelope, Proof]:
        item = Object(record, f"proof of {self.order.node}")
        envelope = decode_record(b64decode(item.text("proof"), item.where), where=item.where)
        payload = envelope.verify(self.key, payload_type=PROOF_TYPE, where=item.where)
        proof = decode_proof(payload, where=item.where)
        expected = (self.order.op_id, self.order.node, self.order.capsule, self.order.generation)
        got = (proof.op_id, proof.node, proof.capsule, proof.generation)
        commits = {unit.commit for unit in proof.units}
        if (
            got != expected
            or proof.boot_id != self.order.boot_id
            or not self.expected.units <= {unit.unit for unit in proof.units}
            or commits - {self.expected.commit}
        ):
            raise Refused(
                "proof-refused",
                "a proof is about something else than what was ordered",
                expected=f"{' '.join(expected)}, units {sorted(self.expected.units)}",
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
        signed = sign(encode_confirm(confirm), payload_type=CONFIRM_TYPE, signer=self.controller)
        if self._send_confirm(encode_record(signed)):
            self.watch.confirmed(self.order.node, proof)

    def _send_confirm(self, record: bytes) -> bool:
        """Send a confirm; False when it was not taken, for which the receipt will say why.

        A confirm that is lost again and again is no reason to stop listening: the host decides
        without it, and says so.
        """
        for back_off_s in _BACK_OFF_S[:_SEND_ATTEMPTS]:
            try:
                self.session.ask("confirm", answer="confirmed", stdin=record)
            except CapsuleError as error:
                if error.error_id == "confirm-refused":
                    return False
                if not error.retryable:
                    raise
                time.sleep(back_off_s)
                continue
            return True
        return False

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
