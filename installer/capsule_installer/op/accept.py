"""Accept an order: check it, remember it, and start the supervisor that carries it out.

Repeating an order by its op id never does anything twice: it is answered from the op's folder. A
local order, for a rollback or by hand, goes the same way; the node's own key signs it.
"""

from collections.abc import Sequence
from typing import Final

from capsule_installer.op.effects import Effects
from capsule_installer.op.installed import require_coherent
from capsule_installer.op.op_folder import OpFile, OpFolder
from capsule_installer.op.order_check import LOCAL_EPOCH, HostFacts, check_order
from capsule_installer.op.settle import require_no_open_op
from capsule_installer.op.supervisor import await_lock, load_installation
from capsule_installer.op.transaction import limits_of
from capsule_installer.system.fsops import keep_name, make_dirs
from capsule_manifest.envelope import Envelope, encode_record, sign
from capsule_manifest.errors import Failed, Refused
from capsule_manifest.orders import ABSENT, ORDER_TYPE, Order, decode_order, encode_order
from capsule_manifest.records import Marker

__all__ = ["accept_order", "local_order", "start_supervisor"]

_LOCAL_VALID_MS: Final = 60_000


def accept_order(effects: Effects, envelope: Envelope) -> OpFolder:
    """Accept an order durably and return its folder; a repeated one is returned as it is.

    The caller then starts the supervisor unless the op has begun.

    Raises:
        Refused: `op-id-reused` for another order under a known op id; as `check_order`,
            `require_coherent`, `limits_of`.
        Failed: `host-busy`, `op-open`, `disk-*`.
    """
    claimed = decode_order(envelope.payload)
    op = OpFolder(disk=effects.disk, layout=effects.layout, op_id=claimed.op_id)
    if _is_known(op, envelope):
        _keep(effects, op)
        return op
    lock = await_lock(effects)
    try:
        require_no_open_op(effects)
        # The one before may have been this very op, accepted and never begun.
        if _is_known(op, envelope):
            _keep(effects, op)
            return op
        installed = require_coherent(effects)
        order = check_order(_facts(effects, claimed, installed), envelope)
        _check_limits(effects, order, installed)
        # Before anything is done for it: a controller with a lower fence is out from now on.
        effects.state.raise_fence(order.fence)
        if order.verb == "install":
            # A way back is kept free on a full disk by having spent this.
            effects.state.ensure_ballast()
        make_dirs(effects.disk, op.path, 0o700)
        op.accept(encode_record(envelope))
    finally:
        lock.release()
    return op


def local_order(
    effects: Effects, *, verb: str, generation: str, op_id: str, nonce: str
) -> Envelope:
    """Return an order by this host to itself, signed with the node key.

    `op_id` and `nonce` are random; the nonce is remembered here as if a hello had given it out.

    Raises:
        Refused: `generation-not-staged`, and whatever reading the host's state raises.
    """
    key = effects.signer.public
    marker = effects.state.staged_marker(generation, key)
    route = effects.state.route(effects.state.policy())
    if marker is None or route is None:
        raise Refused("generation-not-staged", "there is no such generation here", got=generation)
    boot_id, boot_ms = effects.clock.boot_id(), effects.clock.boot_ms()
    effects.state.remember_nonce(nonce, boot_id=boot_id, boot_ms=boot_ms)
    installation = load_installation(effects, marker)
    order = Order(
        op_id=op_id,
        verb=verb,
        node=effects.node,
        node_key=key.keyid,
        capsule=marker.capsule,
        release_counter=marker.release_counter,
        generation=generation,
        prior=effects.state.generation_of(effects.layout.current),
        route=route.digest,
        epoch=LOCAL_EPOCH,
        fence=effects.state.fence(),
        nonce=nonce,
        boot_id=boot_id,
        valid_ms=_LOCAL_VALID_MS,
        confirm="local",
        d1_ms=installation.budgets.d1_ms,
        d2_ms=installation.budgets.d2_ms,
        guard_level=effects.worker.levels()[-1],
        guard_policy="fail",
    )
    return sign(encode_order(order), payload_type=ORDER_TYPE, signer=effects.signer)


def start_supervisor(effects: Effects, op: OpFolder, program: Sequence[str]) -> None:
    """Start the supervisor of an op that was accepted and has not begun.

    `program` is the argv of this host program up to its verb.

    Raises:
        Failed: `process-not-started`.
    """
    if op.has(OpFile.INTENT) or op.result() is not None:
        return
    facts = effects.supervisors.start(op.op_id, [*program, "supervise", op.op_id])
    op.note(OpFile.SUPERVISOR, f"{facts.pid} {facts.started_ticks}\n".encode())


def _is_known(op: OpFolder, envelope: Envelope) -> bool:
    raw = op.read(OpFile.ORDER)
    if raw is None:
        return False
    # Payloads are compared: the same order signed again is the same order.
    if op.order().payload != envelope.payload:
        raise Refused("op-id-reused", "another order had this op id", got=op.op_id)
    return True


def _keep(effects: Effects, op: OpFolder) -> None:
    # The one who accepted it may have been stopped before he made it durable.
    op.keep(OpFile.ORDER)
    keep_name(effects.disk, op.path)


def _facts(effects: Effects, claimed: Order, installed: Marker | None) -> HostFacts:
    policy = effects.state.policy()
    route = effects.state.route(policy)
    if route is None:
        raise Refused("order-wrong-route", "the host has no route yet", expected=claimed.route)
    boot_id = effects.clock.boot_id()
    return HostFacts(
        node=effects.node,
        node_key=effects.signer.public,
        policy=policy,
        route=route,
        fence=effects.state.fence(),
        counter_floor=effects.state.counter_floor(),
        boot_id=boot_id,
        boot_ms=effects.clock.boot_ms(),
        issued_ms=effects.state.nonce_ms(claimed.nonce, boot_id=boot_id),
        current=installed.generation if installed else ABSENT,
        previous=effects.state.generation_of(effects.layout.previous),
        marker=effects.state.staged_marker(claimed.generation, effects.signer.public),
        guard_levels=effects.worker.levels(),
    )


def _check_limits(effects: Effects, order: Order, installed: Marker | None) -> None:
    staged = effects.state.staged_marker(order.generation, effects.signer.public)
    if staged is None:
        raise Failed(
            "generation-not-staged", "the ordered generation is gone", got=order.generation
        )
    old = load_installation(effects, installed) if installed else None
    limits_of(order, old, load_installation(effects, staged))
