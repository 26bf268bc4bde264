"""The metadata half of a `receive`: everything is decided here before the first byte of content.

Order of trust: the route by the host's policy, the manifest by its signatures, counter, product and
platform, the packing by its signature, each listing by the root that the manifest names. What
comes out is a `Delivery`; nothing of it was written yet, except for the fence.

Source: design, sections 8 and 10; `docs/reference/wire.md`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from capsule_installer import __version__
from capsule_installer.host.host import Host
from capsule_installer.system.facts import MachineFacts
from capsule_manifest.canonical import Limits, decode
from capsule_manifest.digest import CapsuleId, ObjectId, blake3_text, sha256_text
from capsule_manifest.envelope import Envelope, decode_record
from capsule_manifest.errors import Failed, Refused
from capsule_manifest.fields import Object
from capsule_manifest.packing import Frame, Packing, decode_packing
from capsule_manifest.policy import Policy
from capsule_manifest.release import (
    Component,
    Platform,
    Release,
    generation_name,
)
from capsule_manifest.route import RouteNode
from capsule_manifest.tree import Tree, TreeLimits, decode_tree
from capsule_manifest.trust import verify_packing, verify_release
from capsule_manifest.trust_orders import VerifiedRoute, verify_route
from capsule_manifest.wire import Message, MessageType

__all__ = ["Begin", "Delivery", "Listing", "read_delivery"]

_BEGIN_LIMITS: Final = Limits(size_bytes_max=64 * 1024, depth_max=2, values_max=16)
_SIGNATURES_MAX: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Whom a delivery is for, by which controller's fence, in which epoch ("" outside of one)."""

    node: str
    role: str
    platform: str
    fence: int
    epoch: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A tree and the frames that carry its content. `raw` is as it came, empty if it lay here."""

    tree: Tree
    raw: bytes
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What shall be staged, all of it verified. `listings` is by tree root.

    `downgrade` is the policy's reason for letting it pass below the floor, None when it is above.
    """

    begin: Begin
    route: VerifiedRoute
    route_envelope: Envelope
    node: RouteNode
    release: Release
    capsule: CapsuleId
    manifest: bytes
    signatures: Mapping[str, bytes]
    owners: tuple[str, ...]
    downgrade: str | None
    components: tuple[Component, ...]
    interpreter: str
    listings: Mapping[ObjectId, Listing]

    @property
    def generation(self) -> str:
        """Return the name of the generation."""
        return generation_name(self.release.release_counter, self.capsule)


def read_delivery(host: Host, messages: Iterator[Message]) -> Delivery:
    """Take messages up to PLAN and verify them, in the order in which they come.

    The caller holds the lock. The controller's fence is stored once its route was accepted.

    Raises:
        Refused: `wire-malformed`, `order-wrong-node`, `order-wrong-route`, `order-fenced`,
            `platform-mismatch`, `installer-too-old`, `packing-inconsistent`, and what verifying
            routes, releases, packings and trees raises.
        Failed: `partial-damaged` when a listing kept from before can't be read, `disk-*`.
    """
    begin = _read_begin(host, _take(messages, MessageType.BEGIN))
    policy = host.state.policy()
    envelope = decode_record(_take(messages, MessageType.ROUTE), where="route")
    route = verify_route(policy, envelope)
    node = _check_route(host, begin, route)
    host.state.raise_fence(begin.fence)
    manifest = _take(messages, MessageType.MANIFEST)
    signatures, message = _signatures(messages)
    verified = verify_release(
        policy,
        manifest,
        _about(signatures, "release"),
        counter_floor=host.state.counter_floor(),
    )
    release = verified.release
    _check_installer(release)
    interpreter = _check_platform(host, release, begin)
    components = release.selected(begin.role, begin.platform)
    packing = _read_packing(policy, verified.capsule, message, _about(signatures, "packing"))
    listings = _read_listings(host, messages, components, packing)
    return Delivery(
        begin=begin,
        route=route,
        route_envelope=envelope,
        node=node,
        release=release,
        capsule=verified.capsule,
        manifest=manifest,
        signatures=signatures,
        owners=verified.owners,
        downgrade=None if verified.downgrade is None else verified.downgrade.reason,
        components=components,
        interpreter=interpreter,
        listings=listings,
    )


def _about(signatures: Mapping[str, bytes], subject: str) -> dict[str, bytes]:
    # A single bad signature is then refused for its own reason, as on the controller.
    return {name: raw for name, raw in signatures.items() if name.startswith(f"{subject}-")}


def _take(messages: Iterator[Message], wanted: MessageType) -> bytes:
    return _expect(next(messages), wanted)


def _expect(message: Message, wanted: MessageType) -> bytes:
    if message.type is not wanted:
        raise Refused(
            "wire-malformed",
            "another message came than must come now",
            expected=wanted.name,
            got=message.type.name,
        )
    return message.body


def _read_begin(host: Host, raw: bytes) -> Begin:
    document = Object(decode(raw, limits=_BEGIN_LIMITS, where="begin"), "begin")
    begin = Begin(
        node=document.text("node"),
        role=document.text("role"),
        platform=document.text("platform"),
        fence=document.integer("fence"),
        epoch=document.text("epoch", empty=True),
    )
    document.end()
    node = host.state.require_enrolment().node
    if begin.node != node:
        raise Refused(
            "order-wrong-node",
            "a delivery is for another node",
            expected=node,
            got=begin.node,
        )
    return begin


def _check_route(host: Host, begin: Begin, route: VerifiedRoute) -> RouteNode:
    policy = host.state.policy_bytes()
    assert policy is not None, "the policy was read before"
    if route.route.policy != sha256_text(policy):
        raise Refused(
            "order-wrong-route",
            "the route was frozen under another trust policy",
            expected=sha256_text(policy),
            got=route.route.policy,
        )
    node = route.route.nodes.get(begin.node)
    if node is None:
        raise Refused("order-wrong-route", "the route doesn't name this node", expected=begin.node)
    if (node.role, node.platform) != (begin.role, begin.platform):
        raise Refused(
            "order-wrong-route",
            "a delivery is for another role or platform than the route gives this node",
            expected=f"{node.role} on {node.platform}",
            got=f"{begin.role} on {begin.platform}",
        )
    return node


def _signatures(messages: Iterator[Message]) -> tuple[dict[str, bytes], Message]:
    """Return the signatures by name, and the message that follows them."""
    signatures: dict[str, bytes] = {}
    for message in messages:
        if message.type is not MessageType.SIGNATURE:
            return signatures, message
        raw_name, _, bundle = message.body.partition(b"\0")
        name = raw_name.decode("ascii", "replace")
        plain = raw_name.isascii() and name.replace("-", "").replace(".", "").isalnum()
        if not plain or name.startswith(".") or name in signatures:
            raise Refused("wire-malformed", "a signature has no name of its own", got=name)
        if len(signatures) >= _SIGNATURES_MAX:
            raise Refused("wire-malformed", "too many signatures", expected=_SIGNATURES_MAX)
        signatures[name] = bundle
    raise AssertionError("read_messages ends with END or raises")


def _check_installer(release: Release) -> None:
    if _numbers(__version__) < _numbers(release.installer.version):
        raise Refused(
            "installer-too-old",
            "the release needs a newer host program",
            expected=f"{release.installer.version}, because: {release.installer.reason}",
            got=__version__,
        )


def _check_platform(host: Host, release: Release, begin: Begin) -> str:
    """Return the interpreter of this platform on this host."""
    platform = release.platforms.get(begin.platform)
    if platform is None:
        raise _mismatch("the release has no such platform", begin.platform, "", begin)
    facts = host.machine.facts()
    if platform.machine != facts.machine:
        raise _mismatch("another machine", platform.machine, facts.machine, begin)
    if not facts.glibc or _numbers(facts.glibc) < _numbers(platform.glibc):
        raise _mismatch(
            "an older C library", f"glibc {platform.glibc}", facts.glibc or "none", begin
        )
    return _interpreter(host, platform, facts, begin)


def _interpreter(host: Host, platform: Platform, facts: MachineFacts, begin: Begin) -> str:
    if platform.interpreter is None:
        found = facts.pythons.get(platform.python)
        if found is None:
            had = ", ".join(sorted(facts.pythons)) or "none"
            raise _mismatch("no such Python", f"Python {platform.python}", had, begin)
        return found
    if host.disk.stat(platform.interpreter) is None:
        raise _mismatch("no such interpreter", platform.interpreter, "nothing there", begin)
    return platform.interpreter


def _read_packing(
    policy: Policy, capsule: CapsuleId, message: Message, signatures: Mapping[str, bytes]
) -> Packing:
    raw = _expect(message, MessageType.PACKING)
    verify_packing(policy, raw, capsule, signatures)
    packing = decode_packing(raw)
    if packing.capsule != capsule:
        raise Refused(
            "packing-inconsistent",
            "packing.json is of another capsule",
            expected=capsule,
            got=packing.capsule,
        )
    return packing


def _read_listings(
    host: Host,
    messages: Iterator[Message],
    components: tuple[Component, ...],
    packing: Packing,
) -> dict[ObjectId, Listing]:
    wanted = {component.tree: component for component in components}
    listings: dict[ObjectId, Listing] = {}
    for message in messages:
        if message.type is MessageType.PLAN:
            break
        raw = _expect(message, MessageType.TREE)
        listing = _match_listing(raw, wanted, packing)
        listings[listing.tree.root] = listing
    for root, component in wanted.items():
        if root not in listings:
            listings[root] = _kept_listing(host, component, packing)
    return listings


def _match_listing(raw: bytes, wanted: Mapping[ObjectId, Component], packing: Packing) -> Listing:
    # A listing does not say its own root: it is decoded once without, then looked up.
    tree = decode_tree(raw, root=None)
    component = wanted.get(tree.root)
    if component is None:
        raise Refused(
            "wire-malformed",
            "a listing came that belongs to no component of this node",
            got=blake3_text(tree.root),
        )
    return Listing(tree=tree, raw=raw, frames=_frames(tree, component, packing))


def _kept_listing(host: Host, component: Component, packing: Packing) -> Listing:
    path = host.layout.listing(component.tree)
    try:
        raw = host.disk.read(path, TreeLimits().size_bytes_max)
    except FileNotFoundError:
        # A collection may have taken it between the hello, which named it, and the lock.
        raise Failed(
            "partial-damaged",
            "a listing was not sent, and is no longer kept",
            expected=blake3_text(component.tree),
            where=component.name,
            retryable=True,
        ) from None
    try:
        tree = decode_tree(raw, root=component.tree)
    except Refused as refusal:
        host.disk.unlink(path)
        raise Failed(
            "partial-damaged",
            "a listing kept from before is damaged and was removed",
            where=path,
            retryable=True,
        ) from refusal
    return Listing(tree=tree, raw=b"", frames=_frames(tree, component, packing))


def _frames(tree: Tree, component: Component, packing: Packing) -> tuple[Frame, ...]:
    content = packing.contents.get(tree.root)
    frames = () if content is None else tuple(f for pack in content.packs for f in pack.frames)
    listed_bytes = sum({e.object: e.size_bytes for e in tree.entries if e.object}.values())
    packed_bytes = sum(frame.content_bytes for frame in frames)
    if packed_bytes != listed_bytes:
        raise Refused(
            "packing-inconsistent",
            "the frames of a component don't add up to its content",
            expected=f"{listed_bytes} bytes",
            got=f"{packed_bytes} bytes",
            where=component.name,
        )
    if len(tree.entries) != component.entries:
        raise Refused(
            "tree-malformed",
            "a listing has another number of entries than the manifest says",
            expected=component.entries,
            got=len(tree.entries),
            where=component.name,
        )
    return frames


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _mismatch(what: str, expected: str, got: str, begin: Begin) -> Refused:
    return Refused(
        "platform-mismatch",
        f"the host is not of its platform: {what}",
        expected=expected,
        got=got,
        where=f"platform {begin.platform}",
    )
