"""Whether this host may do what an order asks, decided before anything is changed.

Pure: the host's own knowledge comes in as `HostFacts`. The order of the checks is fixed: for whom,
by whom, fence, route, moment, what is installed, what is staged, guard. An order that was accepted
before is answered from its op folder and never comes here.

Source: design, sections 9 and 10; `docs/reference/orders.md`.
"""

from dataclasses import dataclass
from typing import Final

from capsule_manifest.digest import sha256_text
from capsule_manifest.envelope import Envelope
from capsule_manifest.errors import Refused
from capsule_manifest.keys import PublicKey
from capsule_manifest.orders import ABSENT, ORDER_TYPE, Order, decode_order
from capsule_manifest.policy import Policy, encode_policy
from capsule_manifest.records import Marker
from capsule_manifest.trust_orders import VerifiedRoute, verify_order

__all__ = ["LOCAL_EPOCH", "HostFacts", "check_order"]

LOCAL_EPOCH: Final = "local"
"""The epoch of an order that the host gave itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """What a host knows when an order comes.

    `issued_ms` is when, on the boot clock, a hello of this boot gave out the order's nonce; None if
    none did. `marker` is the verified marker of the ordered generation if that is staged.
    """

    node: str
    node_key: PublicKey
    policy: Policy
    route: VerifiedRoute
    fence: int
    counter_floor: int
    boot_id: str
    boot_ms: int
    issued_ms: int | None
    current: str
    previous: str
    marker: Marker | None
    guard_levels: tuple[str, ...]


def check_order(host: HostFacts, envelope: Envelope) -> Order:
    """Return the order if this host may carry it out now.

    Raises:
        Refused: `order-wrong-node`, `order-wrong-route`, `order-fenced`, `order-expired`,
            `order-prior-mismatch`, `generation-not-staged`, `capsule-revoked`,
            `policy-changed`, `release-counter-too-low`, `guard-level-denied`,
            `guard-policy-denied`, and whatever `verify_order` raises.
    """
    order = _authorised(host, envelope)
    if (order.node, order.node_key) != (host.node, host.node_key.keyid):
        raise Refused(
            "order-wrong-node",
            "an order is for another node",
            expected=f"{host.node} with key {host.node_key.keyid}",
            got=f"{order.node} with key {order.node_key}",
        )
    if order.fence < host.fence:
        raise Refused(
            "order-fenced", "an order's fence is too low", expected=host.fence, got=order.fence
        )
    _check_moment(host, order)
    if order.prior != host.current:
        raise Refused(
            "order-prior-mismatch",
            "another generation is installed than the order expects",
            expected=order.prior,
            got=host.current,
        )
    _check_target(host, order)
    _check_guard(host, order)
    return order


def _authorised(host: HostFacts, envelope: Envelope) -> Order:
    if envelope.keyid != host.node_key.keyid:
        return verify_order(host.policy, host.route, envelope)
    # The node key speaks for this host only, and nobody is there to confirm.
    order = decode_order(
        envelope.verify(host.node_key, payload_type=ORDER_TYPE, where="local order")
    )
    if order.confirm != "local":
        raise Refused(
            "authority-denied",
            "the node's own key can't speak for a controller",
            expected="confirm local",
            got=order.confirm,
            where="local order",
        )
    if order.route != host.route.digest:
        raise Refused(
            "order-wrong-route", "an order is under another route",
            expected=host.route.digest, got=order.route,
        )  # fmt: skip
    return order


def _check_moment(host: HostFacts, order: Order) -> None:
    if order.boot_id != host.boot_id or host.issued_ms is None:
        raise Refused(
            "order-expired",
            "an order answers no hello of this boot",
            expected=f"boot {host.boot_id} and one of its nonces",
            got=f"boot {order.boot_id}",
        )
    age_ms = host.boot_ms - host.issued_ms
    if not 0 <= age_ms <= order.valid_ms:
        raise Refused(
            "order-expired",
            "an order came too late",
            expected=f"within {order.valid_ms} ms of its hello",
            got=f"{age_ms} ms",
        )


def _check_target(host: HostFacts, order: Order) -> None:
    if order.generation == ABSENT:
        raise Refused(
            "generation-not-staged", "an order must name a generation", got=order.generation
        )
    marker = host.marker
    if marker is None or (marker.capsule, marker.release_counter) != (
        order.capsule,
        order.release_counter,
    ):
        raise Refused(
            "generation-not-staged",
            "the ordered capsule is not staged as ordered",
            expected=f"{order.generation} of {order.capsule}",
            got=marker.capsule if marker else "nothing staged under that name",
        )
    if order.capsule in host.policy.revoked_capsules:
        raise Refused("capsule-revoked", "this capsule is revoked", got=order.capsule)
    if order.verb == "rollback":
        # Going back is always to what was there before, never to any old release.
        if order.generation != host.previous:
            raise Refused(
                "order-prior-mismatch", "a rollback goes to the previous generation only",
                expected=host.previous, got=order.generation,
            )  # fmt: skip
        return
    if marker.route != order.route:
        raise Refused(
            "order-wrong-route",
            "the generation was rendered under another route",
            expected=order.route,
            got=marker.route,
        )
    if host.route.route.policy != sha256_text(encode_policy(host.policy)):
        # What was staged was decided under the policy before; staging decides it again.
        raise Refused(
            "policy-changed",
            "the trust policy has changed since the route was frozen",
            expected=sha256_text(encode_policy(host.policy)),
            got=host.route.route.policy,
        )
    allowed = host.policy.downgrade(order.capsule) is not None
    if order.release_counter < host.counter_floor and not allowed:
        raise Refused(
            "release-counter-too-low",
            "the ordered release is older than what was installed before",
            expected=f"release counter {host.counter_floor} or higher",
            got=order.release_counter,
        )


def _check_guard(host: HostFacts, order: Order) -> None:
    lowest = host.route.route.guard_floor(host.node)
    if order.guard_level < lowest or order.guard_level not in host.guard_levels:
        raise Refused(
            "guard-level-denied",
            "the network guard would be weaker than the route allows",
            expected=f"{lowest} or higher, and one of {', '.join(host.guard_levels)}",
            got=order.guard_level,
        )
    policy = host.route.route.guard_policy(host.node)
    if order.guard_policy not in {"fail", policy}:
        raise Refused(
            "guard-policy-denied",
            "a try to use the network would fail nothing, which the route does not allow",
            expected=policy,
            got=order.guard_policy,
        )
