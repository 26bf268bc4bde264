"""Freezing: from the inventory to the one signed route that everything afterwards names.

The route's bytes follow from its inputs alone, so freezing again without a change gives the same
digest, whatever signature is made over it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from capsule.names import LookUp, freeze_endpoints
from capsule_manifest.digest import sha256_text
from capsule_manifest.envelope import encode_record, sign
from capsule_manifest.errors import Refused
from capsule_manifest.keys import PublicKey, Signer
from capsule_manifest.policy import Policy, encode_policy
from capsule_manifest.route import ROUTE_TYPE, Route, RouteNode, encode_route
from capsule_manifest.trust_orders import VerifiedRoute, verify_route

if TYPE_CHECKING:
    # Most commands go by the route and never read an inventory, which takes a third of their start.
    from capsule.inventory import Fleet

__all__ = ["FrozenRoute", "freeze", "freeze_and_sign"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenRoute:
    """A route, verified under the policy it was frozen for, and its signed record."""

    verified: VerifiedRoute
    record: bytes

    @property
    def route(self) -> Route:
        """Return the route."""
        return self.verified.route

    @property
    def digest(self) -> str:
        """Return `sha256:<hex>` of the route's bytes."""
        return self.verified.digest


def freeze(
    fleet: "Fleet",
    *,
    policy: Policy,
    controllers: tuple[PublicKey, ...],
    node_keys: Mapping[str, str],
    look_up: LookUp,
) -> Route:
    """Return the route of `fleet`; `node_keys` has the key ids of nodes that were met before.

    Raises:
        Refused: `product-mismatch` when the inventory is for another product than the policy;
            `endpoint-shared`.
        Failed: `name-unknown`, and whatever `look_up` raises.
    """
    if fleet.product != policy.product:
        raise Refused(
            "product-mismatch",
            "the inventory is for another product than the trust policy",
            expected=policy.product,
            got=fleet.product,
        )
    endpoints = freeze_endpoints(
        {name: node.endpoint for name, node in fleet.nodes.items()}, look_up
    )
    return Route(
        product=fleet.product,
        nodes={
            name: RouteNode(
                role=node.role,
                platform=node.platform,
                domain=node.domain,
                lane=node.lane,
                endpoint=endpoints[name],
                node_key=node_keys.get(name),
                vars=node.vars,
            )
            for name, node in fleet.nodes.items()
        },
        max_unavailable=fleet.max_unavailable,
        floor=fleet.floor,
        guard_min=fleet.guard_min,
        hub=fleet.hub,
        policy=sha256_text(encode_policy(policy)),
        controllers=controllers,
        waivers=fleet.waivers,
    )


def freeze_and_sign(route: Route, *, policy: Policy, signer: Signer) -> FrozenRoute:
    """Sign `route` and check at once that hosts under `policy` will take it.

    Raises:
        Refused: `key-unknown`, `authority-denied`, `key-revoked` for a key that may not sign
            routes; `authority-denied` for a controller's key that holds another authority.
    """
    envelope = sign(encode_route(route), payload_type=ROUTE_TYPE, signer=signer)
    verified = verify_route(policy, envelope, where="the route being frozen")
    return FrozenRoute(verified=verified, record=encode_record(envelope))
