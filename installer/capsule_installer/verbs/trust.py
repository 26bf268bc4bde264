"""`capsule trust`: show what this host trusts, and take the next policy.

A host takes a policy from anybody who brings it, because it takes nothing on his word: the owners
who hold trust now must have signed it, and its number must be higher. No clock is read and no
network is used; whether the newest policy was brought is for the controller to know.

Order on disk: policy, then receipt. A stop in between is finished by the same request again.
"""

import sys
from typing import Final

import click

from capsule_installer.host.host import Host
from capsule_installer.host.identity import require_node_key
from capsule_installer.host.receipts import ReceiptChain
from capsule_manifest.canonical import JsonValue
from capsule_manifest.digest import sha256_text
from capsule_manifest.envelope import Envelope, encode_record
from capsule_manifest.errors import Failed
from capsule_manifest.keys import b64encode
from capsule_manifest.policy import Policy, encode_policy
from capsule_manifest.policy_update import UPDATE_LIMITS, decode_policy_update, next_policy

__all__ = ["command", "update_policy"]

_RECENT_RECEIPTS: Final = 1024


@click.group(name="trust", epilog="Example: capsule trust update < policy-update.json")
def command() -> None:
    """Show what this host trusts, or take the next policy."""


@command.command(epilog="Example: capsule trust show --json")
@click.option("--json", "as_json", is_flag=True, help="Answer in framed records.")
@click.pass_obj
def show(host: Host, *, as_json: bool) -> None:
    """Show which policy holds here."""
    policy = host.state.policy()
    fields: dict[str, JsonValue] = {
        "product": policy.product,
        "version": policy.version,
        "digest": sha256_text(encode_policy(policy)),
        "issued_s": policy.issued_s,
        "max_age_s": policy.max_age_s,
        "counter_floor": max(policy.release_counter_floor, host.state.counter_floor()),
    }
    if as_json:
        host.reporter.record("trust", fields)
        return
    for name, value in fields.items():
        host.reporter.text(f"{name}: {value}")


@command.command(epilog="Example: capsule trust update < policy-update.json")
@click.pass_obj
def update(host: Host) -> None:
    """Take the newest policy that standard input brings."""
    host.prepare()
    raw = sys.stdin.buffer.read(UPDATE_LIMITS.size_bytes_max + 1)
    lock = host.take_lock()
    try:
        before, after, receipt = update_policy(host, raw)
    finally:
        lock.release()
    host.reporter.record(
        "policy-updated",
        {
            "before": before.version,
            "version": after.version,
            "policy": sha256_text(encode_policy(after)),
            "receipt": b64encode(encode_record(receipt)),
        },
    )


def update_policy(host: Host, raw: bytes) -> tuple[Policy, Policy, Envelope]:
    """Take the newest policy of an update; return what held, what holds, and the receipt of that.

    The caller holds the lock.

    Raises:
        Refused: what `decode_policy_update` and `next_policy` raise.
        Failed: `host-not-enrolled`, `op-open`, `disk-*`.
    """
    enrolment = host.state.require_enrolment()
    before = host.state.policy()
    after = next_policy(before, decode_policy_update(raw), where="policy update")
    open_op = host.state.open_op()
    if open_op is not None and after != before:
        # Its confirm must be judged by the policy under which it began.
        raise Failed(
            "op-open", "an op of this host is not finished", got=open_op, where=host.layout.ops,
            retryable=True,
        )  # fmt: skip
    if after != before:
        host.state.store_policy(encode_policy(after))
    else:
        host.state.keep_policy()
    digest = sha256_text(encode_policy(after))
    signer = require_node_key(host.disk, host.layout)
    chain = ReceiptChain(host.disk, host.layout, signer)
    last = chain.find_last(
        lambda receipt: receipt.kind in {"enrol", "trust"}, among=_RECENT_RECEIPTS
    )
    if last is not None and last.receipt.details.get("policy") == digest:
        chain.keep()
        return before, after, last.envelope
    receipt = chain.append_policy(
        kind="trust",
        node=enrolment.node,
        fence=host.state.fence(),
        reason=f"policy version {after.version}",
        policy=digest,
        product=after.product,
    )
    return before, after, receipt
