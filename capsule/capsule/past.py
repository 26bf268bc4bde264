"""What a node's receipts say of its past, checked, when the controller's ledger is lost.

A host is asked first; where it does not answer, the controller's own counter-signed copies speak
for it. Either way every signature and link is checked with the key that was pinned at first
contact: a ledger that believed a stranger would hand the stranger a fleet.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from capsule.home import ProductHome
from capsule.ledger.rebuilt import NodeRebuilt
from capsule.receipts_compare import compare_receipts, require_agreement
from capsule.receipts_store import CheckedReceipt
from capsule.session import HostSession
from capsule.transport.base import Transport
from capsule_manifest.errors import Failed, Refused
from capsule_manifest.keys import PublicKey, Signer
from capsule_manifest.route import Endpoint

__all__ = ["NodePast", "read_past"]

_SWITCHED = frozenset({"install", "rollback"})


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePast:
    """A node as its receipts show it. `is_held` says that a person has to look at it first."""

    event: NodeRebuilt
    is_held: bool


def read_past(
    home: ProductHome,
    node: str,
    endpoint: Endpoint,
    *,
    signer: Signer,
    connect: Callable[[Endpoint, str], Transport],
) -> NodePast:
    """Return what the host, or the controller's copies for it, prove of the node.

    Raises:
        Refused: `node-unmet`, `node-key-changed`, `record-chain-broken`.
        Failed: what the transport raises, when there are no copies either.
    """
    key = home.node_key(node)
    if key is None:
        raise Refused("node-unmet", "this controller has never met the node", where=node)
    copies = home.receipts(node, signer=signer)
    kept = list(copies.read_all(key))
    try:
        session = HostSession(connect(endpoint, node), node=node)
        hello = session.hello()
        records = session.receipts()
    except Failed:
        if not kept:
            raise
        # Nobody can say what a silent host is in the middle of: a person looks at it first.
        return _past(node, key, kept, fence=0, source="copies", is_held=True)
    if hello.node != node or hello.node_key != key:
        raise Refused(
            "node-key-changed",
            "another host answers for the node",
            expected=f"{node}, key {key.short}",
            got=f"{hello.node}, key {hello.node_key.short if hello.node_key else 'none'}",
            where=node,
        )
    compared = compare_receipts(kept, records, node=node, key=key)
    require_agreement(compared, node)
    for receipt in compared.new:
        copies.add(receipt, key)
    told = [*kept, *compared.new]
    is_held = hello.hold or hello.open_op is not None or hello.current != _generation(told)
    return _past(node, key, told, fence=hello.fence, source="host", is_held=is_held)


def _generation(receipts: Sequence[CheckedReceipt]) -> str:
    """Return what the last committed op left running."""
    for item in reversed(receipts):
        if item.receipt.kind in _SWITCHED and item.receipt.result == "committed":
            return item.receipt.target
    return "absent"


def _past(
    node: str,
    key: PublicKey,
    receipts: Sequence[CheckedReceipt],
    *,
    fence: int,
    source: str,
    is_held: bool,
) -> NodePast:
    return NodePast(
        event=NodeRebuilt(
            node=node,
            node_key=key.keyid,
            generation=_generation(receipts),
            fence=max([fence, *(item.receipt.fence for item in receipts)]),
            receipts=len(receipts),
            head=receipts[-1].digest if receipts else "",
            source=source,
        ),
        is_held=is_held,
    )
