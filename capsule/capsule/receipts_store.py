"""Copies of hosts' receipts, counter-signed: what makes a host's forged past evident.

Root on a host can write any receipts from then on, and with them a new chain. The controller
therefore keeps every receipt it was shown, signed with its own key, and compares: a receipt that
differs from the copy of its number, or does not follow the one before, is a broken chain.

Copies are files `00000001.json`, written once. A copy is a signed record around the host's signed
record, so that both signatures can be checked years later with nothing but two public keys.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from capsule.durable import make_folder, publish_once, read_bounded
from capsule_manifest.canonical import Limits, decode, encode
from capsule_manifest.envelope import decode_record, encode_record, sign
from capsule_manifest.errors import Refused
from capsule_manifest.fields import root_object
from capsule_manifest.keys import PublicKey, Signer, b64decode, b64encode
from capsule_manifest.records import RECEIPT_TYPE, Receipt, decode_receipt

__all__ = [
    "COPY_BYTES_MAX",
    "COPY_TYPE",
    "CheckedReceipt",
    "ReceiptCopies",
    "check_copy",
    "check_link",
    "check_receipt",
]

COPY_TYPE: Final = "application/vnd.capsule.receipt-copy.v1+json"
_NAME: Final = re.compile(r"[0-9]{8}\.json")
_COPY_SCHEMA: Final = "capsule-receipt-copy/1"
COPY_BYTES_MAX: Final = 32 * 1024 * 1024
_LIMITS = Limits(size_bytes_max=COPY_BYTES_MAX, depth_max=4, values_max=16)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedReceipt:
    """A receipt whose signature by the node's key was checked. `digest` names it in its chain."""

    receipt: Receipt
    digest: str
    record: bytes


def check_receipt(record: bytes, *, node: str, key: PublicKey) -> CheckedReceipt:
    """Return the receipt in `record` if `key` signed it and it speaks of `node`.

    Raises:
        Refused: `json-*`, `document-*`, `signature-*`, `key-unknown`, `record-chain-broken` when
            it is another node's.
    """
    where = f"a receipt of {node}"
    envelope = decode_record(record, where=where)
    payload = envelope.verify(key, payload_type=RECEIPT_TYPE, where=where)
    receipt = decode_receipt(payload, where=where)
    if (receipt.node, receipt.node_key) != (node, key.keyid):
        raise Refused(
            "record-chain-broken",
            "a receipt speaks of another node",
            expected=node,
            got=receipt.node,
            where=where,
        )
    return CheckedReceipt(receipt=receipt, digest=envelope.digest, record=record)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptCopies:
    """The copies of one node's receipts, oldest first, without a gap from number 1.

    A copy that is gone is found by reading them all, and fetched again when the next one comes.
    """

    folder: Path
    node: str
    signer: Signer

    def count(self) -> int:
        """Return how many receipts are kept, which is the number of the last one."""
        last = 0
        while self._path(last + 1).exists():
            last += 1
        return last

    def read_all(self, key: PublicKey) -> Iterator[CheckedReceipt]:
        """Yield every copy after checking both signatures and the chain.

        Raises:
            Refused: `record-chain-broken`, also for one that is gone while a later one is there;
                and what `check_receipt` raises.
        """
        previous: str | None = None
        for sequence in range(1, self._last() + 1):
            found = self._read(sequence, key)
            check_link(found, sequence, previous, self.node)
            previous = found.digest
            yield found

    def records(self, key: PublicKey) -> Iterator[bytes]:
        """Yield the bytes of every copy, checked as `read_all` does. Raises: as `read_all`."""
        for found in self.read_all(key):
            yield self._raw(found.receipt.sequence)

    def add(self, receipt: CheckedReceipt, key: PublicKey) -> bool:
        """Keep `receipt`; return False, changing nothing, if this very receipt is kept already.

        Raises:
            Refused: `record-chain-broken` when another receipt is kept under its number, or it does
                not follow the last one; `receipt-gap` when receipts before it are missing.
            Failed: `controller-disk`.
        """
        sequence = receipt.receipt.sequence
        last = self.count()
        if sequence <= last:
            kept = self._read(sequence, key)
            if kept.digest != receipt.digest:
                raise _broken("a host tells its past differently", kept.digest, receipt, self.node)
            return False
        if sequence > last + 1:
            raise Refused(
                "receipt-gap",
                "receipts are missing before the one that came",
                expected=f"number {last + 1}",
                got=f"number {sequence}",
                where=self.node,
            )
        previous = self._read(last, key).digest if last else None
        check_link(receipt, sequence, previous, self.node)
        make_folder(self.folder)
        return publish_once(self._path(sequence), self._encode(receipt))

    def _last(self) -> int:
        names = (path.name for path in self.folder.glob("*.json"))
        return max((int(name[:8]) for name in names if _NAME.fullmatch(name)), default=0)

    def _encode(self, receipt: CheckedReceipt) -> bytes:
        payload = encode(
            {
                "schema": _COPY_SCHEMA,
                "node": self.node,
                "sequence": receipt.receipt.sequence,
                "receipt": b64encode(receipt.record),
            }
        )
        return encode_record(sign(payload, payload_type=COPY_TYPE, signer=self.signer))

    def _read(self, sequence: int, key: PublicKey) -> CheckedReceipt:
        where = str(self._path(sequence))
        return check_copy(
            self._raw(sequence),
            node=self.node,
            sequence=sequence,
            key=key,
            controller=self.signer.public,
            where=where,
        )

    def _raw(self, sequence: int) -> bytes:
        path = self._path(sequence)
        raw = read_bounded(path, COPY_BYTES_MAX)
        if raw is None:
            raise Refused("record-chain-broken", "a copy is gone", where=path)
        return raw

    def _path(self, sequence: int) -> Path:
        return self.folder / f"{sequence:08d}.json"


def check_copy(
    raw: bytes, *, node: str, sequence: int, key: PublicKey, controller: PublicKey, where: str
) -> CheckedReceipt:
    """Return the receipt in a copy that `controller` made of number `sequence` of `node`.

    Raises:
        Refused: `record-chain-broken` for a copy of something else; what decoding, verifying and
            `check_receipt` raise.
    """
    envelope = decode_record(raw, where=where)
    payload = envelope.verify(controller, payload_type=COPY_TYPE, where=where)
    document = root_object(
        decode(payload, limits=_LIMITS, where=where), schema=_COPY_SCHEMA, name=where
    )
    named = (document.text("node"), document.integer("sequence", least=1))
    record = b64decode(document.text("receipt"), where)
    document.end()
    if named != (node, sequence):
        raise Refused(
            "record-chain-broken",
            "a copy lies in another's place",
            expected=f"{node}, number {sequence}",
            got=f"{named[0]}, number {named[1]}",
            where=where,
        )
    return check_receipt(record, node=node, key=key)


def check_link(receipt: CheckedReceipt, sequence: int, previous: str | None, node: str) -> None:
    """Refuse a receipt that is not number `sequence` after `previous`.

    Raises:
        Refused: `record-chain-broken`.
    """
    said = (receipt.receipt.sequence, receipt.receipt.previous)
    if said != (sequence, previous):
        raise _broken("a receipt does not follow the one before", previous or "none", receipt, node)


def _broken(what: str, expected: str, receipt: CheckedReceipt, node: str) -> Refused:
    return Refused(
        "record-chain-broken",
        what,
        expected=expected,
        got=receipt.receipt.previous or "none",
        where=f"{node}, receipt {receipt.receipt.sequence}",
    )
