"""Stage a capsule on hosts: meet them, freeze the route, send each exactly what it lacks.

Per host the number of round trips is fixed. A host that was met before is asked everything over one
`receive`: it says who it is, the metadata goes out, it answers what it wants, and those frames go
out. A host that must be set up first costs a hello, the runtime and the enrolment more. Services
keep running: nothing here stops or starts anything.

Hosts that were never met are met before the route is frozen, because the route names their keys.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from capsule.builder.keyfile import load_public_key
from capsule.first_contact import RuntimeSource, send_runtime
from capsule.fleet_work import for_each_node
from capsule.freeze import FrozenRoute
from capsule.home import ProductHome, freeze_fleet
from capsule.host_records import Hello, Staged, Want, read_hello, read_staged, read_want
from capsule.payload import Payload
from capsule.receipts_store import CheckedReceipt, check_receipt
from capsule.session import Dialogue, HostSession
from capsule.transport.base import QUICK, RECEIVE, Transport
from capsule_manifest.canonical import JsonValue, encode
from capsule_manifest.digest import ObjectId, blake3_text, sha256_text
from capsule_manifest.errors import CapsuleError, Refused
from capsule_manifest.keys import PublicKey, Signer
from capsule_manifest.policy import Policy, encode_policy
from capsule_manifest.release import Component
from capsule_manifest.route import Endpoint
from capsule_manifest.wire import MessageType, encode_message

if TYPE_CHECKING:
    from capsule.inventory import Fleet, FleetNode

__all__ = [
    "NO_EPOCH",
    "NodeStaged",
    "StageCost",
    "StageWatch",
    "Stager",
    "keep_receipts",
    "named_controllers",
]

_BYTES_PER_S: Final = 50_000_000
"""What one stream carries, hashed and written on the other side; only for the estimate."""
_FRAME_HEAD: Final = 36

_NO_PROGRAM: Final = frozenset({"host-program-missing", "host-program-failed", "wire-malformed"})
_NO_GREETING: Final = _NO_PROGRAM | {"host-verb-unknown"}
"""Also what a program answers that does not know that a delivery may begin with a hello."""

NO_EPOCH: Final = "none"
"""The epoch of work that belongs to no rollout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """What staging one node takes: bytes to send, bytes on its disk, seconds by rule of thumb."""

    send_bytes: int
    disk_bytes: int
    estimate_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStaged:
    """A node on which the capsule is staged. `sent_bytes` is 0 when it held everything."""

    node: str
    generation: str
    sent_bytes: int
    took_s: float
    receipt: CheckedReceipt


class StageWatch(Protocol):
    """Be told how staging goes; called from several threads."""

    def met(self, node: str, *, what: str) -> None:
        """Hear that a host was set up: what was done."""
        ...

    def planned(self, node: str, cost: StageCost) -> None:
        """Hear what a node will cost, before its first byte."""
        ...

    def moved(self, node: str, *, sent_bytes: int, of_bytes: int) -> None:
        """Hear how far a node's stream is."""
        ...

    def ended(self, node: str, result: NodeStaged | CapsuleError) -> None:
        """Hear how it ended for a node."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Stager:
    """Stage one capsule under one policy from one controller folder."""

    home: ProductHome
    fleet: "Fleet"
    payload: Payload
    policy: Policy
    route_signer: Signer
    controller: Signer
    connect: Callable[[Endpoint, str], Transport]
    watch: StageWatch
    runtimes: RuntimeSource
    policy_update: bytes | None = None

    def cost(self, node: str, held: frozenset[str] = frozenset()) -> StageCost:
        """Return what a node that holds these trees takes at most.

        Raises:
            Refused: `document-invalid` for a role or platform that the capsule doesn't know.
        """
        components = [
            component
            for component in self._components(self.fleet.nodes[node])
            if blake3_text(component.tree) not in held
        ]
        send_bytes = sum(self.payload.stored_bytes(component) for component in components)
        return StageCost(
            send_bytes=send_bytes,
            disk_bytes=sum(component.content_bytes for component in components),
            estimate_s=send_bytes / _BYTES_PER_S,
        )

    def run(
        self, nodes: tuple[str, ...]
    ) -> tuple[FrozenRoute, Mapping[str, NodeStaged | CapsuleError]]:
        """Stage on all `nodes`; return the route and each one's result.

        Raises:
            CapsuleError: what concerns all nodes: the route, the policy, the controller's folder.
        """
        fence = self.home.fence()
        strangers = [node for node in nodes if self.home.node_key(node) is None]
        met = for_each_node(strangers, lambda node: self._meet(node, fence))
        route = freeze_fleet(
            self.home,
            self.fleet,
            policy=self.policy,
            controllers=named_controllers(self.fleet, self.controller.public),
            signer=self.route_signer,
        )

        def work(node: str) -> NodeStaged:
            # Whom we could not meet we can't stage; asking again would double the wait.
            failure = met.get(node)
            if isinstance(failure, CapsuleError):
                raise failure
            return self._stage(node, fence, route)

        results = for_each_node(nodes, lambda node: self._told(node, work))
        return route, results

    def _told(self, node: str, work: Callable[[str], NodeStaged]) -> NodeStaged:
        try:
            result = work(node)
        except CapsuleError as error:
            self.watch.ended(node, error)
            raise
        self.watch.ended(node, result)
        return result

    def _components(self, node: "FleetNode") -> tuple[Component, ...]:
        return self.payload.release.selected(node.role, node.platform)

    def _meet(self, node: str, fence: int) -> tuple[HostSession, Hello, PublicKey]:
        """Make sure that the capsule's own runtime answers, enrolled under our name and policy."""
        entry = self.fleet.nodes[node]
        session = HostSession(self.connect(entry.endpoint, node), node=node)
        wanted = self.runtimes.wanted(entry.platform)
        try:
            hello = session.hello()
        except CapsuleError as failure:
            # What lies there and can't answer is replaced, or no release could ever fix it.
            if failure.error_id not in _NO_PROGRAM:
                raise
            hello = None
        if hello is None or hello.runtime != wanted:
            send_runtime(session.transport, self.runtimes.get(entry.platform), node=node)
            self.watch.met(node, what=f"runtime {wanted} unpacked")
            hello = session.hello()
        _check_fence(hello, fence, node)
        policy = encode_policy(self.policy)
        if hello.node == node and hello.policy not in {None, sha256_text(policy)}:
            hello = self._update_policy(session, hello, sha256_text(policy))
        if (hello.node, hello.policy) != (node, sha256_text(policy)):
            key, record = session.enrol(policy=policy, product=self.policy.product)
            self.home.pin_node(node, key)
            check_receipt(record, node=node, key=key)
            self.watch.met(node, what=f"enrolled with node key {key.short}")
            hello = session.hello()
        return session, hello, self._pinned(hello, node)

    def _update_policy(self, session: HostSession, hello: Hello, wanted: str) -> Hello:
        """Offer the signed policies that lead to ours to a host that has another one."""
        if self.policy_update is not None and hello.node_key is not None:
            record, version = session.update_policy(self.policy_update)
            check_receipt(record, node=session.node, key=hello.node_key)
            self.watch.met(session.node, what=f"took trust policy version {version}")
            hello = session.hello()
        if hello.policy != wanted:
            raise Refused(
                "policy-differs",
                "a host has another trust policy than this controller",
                expected=wanted,
                got=hello.policy,
                where=session.node,
            )
        return hello

    def _stage(self, node: str, fence: int, route: FrozenRoute) -> NodeStaged:
        started = time.monotonic()
        session = HostSession(self.connect(self.fleet.nodes[node].endpoint, node), node=node)
        with self._receiving(session, fence) as (dialogue, hello, key):
            self.watch.planned(node, self.cost(node, hello.trees))
            self._send_metadata(dialogue, node, fence, route, hello)
            want = read_want(dialogue.expect("want"), node)
            self._send_frames(dialogue, want, node)
            staged = _end(dialogue, node)
        self._check_staged(staged, node)
        receipt = check_receipt(staged.receipt, node=node, key=key)
        self._check_receipt(receipt, node, route, fence)
        keep_receipts(session, self.home, receipt, key, self.controller)
        return NodeStaged(
            node=node,
            generation=staged.generation,
            sent_bytes=want.stored_bytes,
            took_s=time.monotonic() - started,
            receipt=receipt,
        )

    @contextmanager
    def _receiving(
        self, session: HostSession, fence: int
    ) -> Iterator[tuple[Dialogue, Hello, PublicKey]]:
        """Open the stream of a host that is as it must be, which is made so if it is not."""
        with self._greeted(session) as (dialogue, hello):
            if hello is not None and self._is_ready(hello, session.node):
                _check_fence(hello, fence, session.node)
                key = self._pinned(hello, session.node)
                yield dialogue, hello, key
                return
        session, hello, key = self._meet(session.node, fence)
        with session.dialogue("receive", limits=RECEIVE) as dialogue:
            yield dialogue, hello, key

    @contextmanager
    def _greeted(self, session: HostSession) -> Iterator[tuple[Dialogue, Hello | None]]:
        """Open a stream that begins with a hello; without one if the program can't say it."""
        with session.dialogue("receive", "--hello", limits=RECEIVE) as dialogue:
            dialogue.channel.limit(QUICK)
            try:
                hello = read_hello(dialogue.expect("hello"), session.node)
            except CapsuleError as failure:
                if failure.error_id not in _NO_GREETING:
                    raise
                hello = None
            dialogue.channel.limit(RECEIVE)
            yield dialogue, hello

    def _is_ready(self, hello: Hello, node: str) -> bool:
        """Say whether nothing has to be done before a capsule can be sent."""
        wanted = self.runtimes.wanted(self.fleet.nodes[node].platform)
        policy = sha256_text(encode_policy(self.policy))
        return (hello.runtime, hello.node, hello.policy) == (wanted, node, policy)

    def _pinned(self, hello: Hello, node: str) -> PublicKey:
        if hello.node_key is None:
            raise Refused("enrolment-differs", "a host has no node key", where=node)
        self.home.pin_node(node, hello.node_key)
        return hello.node_key

    def _send_metadata(
        self, dialogue: Dialogue, node: str, fence: int, route: FrozenRoute, hello: Hello
    ) -> None:
        entry = self.fleet.nodes[node]
        begin: dict[str, JsonValue] = {
            "node": node,
            "role": entry.role,
            "platform": entry.platform,
            "fence": fence,
            "epoch": NO_EPOCH,
        }
        write = dialogue.channel.write
        write(encode_message(MessageType.BEGIN, encode(begin)))
        write(encode_message(MessageType.ROUTE, route.record))
        write(encode_message(MessageType.MANIFEST, self.payload.manifest))
        for name, raw in sorted(self.payload.signatures.items()):
            write(encode_message(MessageType.SIGNATURE, name.encode("ascii") + b"\0" + raw))
        write(encode_message(MessageType.PACKING, self.payload.packing_raw))
        for root in dict.fromkeys(component.tree for component in self._components(entry)):
            if blake3_text(root) not in hello.trees:
                write(encode_message(MessageType.TREE, self.payload.tree_bytes(root)))
        write(encode_message(MessageType.PLAN))

    def _send_frames(self, dialogue: Dialogue, want: Want, node: str) -> None:
        """Send what is wanted. A host that stops reading has an error to tell, which comes next."""
        sent_bytes = 0
        for root, indexes in want.frames.items():
            frames = self.payload.frames(root)
            _check_indexes(indexes, len(frames), root, node)
            for index in indexes:
                size_bytes = _FRAME_HEAD + frames[index].stored_bytes
                head = bytes([MessageType.FRAME]) + size_bytes.to_bytes(8, "big")
                dialogue.channel.write(head + root + index.to_bytes(4, "big"))
                for chunk in self.payload.frame_chunks(root, index):
                    if not dialogue.channel.write(chunk):
                        return
                sent_bytes += frames[index].stored_bytes
                dialogue.ready()
                self.watch.moved(node, sent_bytes=sent_bytes, of_bytes=want.stored_bytes)
        dialogue.channel.write(encode_message(MessageType.END))
        dialogue.channel.end_input()

    def _check_staged(self, staged: Staged, node: str) -> None:
        if staged.generation != self.payload.generation:
            raise Refused(
                "receipt-refused",
                "a host staged another generation than it was sent",
                expected=self.payload.generation,
                got=staged.generation,
                where=node,
            )

    def _check_receipt(
        self, receipt: CheckedReceipt, node: str, route: FrozenRoute, fence: int
    ) -> None:
        said = receipt.receipt
        got = (said.kind, said.capsule, said.route, said.result)
        if got != ("stage", self.payload.capsule, route.digest, "done") or said.fence > fence:
            raise Refused(
                "receipt-refused",
                "a stage receipt speaks of something else",
                expected=f"{self.payload.capsule} under route {route.digest}",
                got=" ".join(got),
                where=node,
            )


def named_controllers(fleet: "Fleet", own: PublicKey) -> tuple[PublicKey, ...]:
    """Return the keys that a route names: this controller's, and those of the inventory.

    They are ordered by key id, so that each of these controllers freezes the same bytes.

    Raises:
        Refused: `key-malformed`.
        Failed: `key-missing`.
    """
    further = (load_public_key(path).key for path in fleet.controllers)
    return tuple(sorted({own, *further}, key=lambda key: key.keyid))


def keep_receipts(
    session: HostSession,
    home: ProductHome,
    receipt: CheckedReceipt,
    key: PublicKey,
    signer: Signer,
) -> None:
    """Keep a copy of `receipt`, and first of all those before it that were never fetched.

    Raises:
        CapsuleError: `record-chain-broken`, `receipt-gap` when the host no longer has them, and
            what asking the host raises.
    """
    copies = home.receipts(session.node, signer=signer)
    if receipt.receipt.sequence > copies.count() + 1:
        for record in session.receipts():
            copies.add(check_receipt(record, node=session.node, key=key), key)
    copies.add(receipt, key)


def _end(dialogue: Dialogue, node: str) -> Staged:
    while (record := dialogue.next()) is not None:
        if record.get("record") == "staged":
            staged = read_staged(record, node)
            dialogue.finish()
            return staged
    raise Refused("wire-malformed", "a host ended without staging", where=node)


def _check_fence(hello: Hello, fence: int, node: str) -> None:
    if hello.fence > fence:
        raise Refused(
            "controller-fenced",
            "a newer controller has worked with this host",
            expected=f"fence {hello.fence} or higher",
            got=fence,
            where=node,
        )


def _check_indexes(indexes: tuple[int, ...], count: int, root: ObjectId, node: str) -> None:
    outside = [index for index in indexes if index >= count]
    if outside:
        raise Refused(
            "wire-malformed",
            "a host wants frames that there are not",
            expected=f"numbers below {count} of tree {blake3_text(root)}",
            got=outside[:5],
            where=node,
        )
