"""Receipts of many nodes in one file for auditors, who verify it with one public key, offline.

Lines. The first is a record signed by the controller: the product, and of each node its key, the
number of its receipts and the digest of the last one. Each further line is one of the controller's
copies as it is kept: a record signed by the controller around the one that the host signed. Nodes
come sorted, receipts by number. A line less, more, changed or moved contradicts the first line or
breaks a chain.

Nothing here reads a clock: what is old is shown by the receipts themselves, and what was left out
at the end is shown by asking the host, `capsule receipts verify`.

Source: ADR 0246; `docs/how-to/receipts.md`.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from capsule.receipts_store import COPY_BYTES_MAX, CheckedReceipt, check_copy, check_link
from capsule_manifest.canonical import JsonValue, Limits, decode, encode
from capsule_manifest.envelope import decode_record, encode_record, sign
from capsule_manifest.errors import Failed, Refused
from capsule_manifest.fields import Object, root_object
from capsule_manifest.keys import PublicKey, Signer, b64decode, b64encode, public_key

__all__ = ["EXPORT_TYPE", "Audited", "NodeChain", "audit", "export", "open_export"]

EXPORT_TYPE: Final = "application/vnd.capsule.receipts-export.v1+json"
_SCHEMA: Final = "capsule-receipts-export/1"
_LIMITS: Final = Limits(size_bytes_max=16 * 1024 * 1024, depth_max=4)
_NONE: Final = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChain:
    """One node: the key that signs its receipts, and the controller's copies, from number 1."""

    key: PublicKey
    copies: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """What a verified file holds: each node's receipts, oldest first."""

    product: str
    nodes: Mapping[str, tuple[CheckedReceipt, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Promised:
    key: PublicKey
    count: int
    head: str


def export(product: str, chains: Mapping[str, NodeChain], signer: Signer) -> bytes:
    """Return the file with `chains`, whose copies `signer` made.

    Raises:
        Refused: what `audit` raises: a file that would not verify is never written.
    """
    nodes: dict[str, JsonValue] = {}
    lines: list[bytes] = []
    for node in sorted(chains):
        chain = chains[node]
        head = _NONE
        for sequence, copy in enumerate(chain.copies, start=1):
            head = check_copy(
                copy, node=node, sequence=sequence, key=chain.key, controller=signer.public,
                where=f"{node}, copy {sequence}",
            ).digest  # fmt: skip
            lines.append(copy)
        nodes[node] = {
            "node_key": b64encode(chain.key.spki), "receipts": len(chain.copies), "head": head
        }  # fmt: skip
    payload = encode({"schema": _SCHEMA, "product": product, "nodes": nodes})
    first = encode_record(sign(payload, payload_type=EXPORT_TYPE, signer=signer))
    raw = b"".join(line + b"\n" for line in (first, *lines))
    audit(raw.splitlines(keepends=True), signer.public, where="the export")
    return raw


@contextmanager
def open_export(path: Path) -> Iterator[Iterator[bytes]]:
    """Open a file for `audit`, which reads it line by line.

    Raises:
        Failed: `controller-disk`.
    """
    try:
        stream = path.open("rb")
    except OSError as error:
        raise Failed("controller-disk", "an export can't be read", where=path) from error
    with stream:
        yield iter(lambda: stream.readline(COPY_BYTES_MAX + 1), b"")


def audit(lines: Iterable[bytes], controller: PublicKey, *, where: str) -> Audited:
    """Return what a file holds after checking every signature, link, count and end.

    `lines` keep their line ends.

    Raises:
        Refused: `record-chain-broken`; `json-*`, `document-*`, `key-*`, `signature-*`.
    """
    reader = iter(lines)
    product, promised = _first(_line(reader, where), controller, where)
    nodes: dict[str, tuple[CheckedReceipt, ...]] = {}
    for node in sorted(promised):
        nodes[node] = tuple(_chain(reader, node, promised[node], controller, where))
    if next(reader, b""):
        raise _broken("there is more than the first line promises", "the end", "a line", where)
    return Audited(product=product, nodes=nodes)


def _first(raw: bytes, controller: PublicKey, where: str) -> tuple[str, Mapping[str, _Promised]]:
    payload = decode_record(raw, where=where).verify(
        controller, payload_type=EXPORT_TYPE, where=where
    )
    document = root_object(decode(payload, limits=_LIMITS, where=where), schema=_SCHEMA, name=where)
    product = document.text("product")
    nodes = document.named("nodes", _read_promised)
    document.end()
    return product, nodes


def _read_promised(item: Object) -> _Promised:
    promised = _Promised(
        key=public_key(b64decode(item.text("node_key"), item.where), item.where),
        count=item.integer("receipts"),
        head=item.text("head"),
    )
    item.end()
    return promised


def _chain(
    reader: Iterator[bytes], node: str, promised: _Promised, controller: PublicKey, where: str
) -> Iterator[CheckedReceipt]:
    previous: str | None = None
    for sequence in range(1, promised.count + 1):
        place = f"{where}: {node}, receipt {sequence}"
        receipt = check_copy(
            _line(reader, place), node=node, sequence=sequence, key=promised.key,
            controller=controller, where=place,
        )  # fmt: skip
        check_link(receipt, sequence, previous, node)
        previous = receipt.digest
        yield receipt
    if (previous or _NONE) != promised.head:
        raise _broken(
            "a chain does not end as the first line says",
            promised.head,
            previous,
            f"{where}: {node}",
        )


def _line(reader: Iterator[bytes], where: str) -> bytes:
    line = next(reader, b"")
    if not line.endswith(b"\n"):
        raise _broken("a line is missing or cut off", "a whole line", f"{len(line)} bytes", where)
    return line[:-1]


def _broken(what: str, expected: object, got: object, where: str) -> Refused:
    return Refused("record-chain-broken", what, expected=expected, got=got, where=where)
