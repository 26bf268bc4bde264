"""What makes a generation a staged one: trusted objects, the signed marker, the stage receipt.

The marker is the only commit point of staging. Everything that it speaks of is durable before it
is written; what no marker speaks of is an untrusted cache.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from capsule_installer.host.host import Host
from capsule_installer.host.receipts import ReceiptChain
from capsule_installer.staging.incoming import Delivery
from capsule_installer.system.disk import Disk
from capsule_installer.system.fsops import remove_tree, replace_file
from capsule_manifest.digest import ObjectId
from capsule_manifest.envelope import Envelope, encode_record, sign
from capsule_manifest.errors import Refused
from capsule_manifest.keys import PublicKey, Signer
from capsule_manifest.records import MARKER_TYPE, Marker, Receipt, Step, encode_marker
from capsule_manifest.tree import Tree, TreeLimits, decode_tree, encode_tree

__all__ = [
    "StageFacts",
    "put_file",
    "read_listing",
    "seal_generation",
    "stage_receipt",
    "trusted_objects",
    "usable_markers",
]

_RECEIPTS_SEARCHED: Final = 200


def usable_markers(host: Host, key: PublicKey) -> dict[str, Marker]:
    """Return the staged markers that this node signed; others are reported and left out."""
    markers: dict[str, Marker] = {}
    for generation in host.state.staged_generations():
        try:
            marker = host.state.staged_marker(generation, key)
        except Refused as refusal:
            host.reporter.log(f"not trusted: {refusal}")
            continue
        if marker is not None:
            markers[generation] = marker
    return markers


def trusted_objects(
    host: Host, markers: Mapping[str, Marker], known: Mapping[ObjectId, Tree]
) -> set[ObjectId]:
    """Return every object to which a durable marker refers. `known` spares reading a listing."""
    roots = {root for marker in markers.values() for root in marker.trees.values()}
    objects: set[ObjectId] = set()
    for root in roots:
        tree = known.get(root) or read_listing(host, root)
        if tree is not None:
            objects.update(entry.object for entry in tree.entries if entry.object is not None)
    return objects


def read_listing(host: Host, root: ObjectId) -> Tree | None:
    """Return a kept listing, None when it is gone or damaged. Raises: `disk-*`."""
    path = host.layout.listing(root)
    try:
        return decode_tree(host.disk.read(path, TreeLimits().size_bytes_max), root=root)
    except FileNotFoundError:
        return None
    except Refused as refusal:
        host.reporter.log(f"not trusted: {refusal}")
        return None


def seal_generation(
    host: Host, marker: Marker, signer: Signer, route: Envelope, listings: Iterable[Tree]
) -> None:
    """Make a realised generation durable, then a staged one. The marker names the `listings`.

    Raises: `disk-*`.
    """
    record = encode_record(sign(encode_marker(marker), payload_type=MARKER_TYPE, signer=signer))
    put_file(host.disk, f"{host.layout.generation(marker.generation)}/seal.json", record, 0o444)
    # One sync for thousands of files instead of one each. Without it the marker could survive a
    # power loss that the files, or their names, did not.
    host.disk.sync_filesystem(host.layout.opt, "staged content")
    # Small files come after it: each would wait for all that was on its way to the disk.
    for tree in listings:
        replace_file(host.disk, host.layout.listing(tree.root), encode_tree(tree), 0o600)
    host.state.store_route(route)
    replace_file(host.disk, host.layout.marker(marker.generation), record, 0o600)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFacts:
    """What a stage receipt says besides what was delivered."""

    steps: Sequence[Step]
    counts: Mapping[str, int]
    source: str
    fence: int


def stage_receipt(host: Host, delivery: Delivery, signer: Signer, facts: StageFacts) -> Envelope:
    """Return the receipt of this staging: a present one if nothing was done, else a new link.

    Raises: `disk-*`.
    """
    chain = ReceiptChain(host.disk, host.layout, signer)

    def says_the_same(receipt: Receipt) -> bool:
        return (receipt.kind, receipt.result, receipt.target, receipt.route, receipt.capsule) == (
            "stage", "done", delivery.generation, delivery.route.digest, delivery.capsule
        )  # fmt: skip

    if not facts.steps:
        present = chain.find_last(says_the_same, among=_RECEIPTS_SEARCHED)
        if present is not None:
            # The answer names it, and so must the chain after a power cut.
            chain.keep()
            return present.envelope

    def build(sequence: int, previous: str | None) -> Receipt:
        return Receipt(
            sequence=sequence,
            previous=previous,
            kind="stage",
            node=delivery.begin.node,
            node_key=signer.public.keyid,
            op_id="",
            epoch=delivery.begin.epoch,
            fence=facts.fence,
            route=delivery.route.digest,
            capsule=delivery.capsule,
            source=facts.source,
            target=delivery.generation,
            result="done",
            reason="",
            guard="",
            steps=tuple(facts.steps),
            counts=facts.counts,
            details=_details(delivery),
        )

    return chain.append(build)


def _details(delivery: Delivery) -> dict[str, str]:
    details = {"owners": ", ".join(delivery.owners)}
    if delivery.downgrade is not None:
        # What was let through on purpose must be found later by whoever reads the receipts.
        details["downgrade"] = delivery.downgrade
    return details


def put_file(disk: Disk, path: str, data: bytes, mode: int) -> None:
    """Write a file that the sync before the marker makes durable; never into an existing inode."""
    remove_tree(disk, path)
    with disk.create(path, mode) as writer:
        writer.write(data)
