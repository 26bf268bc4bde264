"""`capsule enrol`: first contact. The host makes its key and takes its name and first policy.

Whoever may run this program on the host at first contact decides whom it trusts: that is the pinned
connection, or the person at the keyboard. Afterwards nothing here changes what was decided; a
repetition must say the same.

Order on disk: key, policy, first receipt, and last the name, which makes the host enrolled. A stop
in between leaves a host that is not enrolled and takes the same request again.
"""

import sys
from dataclasses import dataclass
from typing import Final

import click

from capsule_installer.host.host import Host
from capsule_installer.host.identity import NodeSigner, make_node_key
from capsule_installer.host.receipts import ReceiptChain
from capsule_installer.host.state import Enrolment
from capsule_manifest.canonical import Limits, decode
from capsule_manifest.digest import sha256_text
from capsule_manifest.envelope import Envelope, encode_record
from capsule_manifest.errors import Refused
from capsule_manifest.fields import Object
from capsule_manifest.keys import b64decode, b64encode
from capsule_manifest.policy import decode_policy
from capsule_manifest.release import PRODUCT
from capsule_manifest.route import NODE_ID

__all__ = ["command", "enrol"]

_REQUEST_LIMITS: Final = Limits(size_bytes_max=2 * 1024 * 1024, depth_max=2, values_max=16)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    node: str
    product: str
    policy: bytes


@click.command(name="enrol", epilog="Example: capsule enrol < request.json")
@click.pass_obj
def command(host: Host) -> None:
    """Take this node's name and first policy from standard input; answer with its key."""
    host.prepare()
    request = sys.stdin.buffer.read(_REQUEST_LIMITS.size_bytes_max + 1)
    lock = host.take_lock()
    try:
        signer, receipt = enrol(host, request)
    finally:
        lock.release()
    host.reporter.record(
        "enrolled",
        {
            "node_key": b64encode(signer.public.spki),
            "receipt": b64encode(encode_record(receipt)),
        },
    )


def enrol(host: Host, request: bytes) -> tuple[NodeSigner, Envelope]:
    """Enrol this host, or find that it was enrolled with the same values; return its receipt.

    The caller holds the lock.

    Raises:
        Refused: `json-*`, `document-invalid`, `policy-invalid`, `product-mismatch`;
            `enrolment-differs` when the host has another name, product or policy.
        Failed: `disk-*`.
    """
    wanted = _read_request(request)
    enrolment = Enrolment(
        node=wanted.node, product=wanted.product, policy=sha256_text(wanted.policy)
    )
    present = host.state.enrolment()
    if present is not None and present != enrolment:
        raise Refused(
            "enrolment-differs",
            "the host is enrolled with other values",
            expected=f"{present.node} of {present.product} under {present.policy}",
            got=f"{enrolment.node} of {enrolment.product} under {enrolment.policy}",
            where=host.layout.state,
        )
    signer = make_node_key(host.disk, host.layout)
    if present is None:
        host.state.store_policy(wanted.policy)
        host.state.ensure_ballast()
    receipt = _first_receipt(host, signer, enrolment)
    host.state.enrol(enrolment)
    return signer, receipt


def _first_receipt(host: Host, signer: NodeSigner, enrolment: Enrolment) -> Envelope:
    chain = ReceiptChain(host.disk, host.layout, signer)
    first = chain.first()
    if first is not None and first.receipt.details.get("policy") == enrolment.policy:
        chain.keep()
        return first.envelope

    return chain.append_policy(
        kind="enrol",
        node=enrolment.node,
        fence=host.state.fence(),
        reason="first contact",
        policy=enrolment.policy,
        product=enrolment.product,
    )


def _read_request(raw: bytes) -> _Request:
    document = Object(decode(raw, limits=_REQUEST_LIMITS, where="enrolment"), "enrolment")
    request = _Request(
        node=document.matching("node", NODE_ID),
        product=document.matching("product", PRODUCT),
        policy=b64decode(document.text("policy"), "enrolment.policy"),
    )
    document.end()
    policy = decode_policy(request.policy)
    if policy.product != request.product:
        raise Refused(
            "product-mismatch",
            "the policy is of another product",
            expected=request.product,
            got=policy.product,
            where="enrolment.policy",
        )
    return request
