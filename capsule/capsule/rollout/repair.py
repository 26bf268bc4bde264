"""Have one host write the marker that it lacks: only for the class `repairable`.

The controller judges first, so that a node which contradicts itself is refused here with both
values; the host then compares everything once more under its lock, and alone decides.
"""

from collections.abc import Callable

from capsule.freeze import FrozenRoute
from capsule.home import ProductHome
from capsule.receipts_store import CheckedReceipt, check_receipt
from capsule.rollout.coherence import Coherence, judge
from capsule.session import HostSession
from capsule.stage import keep_receipts
from capsule.transport.base import Transport
from capsule_manifest.digest import CapsuleId
from capsule_manifest.envelope import encode_record, sign
from capsule_manifest.errors import Refused
from capsule_manifest.fields import Object
from capsule_manifest.keys import Signer, b64decode, b64encode
from capsule_manifest.repairs import REPAIR_TYPE, Repair, encode_repair
from capsule_manifest.route import Endpoint

__all__ = ["repair_node"]


def repair_node(
    node: str,
    *,
    home: ProductHome,
    route: FrozenRoute,
    controller: Signer,
    connect: Callable[[Endpoint, str], Transport],
    new_op_id: Callable[[], str],
) -> CheckedReceipt:
    """Repair one node and return its receipt, of which a copy is kept.

    Raises:
        CapsuleError: `node-unknown`; `repair-refused` by the controller's judgement or the host's;
            what the host refuses.
    """
    entry, key = route.route.nodes.get(node), home.node_key(node)
    if entry is None or key is None:
        raise Refused(
            "node-unknown",
            "the frozen route has no such node, or it was never met",
            expected=", ".join(sorted(route.route.nodes)),
            got=node,
        )
    session = HostSession(connect(entry.endpoint, node), node=node)
    survey = session.survey()
    judged = judge(node, b64encode(key.spki), survey)
    if judged.coherence is not Coherence.REPAIRABLE:
        raise Refused(
            "repair-refused",
            "only a missing marker is repaired, and only where all else agrees",
            expected=str(Coherence.REPAIRABLE),
            got="; ".join([str(judged.coherence), *(d.text for d in judged.disagreements)]),
            where=node,
        )
    generation, receipt_now = survey.generation, survey.receipt
    assert generation is not None, "a repairable node has a generation"
    assert generation.manifest is not None, "a repairable node has a manifest"
    assert receipt_now is not None, "a repairable node has a receipt"
    repair = Repair(
        op_id=new_op_id(),
        node=node,
        node_key=key.keyid,
        route=route.digest,
        fence=home.fence(),
        generation=judged.current,
        capsule=CapsuleId(generation.manifest),
        installed_by=receipt_now.op_id,
    )
    signed = sign(encode_repair(repair), payload_type=REPAIR_TYPE, signer=controller)
    answer = session.ask("repair", answer="repaired", stdin=encode_record(signed))
    said = Object(answer, f"answer of {node}")
    receipt = check_receipt(b64decode(said.text("receipt"), said.where), node=node, key=key)
    if (receipt.receipt.kind, receipt.receipt.op_id) != ("repair", repair.op_id):
        raise Refused(
            "receipt-refused", "a receipt speaks of something else than a repair",
            expected=repair.op_id, got=receipt.receipt.op_id, where=node,
        )  # fmt: skip
    keep_receipts(session, home, receipt, key, controller)
    return receipt
