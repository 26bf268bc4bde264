"""Orders and confirms: what a controller may ask of a host, signed and bound to one moment.

An order names the node and its key, the capsule, what must be installed before it, the route, the
fence, and the host's own nonce and boot: it can't be replayed on another host, after a reboot, or
after a newer controller took over. Repeating it by op id returns the stored receipt.

Source: design, sections 9 and 10; `docs/reference/orders.md`.
"""

import re
from dataclasses import dataclass
from typing import Final

from capsule_manifest.canonical import Limits, decode, encode
from capsule_manifest.digest import CapsuleId
from capsule_manifest.fields import root_object
from capsule_manifest.route import GUARD_LEVELS

__all__ = [
    "ABSENT",
    "CONFIRM_TYPE",
    "ORDER_TYPE",
    "Confirm",
    "Order",
    "decode_confirm",
    "decode_order",
    "encode_confirm",
    "encode_order",
]

ORDER_SCHEMA: Final = "capsule-order/1"
CONFIRM_SCHEMA: Final = "capsule-confirm/1"
ORDER_TYPE: Final = "application/vnd.capsule.order.v1+json"
CONFIRM_TYPE: Final = "application/vnd.capsule.confirm.v1+json"
ABSENT: Final = "absent"
"""The prior or restored generation of a host on which nothing is installed."""

_LIMITS = Limits(size_bytes_max=64 * 1024, depth_max=4, values_max=256)
_OP_ID = re.compile(r"[0-9a-f]{32}")
_GENERATION = re.compile(r"absent|[0-9]+-[0-9a-f]{8}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A request to change what a host runs.

    `verb` is `install` or `rollback`. `prior` is the generation that must be current, or `absent`.
    `valid_ms` counts on the host's boot clock from the hello that gave `nonce`. `confirm` is
    `controller` (wait for a signed confirm until D2) or `local` (proof alone commits).
    """

    op_id: str
    verb: str
    node: str
    node_key: str
    capsule: CapsuleId
    release_counter: int
    generation: str
    prior: str
    route: str
    epoch: str
    fence: int
    nonce: str
    boot_id: str
    valid_ms: int
    confirm: str
    d1_ms: int
    d2_ms: int
    guard_level: str
    guard_policy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirm:
    """The controller's acceptance of one proof of one order."""

    op_id: str
    node: str
    proof: str
    route: str
    fence: int


def encode_order(order: Order) -> bytes:
    """Return the canonical bytes that a controller signs as `ORDER_TYPE`."""
    return encode(
        {
            "schema": ORDER_SCHEMA,
            "op_id": order.op_id,
            "verb": order.verb,
            "node": order.node,
            "node_key": order.node_key,
            "capsule": order.capsule,
            "release_counter": order.release_counter,
            "generation": order.generation,
            "prior": order.prior,
            "route": order.route,
            "epoch": order.epoch,
            "fence": order.fence,
            "nonce": order.nonce,
            "boot_id": order.boot_id,
            "valid_ms": order.valid_ms,
            "confirm": order.confirm,
            "d1_ms": order.d1_ms,
            "d2_ms": order.d2_ms,
            "guard_level": order.guard_level,
            "guard_policy": order.guard_policy,
        }
    )


def decode_order(raw: bytes, *, where: str = "order") -> Order:
    """Read an order strictly.

    Raises:
        Refused: `json-*`, `document-invalid`, `document-version`.
    """
    document = root_object(
        decode(raw, limits=_LIMITS, where=where), schema=ORDER_SCHEMA, name=where
    )
    order = Order(
        op_id=document.matching("op_id", _OP_ID),
        verb=document.text("verb", one_of=("install", "rollback")),
        node=document.text("node"),
        node_key=document.text("node_key"),
        capsule=CapsuleId(document.sha256("capsule")),
        release_counter=document.integer("release_counter", least=1),
        generation=document.matching("generation", _GENERATION),
        prior=document.matching("prior", _GENERATION),
        route=document.sha256("route"),
        epoch=document.text("epoch"),
        fence=document.integer("fence"),
        nonce=document.text("nonce"),
        boot_id=document.text("boot_id"),
        valid_ms=document.integer("valid_ms", least=1, most=86_400_000),
        confirm=document.text("confirm", one_of=("controller", "local")),
        d1_ms=document.integer("d1_ms", least=1, most=3_600_000),
        d2_ms=document.integer("d2_ms", least=1, most=86_400_000),
        guard_level=document.text("guard_level", one_of=GUARD_LEVELS),
        guard_policy=document.text("guard_policy", one_of=("fail", "report")),
    )
    document.end()
    return order


def encode_confirm(confirm: Confirm) -> bytes:
    """Return the canonical bytes that a controller signs as `CONFIRM_TYPE`."""
    return encode(
        {
            "schema": CONFIRM_SCHEMA,
            "op_id": confirm.op_id,
            "node": confirm.node,
            "proof": confirm.proof,
            "route": confirm.route,
            "fence": confirm.fence,
        }
    )


def decode_confirm(raw: bytes, *, where: str = "confirm") -> Confirm:
    """Read a confirm strictly.

    Raises:
        Refused: `json-*`, `document-invalid`, `document-version`.
    """
    document = root_object(
        decode(raw, limits=_LIMITS, where=where), schema=CONFIRM_SCHEMA, name=where
    )
    confirm = Confirm(
        op_id=document.matching("op_id", _OP_ID),
        node=document.text("node"),
        proof=document.sha256("proof"),
        route=document.sha256("route"),
        fence=document.integer("fence"),
    )
    document.end()
    return confirm
