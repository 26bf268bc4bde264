"""`capsule query`: record a controller's fence, and say what this host knows of one op.

A controller that takes an epoch over may conclude nothing about a node until its host has recorded
the new fence: an order of the controller before may still be on its way. The fence is recorded
under the host's lock, so that no order is being accepted meanwhile.

While an op runs its supervisor has the lock; then no order can be accepted, and a known op is
answered without recording the fence, which the next question does.

Source: design, section 11 ("unresolved nodes fenced on adopt").
"""

import sys

import click

from capsule_installer.host.host import Host
from capsule_installer.op.effects import Effects
from capsule_installer.op.op_folder import OpFile, OpFolder
from capsule_installer.op.real import real_effects
from capsule_installer.op.supervisor import await_lock
from capsule_manifest.canonical import JsonValue
from capsule_manifest.envelope import RECORD_LIMITS, Envelope, decode_record
from capsule_manifest.errors import Failed, Refused
from capsule_manifest.questions import Question
from capsule_manifest.trust_orders import verify_question

__all__ = ["answer_question", "command"]


@click.command(name="query", epilog="Example: capsule query < question.json")
@click.pass_obj
def command(host: Host) -> None:
    """Answer the signed question on standard input with one record."""
    host.prepare()
    effects = real_effects(host.disk, host.layout)
    raw = sys.stdin.buffer.read(RECORD_LIMITS.size_bytes_max + 1)
    host.reporter.record("op", answer_question(effects, decode_record(raw, where="question")))


def answer_question(effects: Effects, envelope: Envelope) -> dict[str, JsonValue]:
    """Return what is known of the op; `closed` says that no order for it can be accepted now.

    Raises:
        Refused: `order-wrong-node`, `order-wrong-route`, `order-fenced`, and whatever
            `verify_question` raises.
        Failed: `host-busy` when something else runs and the op is not known, `disk-*`.
    """
    policy = effects.state.policy()
    route = effects.state.route(policy)
    if route is None:
        raise Refused("order-wrong-route", "the host has no route yet")
    question = verify_question(policy, route, envelope)
    if question.node != effects.node:
        raise Refused(
            "order-wrong-node", "a question is for another node", expected=effects.node,
            got=question.node,
        )  # fmt: skip
    op = OpFolder(disk=effects.disk, layout=effects.layout, op_id=question.op_id)
    try:
        lock = await_lock(effects)
    except Failed as failure:
        if failure.error_id != "host-busy" or not op.has(OpFile.ORDER):
            raise
        _check_fence(effects, question)
        return _answer(effects, question, known=True)
    try:
        # Durable before the answer: what was sent under a lower fence can't be accepted any more.
        effects.state.raise_fence(question.fence)
        return _answer(effects, question, known=op.has(OpFile.ORDER))
    finally:
        lock.release()


def _check_fence(effects: Effects, question: Question) -> None:
    if question.fence < effects.state.fence():
        raise Refused(
            "order-fenced", "a question's fence is too low", expected=effects.state.fence(),
            got=question.fence,
        )  # fmt: skip


def _answer(effects: Effects, question: Question, *, known: bool) -> dict[str, JsonValue]:
    return {
        "op_id": question.op_id,
        "fence": effects.state.fence(),
        "known": known,
        "closed": known or _is_closed(effects, question),
    }


def _is_closed(effects: Effects, question: Question) -> bool:
    boot_id = effects.clock.boot_id()
    if not question.nonce or question.boot_id != boot_id:
        return True
    issued_ms = effects.state.nonce_ms(question.nonce, boot_id=boot_id)
    return issued_ms is None or effects.clock.boot_ms() - issued_ms > question.valid_ms
