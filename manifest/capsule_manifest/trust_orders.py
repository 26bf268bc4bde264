"""Trust in a controller: routes, and what is asked of a host under one.

A host's policy names who may sign a route; a route names the controllers; a controller signs
orders, confirms, questions and repairs. A key that holds another authority is refused at each step,
and so is anything that was signed under another route.

Nothing here reads a clock. Source: design, sections 3 and 10.
"""

from dataclasses import dataclass
from typing import TypeVar

from capsule_manifest.digest import sha256_text
from capsule_manifest.envelope import Envelope
from capsule_manifest.errors import Refused
from capsule_manifest.orders import (
    CONFIRM_TYPE,
    ORDER_TYPE,
    Confirm,
    Order,
    decode_confirm,
    decode_order,
)
from capsule_manifest.policy import Authority, Policy
from capsule_manifest.questions import QUESTION_TYPE, Question, decode_question
from capsule_manifest.repairs import REPAIR_TYPE, Repair, decode_repair
from capsule_manifest.route import ROUTE_TYPE, Route, decode_route
from capsule_manifest.signers import policy_key

__all__ = [
    "VerifiedRoute",
    "verify_confirm",
    "verify_order",
    "verify_question",
    "verify_repair",
    "verify_route",
]

_Asked = TypeVar("_Asked", Order, Confirm, Question, Repair)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedRoute:
    """A route that a route authority signed. `digest` is SHA-256 of its bytes."""

    route: Route
    digest: str


def verify_route(policy: Policy, envelope: Envelope, *, where: str = "route") -> VerifiedRoute:
    """Accept a route that a key with the route authority signed for this product.

    Raises:
        Refused: `key-unknown`, `authority-denied`, `key-revoked`, `signature-*`,
            `product-mismatch`, whatever `decode_route` raises; `authority-denied` also when the
            route names a controller whose key holds another authority.
    """
    key = policy_key(policy, Authority.ROUTE, envelope.keyid, where)
    payload = envelope.verify(key, payload_type=ROUTE_TYPE, where=where)
    route = decode_route(payload, where=where)
    if route.product != policy.product:
        raise Refused(
            "product-mismatch",
            "the route is for another product",
            expected=policy.product,
            got=route.product,
            where=where,
        )
    for controller in route.controllers:
        held = policy.authority_of(controller.keyid)
        if held is not None:
            raise Refused(
                "authority-denied",
                "the route names a controller whose key holds another authority",
                expected="a key for orders only",
                got=f"key {controller.short} with the {held} authority",
                where=where,
            )
    return VerifiedRoute(route=route, digest=sha256_text(payload))


def verify_order(
    policy: Policy, route: VerifiedRoute, envelope: Envelope, *, where: str = "order"
) -> Order:
    """Accept an order signed by a controller that the route names.

    Whom the order is for, its fence, nonce and prior state are the host's to check.

    Raises:
        Refused: `authority-denied`, `key-unknown`, `key-revoked`, `signature-*`,
            `order-wrong-route`, whatever `decode_order` raises.
    """
    payload = _controller_payload(policy, route, envelope, ORDER_TYPE, where)
    return _of_route(decode_order(payload, where=where), route, where)


def verify_confirm(
    policy: Policy, route: VerifiedRoute, envelope: Envelope, *, where: str = "confirm"
) -> Confirm:
    """Accept a confirm signed by a controller that the route names.

    Raises:
        Refused: as `verify_order`.
    """
    payload = _controller_payload(policy, route, envelope, CONFIRM_TYPE, where)
    return _of_route(decode_confirm(payload, where=where), route, where)


def verify_question(
    policy: Policy, route: VerifiedRoute, envelope: Envelope, *, where: str = "question"
) -> Question:
    """Accept a question signed by a controller that the route names.

    Raises:
        Refused: as `verify_order`.
    """
    payload = _controller_payload(policy, route, envelope, QUESTION_TYPE, where)
    return _of_route(decode_question(payload, where=where), route, where)


def verify_repair(
    policy: Policy, route: VerifiedRoute, envelope: Envelope, *, where: str = "repair"
) -> Repair:
    """Accept a repair signed by a controller that the route names.

    Raises:
        Refused: as `verify_order`.
    """
    payload = _controller_payload(policy, route, envelope, REPAIR_TYPE, where)
    return _of_route(decode_repair(payload, where=where), route, where)


def _controller_payload(
    policy: Policy,
    route: VerifiedRoute,
    envelope: Envelope,
    payload_type: str,
    where: str,
) -> bytes:
    named = {key.keyid: key for key in route.route.controllers}
    key = named.get(envelope.keyid)
    if key is None:
        if envelope.keyid in policy.keys:
            raise Refused(
                "authority-denied",
                "a key signed what it may not sign",
                expected="a controller that the route names",
                got=f"key of {policy.keys[envelope.keyid].owner}",
                where=where,
            )
        raise Refused(
            "key-unknown",
            "an order is by a controller that the route doesn't name",
            expected=sorted(key.short for key in named.values()),
            got=envelope.keyid,
            where=where,
        )
    if key.keyid in policy.revoked_keys:
        raise Refused("key-revoked", "a controller's key is revoked", got=key.keyid, where=where)
    return envelope.verify(key, payload_type=payload_type, where=where)


def _of_route(asked: _Asked, route: VerifiedRoute, where: str) -> _Asked:
    """Return what a controller asks if it was made under `route`."""
    if asked.route != route.digest:
        raise Refused(
            "order-wrong-route",
            "it was made under another route",
            expected=route.digest,
            got=asked.route,
            where=where,
        )
    return asked
