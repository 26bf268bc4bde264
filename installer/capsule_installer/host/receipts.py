"""The chain of receipts: what this host did, each link signed and naming the one before it.

One file a receipt, `00000001.json` and so on, published once and never changed. A file that can't
be read, such as after a damage of the disk, is set aside and never stops the next op: the chain
then shows a gap to whoever has the controller's copies, which is what a chain is for.

Space for the next receipt is put aside after each one, so that recording does not need a free disk.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from capsule_installer.host.layout import Layout
from capsule_installer.system.disk import Disk
from capsule_installer.system.fsops import keep_name, publish_once, replace_file
from capsule_manifest.envelope import Envelope, decode_record, encode_record, sign
from capsule_manifest.errors import Failed, Refused
from capsule_manifest.keys import PublicKey, Signer
from capsule_manifest.orders import ABSENT
from capsule_manifest.records import RECEIPT_TYPE, Receipt, decode_receipt, encode_receipt

__all__ = ["ReceiptChain", "SignedReceipt", "verify_chain"]

RESERVE_BYTES: Final = 64 * 1024
_RECEIPT_BYTES_MAX: Final = 1024 * 1024
_NAME: Final = re.compile(r"[0-9]{8}\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedReceipt:
    """A receipt with the envelope that carries it."""

    receipt: Receipt
    envelope: Envelope


class ReceiptChain:
    """The receipts of this host. Writers hold the host's lock."""

    def __init__(self, disk: Disk, layout: Layout, signer: Signer) -> None:
        self._disk = disk
        self._layout = layout
        self._signer = signer

    def next_link(self) -> tuple[int, str | None]:
        """Return the sequence and `previous` that the next receipt must have.

        Sets a damaged last file aside. Raises: `disk-*`.
        """
        last = self._last()
        if last is None:
            return 1, None
        return last.receipt.sequence + 1, last.envelope.digest

    def sign(self, build: Callable[[int, str | None], Receipt]) -> Envelope:
        """Return the next receipt signed but not published: an outcome carries it first."""
        return self._sign(build(*self.next_link()))

    def publish(self, envelope: Envelope) -> None:
        """Publish a signed receipt as the next link; once it is there, repeating does nothing.

        Raises:
            Refused: `record-chain-broken` when it does not follow the last one.
            Failed: `disk-*`.
        """
        receipt = _decode(envelope, self._signer.public, "a receipt")
        path = self._path(receipt.sequence)
        if self._read(path) == encode_record(envelope):
            self.keep()
            self._reserve()
            return
        sequence, previous = self.next_link()
        if (receipt.sequence, receipt.previous) != (sequence, previous):
            raise Refused(
                "record-chain-broken",
                "a receipt does not follow the last one",
                expected=f"sequence {sequence} after {previous}",
                got=f"sequence {receipt.sequence} after {receipt.previous}",
                where=self._layout.receipts,
            )
        self._put(path, encode_record(envelope))
        self._reserve()

    def append(self, build: Callable[[int, str | None], Receipt]) -> Envelope:
        """Sign and publish the next receipt, built from its sequence and the digest before it.

        Raises: `disk-*`.
        """
        envelope = self.sign(build)
        self.publish(envelope)
        return envelope

    def append_policy(
        self, *, kind: str, node: str, fence: int, reason: str, policy: str, product: str
    ) -> Envelope:
        """Append the receipt of a policy that holds from now on; `policy` is its digest.

        Raises: `disk-*`.
        """
        return self.append(
            lambda sequence, previous: Receipt(
                sequence=sequence,
                previous=previous,
                kind=kind,
                node=node,
                node_key=self._signer.public.keyid,
                op_id="",
                epoch="",
                fence=fence,
                route="",
                capsule="",
                source=ABSENT,
                target=ABSENT,
                result="done",
                reason=reason,
                guard="",
                details={"policy": policy, "product": product},
            )
        )

    def read_all(self) -> list[SignedReceipt]:
        """Return all receipts, oldest first, each verified; not yet that they are a chain.

        Raises:
            Refused: `json-*`, `document-*`, `key-unknown`, `signature-*`.
        """
        return [self._load(name) for name in self._names()]

    def raw(self) -> Iterator[bytes]:
        """Yield the bytes of all receipts, oldest first; nothing in them is checked.

        Raises: `disk-*`.
        """
        for name in self._names():
            yield self._disk.read(f"{self._layout.receipts}/{name}", _RECEIPT_BYTES_MAX)

    def last_number(self) -> int:
        """Return the number of the newest receipt by its name alone; 0 when there is none."""
        names = self._names()
        return int(names[-1].partition(".")[0]) if names else 0

    def since(self, number: int) -> list[Receipt]:
        """Return the receipts from `number` on, oldest first. Raises: as `read_all`."""
        first = f"{number:08}.json"
        return [self._load(name).receipt for name in self._names() if name >= first]

    def first(self) -> SignedReceipt | None:
        """Return the oldest receipt, that of the enrolment. Raises: as `read_all`."""
        names = self._names()
        return self._load(names[0]) if names else None

    def find_last(self, wanted: Callable[[Receipt], bool], *, among: int) -> SignedReceipt | None:
        """Return the newest of the last `among` receipts that is wanted. Raises: as `read_all`."""
        for name in reversed(self._names()[-among:]):
            found = self._load(name)
            if wanted(found.receipt):
                return found
        return None

    def keep(self) -> None:
        """Make the receipts that were found durable, before anything relies on one of them.

        Raises: `disk-*`.
        """
        keep_name(self._disk, self._path(1))

    def reserve(self) -> None:
        """Put space and an inode aside for the next receipt. Raises: `disk-*`."""
        path = self._reserve_path()
        found = self._disk.stat(path)
        if found is None or found.size_bytes != RESERVE_BYTES:
            # Not zeros: a file system that compresses or keeps holes would reserve nothing.
            filler = bytes(range(1, 256)) * (RESERVE_BYTES // 255 + 1)
            replace_file(self._disk, path, filler[:RESERVE_BYTES], 0o600)

    def _last(self) -> SignedReceipt | None:
        for name in reversed(self._names()):
            try:
                return self._load(name)
            except Refused:
                self._set_aside(name)
        return None

    def _set_aside(self, name: str) -> None:
        kept = f"{self._layout.quarantine}/receipt-{name}"
        # Not made durable here: a damaged file that comes back is set aside again, and publishing
        # the receipt that takes its place makes this folder durable.
        self._disk.rename(f"{self._layout.receipts}/{name}", kept)

    def _put(self, path: str, data: bytes) -> None:
        try:
            won = publish_once(self._disk, path, data, 0o644)
        except Failed as error:
            if error.error_id != "disk-full":
                raise
            self._spend_reserve()
            won = publish_once(self._disk, path, data, 0o644)
        assert won, "receipts are written under the host's lock"

    def _spend_reserve(self) -> None:
        try:
            self._disk.unlink(self._reserve_path())
        except FileNotFoundError:
            return
        # File systems give the blocks back when the removal is durable.
        self._disk.fsync_dir(self._layout.receipts, "spent reserve's name")

    def _reserve(self) -> None:
        try:
            self.reserve()
        except Failed as error:
            # The receipt is published; the reserve is made good by the next one that finds room.
            if error.error_id != "disk-full":
                raise

    def _sign(self, receipt: Receipt) -> Envelope:
        return sign(encode_receipt(receipt), payload_type=RECEIPT_TYPE, signer=self._signer)

    def _load(self, name: str) -> SignedReceipt:
        path = f"{self._layout.receipts}/{name}"
        raw = self._disk.read(path, _RECEIPT_BYTES_MAX)
        envelope = decode_record(raw, where=path)
        receipt = _decode(envelope, self._signer.public, path)
        if f"{receipt.sequence:08}.json" != name:
            raise Refused(
                "record-chain-broken",
                "a receipt lies under another's name",
                expected=name,
                got=f"sequence {receipt.sequence}",
                where=path,
            )
        return SignedReceipt(receipt=receipt, envelope=envelope)

    def _read(self, path: str) -> bytes | None:
        try:
            return self._disk.read(path, _RECEIPT_BYTES_MAX)
        except FileNotFoundError:
            return None

    def _names(self) -> list[str]:
        return [name for name in self._disk.list(self._layout.receipts) if _NAME.fullmatch(name)]

    def _path(self, sequence: int) -> str:
        return f"{self._layout.receipts}/{sequence:08}.json"

    def _reserve_path(self) -> str:
        return f"{self._layout.receipts}/.reserve"


def verify_chain(envelopes: Sequence[Envelope], key: PublicKey) -> list[Receipt]:
    """Return the receipts of a whole chain, oldest first, after checking every link.

    Raises:
        Refused: `record-chain-broken` for a gap, a repetition or a wrong order; as
            `Envelope.verify` and `decode_receipt`.
    """
    receipts: list[Receipt] = []
    previous: str | None = None
    for position, envelope in enumerate(envelopes, start=1):
        receipt = _decode(envelope, key, f"receipt {position}")
        if (receipt.sequence, receipt.previous) != (position, previous):
            raise Refused(
                "record-chain-broken",
                "a receipt does not follow the one before it",
                expected=f"sequence {position} after {previous}",
                got=f"sequence {receipt.sequence} after {receipt.previous}",
                where=f"receipt {position}",
            )
        receipts.append(receipt)
        previous = envelope.digest
    return receipts


def _decode(envelope: Envelope, key: PublicKey, where: str) -> Receipt:
    payload = envelope.verify(key, payload_type=RECEIPT_TYPE, where=where)
    return decode_receipt(payload, where=where)
