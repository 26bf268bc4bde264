"""Compare the receipts that a host tells with those that the controller keeps, number by number.

Pure. Everything that differs is found, not only the first: a receipt that is gone, was changed,
stands in another's place, is signed by somebody else, comes from another host, or was cut off at
the end. What a host tells beyond the copies is new and only has to follow them.

Honest limit: root on a host can sign a new past. It is found as far as the copies reach, and what
was never copied is only as good as that host's root.

Source: design, section 9 ("Receipts"); ADR 0073, ADR 0245.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from capsule.receipts_store import CheckedReceipt, check_receipt
from capsule_manifest.errors import CapsuleError, Refused
from capsule_manifest.keys import PublicKey

__all__ = ["Comparison", "ReceiptFinding", "compare_receipts", "disagreement", "require_agreement"]

_NONE = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiptFinding:
    """One number of a node's chain on which host and controller differ.

    `kept` and `told` are digests, `nothing`, or an error id for what can't be believed.
    """

    number: int
    what: str
    kept: str
    told: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What was compared. `new` are the told receipts beyond the copies, to be kept next.

    `new` is empty as soon as anything differs: nothing is kept from a host that contradicts itself.
    """

    agreed: int
    findings: tuple[ReceiptFinding, ...]
    new: tuple[CheckedReceipt, ...]


def compare_receipts(
    kept: Sequence[CheckedReceipt], told: Sequence[bytes], *, node: str, key: PublicKey
) -> Comparison:
    """Return where the records that a host told, in their order, differ from the kept receipts.

    `kept` is whole and checked, from number 1; of `told` nothing is believed yet.
    """
    found: list[ReceiptFinding] = []
    by_number: dict[int, CheckedReceipt] = {}
    unread: set[int] = set()
    last = 0
    for record in told:
        try:
            receipt = check_receipt(record, node=node, key=key)
        except CapsuleError as error:
            # It has no number that could be believed: it stands where the next one should.
            last += 1
            unread.add(last)
            what = f"can't be believed: {error.what}"
            found.append(_finding(last, what, kept, error.error_id))
            continue
        number = receipt.receipt.sequence
        if number <= last:
            found.append(_finding(number, f"is told after number {last}", kept, receipt.digest))
        last = max(last, number)
        by_number.setdefault(number, receipt)
    found += _differences(kept, by_number, unread)
    found += _broken_links(kept, by_number)
    found.sort(key=lambda item: item.number)
    return Comparison(
        agreed=sum(1 for item in kept if _is_told(item, by_number)),
        findings=tuple(found),
        new=() if found else tuple(by_number[n] for n in sorted(by_number) if n > len(kept)),
    )


def require_agreement(comparison: Comparison, node: str) -> None:
    """Refuse unless nothing differs.

    Raises:
        Refused: `record-chain-broken`.
    """
    if comparison.findings:
        raise disagreement(comparison, node)


def disagreement(comparison: Comparison, node: str) -> Refused:
    """Return the error of a comparison with findings: the first one, and how many there are."""
    first = comparison.findings[0]
    more = len(comparison.findings) - 1
    return Refused(
        "record-chain-broken",
        f"receipt {first.number} {first.what}" + (f", and {more} more differ" if more else ""),
        expected=first.kept,
        got=first.told,
        where=node,
    )


def _differences(
    kept: Sequence[CheckedReceipt], told: dict[int, CheckedReceipt], unread: set[int]
) -> Iterator[ReceiptFinding]:
    last = max(told, default=0)
    for number in sorted({*range(1, len(kept) + 1), *told, *_gaps(told)}):
        ours = kept[number - 1] if number <= len(kept) else None
        theirs = told.get(number)
        if theirs is None and number not in unread:
            lost = "is gone" if number < last else "was cut off at the end"
            yield _finding(number, lost, kept, _NONE)
        elif theirs is not None and ours is not None and theirs.digest != ours.digest:
            yield _finding(number, "is another than it was", kept, theirs.digest)


def _gaps(told: dict[int, CheckedReceipt]) -> Iterator[int]:
    """Yield the last number of each gap: a forged number must not make us count to it."""
    for number in told:
        if number > 1 and number - 1 not in told:
            yield number - 1


def _broken_links(
    kept: Sequence[CheckedReceipt], told: dict[int, CheckedReceipt]
) -> Iterator[ReceiptFinding]:
    """Compare each new receipt with the one before it, whichever side has it."""
    for number in sorted(told):
        if number <= len(kept):
            continue
        before = kept[-1] if number - 1 == len(kept) and kept else told.get(number - 1)
        previous = None if number == 1 or before is None else before.digest
        if told[number].receipt.previous != previous and (before is not None or number == 1):
            yield _finding(number, "does not follow the one before it", kept, told[number].digest)


def _is_told(item: CheckedReceipt, told: dict[int, CheckedReceipt]) -> bool:
    theirs = told.get(item.receipt.sequence)
    return theirs is not None and theirs.digest == item.digest


def _finding(number: int, what: str, kept: Sequence[CheckedReceipt], told: str) -> ReceiptFinding:
    ours = kept[number - 1].digest if 1 <= number <= len(kept) else _NONE
    return ReceiptFinding(number=number, what=what, kept=ours, told=told)
