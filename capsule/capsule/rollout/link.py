"""One node's host, spoken to in blocking calls: what one worker thread of `links` does.

Until the host has acknowledged an order, the same signed order may be sent again; afterwards only
questions by op id are. A refusal that says "too late" is no refusal of the op: the host never
accepted it, and the driver decides whether to try anew.

Source: design, section 11, "Retries".
"""

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Final, Protocol

from capsule.home import ProductHome
from capsule.host_records import Hello, HostRecord, read_hello
from capsule.lane.ports import HostReport, HostStep, Unreachable
from capsule.receipts_store import CheckedReceipt
from capsule.rollout.evidence import (
    Ordered,
    check_proof,
    check_result,
    host_report,
    step_report,
)
from capsule.session import Dialogue, HostSession
from capsule.stage import keep_receipts
from capsule.transport.base import QUICK, Limits
from capsule_manifest.digest import CapsuleId
from capsule_manifest.envelope import encode_record, sign
from capsule_manifest.errors import CapsuleError, Failed, Refused
from capsule_manifest.fields import Object
from capsule_manifest.keys import Signer
from capsule_manifest.orders import (
    CONFIRM_TYPE,
    ORDER_TYPE,
    Confirm,
    Order,
    encode_confirm,
    encode_order,
)
from capsule_manifest.questions import QUESTION_TYPE, Question, encode_question
from capsule_manifest.route import GUARD_LEVELS

__all__ = ["NodeJob", "NodeLink", "NodeWatch"]

_VALID_MS: Final = 60_000
_FOLLOW_S: Final = 14
_FOLLOW: Final = Limits(total_s=QUICK.total_s, idle_s=_FOLLOW_S + QUICK.idle_s)
"""Within those of a quick verb, so that it shares the kept connection."""
_RESTORE_S: Final = 60.0
_BACK_OFF_S: Final = 1.0
_LATE: Final = frozenset({"order-expired"})
_UNSAID: Final = frozenset({"order-fenced", "host-busy", "op-open", "route-superseded"})
"""Refusals that say nothing about the op: somebody else is at work on the host."""
_UNHEARD: Final = frozenset(
    {
        "connection-lost",
        "host-unreachable",
        "ssh-banner-invalid",
        "ssh-connect-deadline",
        "ssh-jump-refused",
        "ssh-sessions-exhausted",
        "ssh-start-deadline",
        "ssh-start-failed",
        "ssh-throttled",
        "transport-deadline",
    }
)
"""Failures of the way. Not worth another try at once, but nothing that a host said."""
_AT_THE_DOOR: Final = frozenset(
    {"host-key-changed", "host-program-missing", "ssh-auth-refused", "sudo-refused"}
)
"""What keeps an order from being sent; of one that may have arrived before it says nothing."""


class NodeWatch(Protocol):
    """Be told what happens on hosts; called from several threads."""

    def step(self, node: str, *, name: str, state: str, took_ms: int | None) -> None:
        """Hear of one step on the host."""
        ...

    def receipt(self, node: str, receipt: CheckedReceipt) -> None:
        """Hear of the signed end of an op."""
        ...

    def trouble(self, node: str, error: CapsuleError) -> None:
        """Hear of something that does not change what the op came to."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJob:
    """What this epoch wants of one node, the same for every attempt."""

    ordered: Callable[[str], Ordered]
    release_counter: int
    epoch: str
    guard_floor: str
    guard_policy: str
    d1_ms: int
    d2_ms: int


class NodeLink:
    """Speak to one host. `order`, `confirm` and `query` come from one thread, `follow` from one."""

    def __init__(
        self,
        session: HostSession,
        job: NodeJob,
        *,
        controller: Signer,
        home: ProductHome,
        watch: NodeWatch,
    ) -> None:
        self._session = session
        self._job = job
        self._controller = controller
        self._home = home
        self._watch = watch
        self._sent: dict[str, Order] = {}
        self._written: set[str] = set()
        self._ended: set[str] = set()
        # What the host tells of an op after its order, until somebody follows the op.
        self._streams: dict[str, tuple[Dialogue, ExitStack]] = {}

    def order(self, op_id: str, *, fence: int) -> HostReport:
        """Send the order, the very same one each time; return what the host said.

        Only what the host said is a refusal: an order whose answer was lost may be under way.

        Raises:
            CapsuleError: when the host could not be asked, or somebody else is at work on it.
        """
        ordered = self._job.ordered(op_id)
        try:
            if op_id in self._sent or not self._greet_and_order(ordered, fence):
                self._order_alone(ordered, fence)
        except CapsuleError as error:
            if error.error_id in _LATE:
                return host_report(ordered, HostStep.NO_RECORD, closed=True)
            if error.retryable or error.error_id in _UNSAID | _UNHEARD:
                raise
            if op_id in self._written and error.error_id in _AT_THE_DOOR:
                raise
            return host_report(ordered, HostStep.REFUSED, reason=str(error))
        return host_report(ordered, HostStep.ACCEPTED)

    def _greet_and_order(self, ordered: Ordered, fence: int) -> bool:
        """Ask who the host is, order, and keep the stream to follow the op on it: one start there.

        False when the host's program is too old for it; nothing was ordered then.
        """
        words = ("--hello", "--follow", str(_FOLLOW_S))
        with ExitStack() as stack:
            opened = self._session.dialogue("install", *words, limits=_FOLLOW)
            dialogue = stack.enter_context(opened)
            dialogue.channel.limit(QUICK)
            try:
                hello = read_hello(dialogue.expect("hello"), ordered.node)
            except Failed as failure:
                if failure.error_id != "host-verb-unknown":
                    raise
                return False
            self._sent[ordered.op_id] = self._make_order(ordered, hello, fence)
            if self._write_order(ordered, dialogue).get("record") == "accepted":
                dialogue.channel.limit(_FOLLOW)
                self._streams[ordered.op_id] = (dialogue, stack.pop_all())
        return True

    def _order_alone(self, ordered: Ordered, fence: int) -> None:
        if ordered.op_id not in self._sent:
            self._sent[ordered.op_id] = self._make_order(ordered, self._session.hello(), fence)
        with self._session.dialogue("install") as dialogue:
            self._write_order(ordered, dialogue)

    def _write_order(self, ordered: Ordered, dialogue: Dialogue) -> HostRecord:
        """Write the order and return the host's answer to it."""
        order = encode_order(self._sent[ordered.op_id])
        envelope = sign(order, payload_type=ORDER_TYPE, signer=self._controller)
        self._written.add(ordered.op_id)
        dialogue.channel.write(encode_record(envelope))
        dialogue.channel.end_input()
        answer = dialogue.next()
        if answer is None:
            raise Failed(
                "host-program-failed", "a host said nothing to an order",
                where=ordered.node, retryable=True,
            )  # fmt: skip
        return answer

    def confirm(self, op_id: str, *, proof: str, fence: int) -> None:
        """Accept a proof; that the host decided otherwise is for its receipt to say.

        Raises:
            CapsuleError: when the host could not be asked.
        """
        ordered = self._job.ordered(op_id)
        confirm = Confirm(
            op_id=op_id, node=ordered.node, proof=proof, route=ordered.route, fence=fence
        )
        signed = sign(encode_confirm(confirm), payload_type=CONFIRM_TYPE, signer=self._controller)
        try:
            self._session.ask("confirm", answer="confirmed", stdin=encode_record(signed))
        except CapsuleError as error:
            if error.error_id != "confirm-refused":
                raise

    def query(self, op_id: str, *, fence: int) -> HostReport | None:
        """Have the host record `fence`; None when it knows the op, which is then to be followed.

        Raises:
            CapsuleError: when the host could not be asked, or is fenced against us.
        """
        ordered = self._job.ordered(op_id)
        sent = self._sent.get(op_id)
        question = Question(
            op_id=op_id,
            node=ordered.node,
            route=ordered.route,
            fence=fence,
            nonce=sent.nonce if sent else "",
            boot_id=sent.boot_id if sent else "",
            valid_ms=sent.valid_ms if sent else 0,
        )
        signed = sign(
            encode_question(question), payload_type=QUESTION_TYPE, signer=self._controller
        )
        record = self._session.ask("query", answer="op", stdin=encode_record(signed))
        item = Object(record, f"answer of {ordered.node}")
        if item.boolean("known"):
            return None
        return host_report(ordered, HostStep.NO_RECORD, closed=item.boolean("closed"))

    def follow(self, op_id: str, hear: Callable[[HostReport | Unreachable], None]) -> None:
        """Report what the op does until its receipt, or until it had to have ended.

        Raises:
            CapsuleError: `proof-refused`, `receipt-refused`, and when the host can't be asked.
        """
        # Asked for after its end, because an answer was lost: it is told once more.
        self._ended.discard(op_id)
        ordered = self._job.ordered(op_id)
        end = time.monotonic() + (self._job.d1_ms + self._job.d2_ms) / 1000 + _RESTORE_S
        while time.monotonic() < end and op_id not in self._ended:
            try:
                self._follow_once(ordered, hear)
            except Failed as failure:
                if failure.error_id == "op-not-finished":
                    # The host is heard, and busy with what it was ordered.
                    hear(host_report(ordered, HostStep.ACCEPTED))
                    continue
                if not failure.retryable:
                    raise
                hear(Unreachable(node=ordered.node, reason=str(failure)))
                time.sleep(_BACK_OFF_S)

    def close(self) -> None:
        """Close what was kept to follow an op that nobody will follow; its host goes on with it.

        From any thread: whoever takes a stream out of those kept is the one to close it.
        """
        with suppress(KeyError):
            while True:
                _, (_, stream) = self._streams.popitem()
                with suppress(CapsuleError, OSError):
                    stream.close()

    def _follow_once(
        self, ordered: Ordered, hear: Callable[[HostReport | Unreachable], None]
    ) -> None:
        op_id = ordered.op_id
        kept = self._streams.pop(op_id, None)
        dialogue, stream = kept or self._ask_to_follow(ordered)
        with stream:
            while (record := dialogue.next()) is not None:
                match record.get("record"):
                    case "step" | "outcome":
                        self._tell(ordered, record)
                        report = step_report(ordered, record)
                        if report is not None:
                            hear(report)
                    case "proof":
                        hear(check_proof(ordered, record)[0])
                    case "receipt":
                        report, receipt = check_result(ordered, record)
                        self._ended.add(ordered.op_id)
                        self._watch.receipt(ordered.node, receipt)
                        hear(report)
                        self._keep(ordered, receipt)
                        return

    def _ask_to_follow(self, ordered: Ordered) -> tuple[Dialogue, ExitStack]:
        arguments = (ordered.op_id, "--timeout", str(_FOLLOW_S))
        with ExitStack() as stack:
            opened = self._session.dialogue("follow", *arguments, limits=_FOLLOW)
            dialogue = stack.enter_context(opened)
            dialogue.channel.end_input()
            return dialogue, stack.pop_all()

    def _tell(self, ordered: Ordered, record: object) -> None:
        assert isinstance(record, dict)
        if record.get("record") != "step":
            return
        item = Object(record, f"step of {ordered.node}")
        self._watch.step(
            ordered.node,
            name=item.text("name"),
            state=item.text("state"),
            took_ms=item.optional_integer("took_ms") if item.has("took_ms") else None,
        )

    def _keep(self, ordered: Ordered, receipt: CheckedReceipt) -> None:
        try:
            keep_receipts(self._session, self._home, receipt, ordered.key, self._controller)
        except CapsuleError as error:
            # The op has ended all the same; a host that tells its past differently is an operator's
            # business at once, and that of the exit code.
            self._watch.trouble(ordered.node, error)

    def _make_order(self, ordered: Ordered, hello: Hello, fence: int) -> Order:
        job = self._job
        if hello.node != ordered.node or hello.node_key != ordered.key:
            raise Refused(
                "enrolment-differs",
                "the host does not know itself by this name and key",
                expected=f"{ordered.node}, key {ordered.key.short}",
                got=f"{hello.node}, key {hello.node_key.short if hello.node_key else 'none'}",
                where=ordered.node,
            )
        if hello.route != ordered.route:
            raise Refused(
                "route-not-staged",
                "the host was staged under another route",
                expected=ordered.route,
                got=hello.route or "none",
                where=ordered.node,
            )
        offered = [
            level
            for level in GUARD_LEVELS
            if level in hello.guard_levels and level >= job.guard_floor
        ]
        if not offered:
            raise Refused(
                "guard-level-denied",
                "the host can't guard the network as the route demands",
                expected=f"{job.guard_floor} or higher",
                got=", ".join(hello.guard_levels),
                where=ordered.node,
            )
        return Order(
            op_id=ordered.op_id,
            verb="install",
            node=ordered.node,
            node_key=ordered.key.keyid,
            capsule=CapsuleId(ordered.capsule),
            release_counter=job.release_counter,
            generation=ordered.generation,
            prior=hello.current,
            route=ordered.route,
            epoch=job.epoch,
            fence=fence,
            nonce=hello.nonce,
            boot_id=hello.boot_id,
            valid_ms=_VALID_MS,
            confirm="controller",
            d1_ms=job.d1_ms,
            d2_ms=job.d2_ms,
            guard_level=max(offered),
            guard_policy=job.guard_policy,
        )
