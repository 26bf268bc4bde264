"""What a host remembers: who it is, whom it trusts, and numbers that only grow.

Everything is read from the disk when asked for: two runs of the program never share memory, and a
stopped one leaves nothing behind that a file does not say. Writers hold the host's lock.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from capsule_installer.host.layout import Layout
from capsule_installer.system.disk import Disk, FileKind
from capsule_installer.system.fsops import keep_name, publish_once, replace_file
from capsule_manifest.canonical import Limits, decode, encode
from capsule_manifest.envelope import Envelope, decode_record, encode_record
from capsule_manifest.errors import Failed, Refused
from capsule_manifest.fields import root_object
from capsule_manifest.keys import PublicKey
from capsule_manifest.records import MARKER_TYPE, Marker, decode_marker

if TYPE_CHECKING:
    from capsule_manifest.policy import Policy
    from capsule_manifest.trust_orders import VerifiedRoute

__all__ = ["Enrolment", "HostState"]

_POLICY_BYTES_MAX: Final = 1024 * 1024
_RECORD_BYTES_MAX: Final = 16 * 1024 * 1024
_SMALL_BYTES_MAX: Final = 64 * 1024
_NUMBER_MAX: Final = 2**53 - 1
_NONCES_MAX: Final = 64
_SCHEMA: Final = "capsule-enrolment/1"
BALLAST_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrolment:
    """Who this host is. `policy` is the digest of the first trust policy."""

    node: str
    product: str
    policy: str


class HostState:
    """The state folder of one host."""

    def __init__(self, disk: Disk, layout: Layout) -> None:
        self._disk = disk
        self._layout = layout

    # --- who -----------------------------------------------------------------------------------

    def enrolment(self) -> Enrolment | None:
        """Return who this host is, None before enrolment. Raises: `document-*`, `json-*`."""
        path = self._path("node.json")
        raw = self._read(path, _SMALL_BYTES_MAX)
        if raw is None:
            return None
        value = decode(raw, limits=Limits(size_bytes_max=_SMALL_BYTES_MAX, depth_max=2), where=path)
        document = root_object(value, schema=_SCHEMA, name=path)
        enrolment = Enrolment(
            node=document.text("node"),
            product=document.text("product"),
            policy=document.sha256("policy"),
        )
        document.end()
        return enrolment

    def require_enrolment(self) -> Enrolment:
        """Return who this host is. Raises: `host-not-enrolled`, as `enrolment`."""
        enrolment = self.enrolment()
        if enrolment is None:
            raise Failed("host-not-enrolled", "the host was never enrolled", where=self._layout.var)
        return enrolment

    def enrol(self, enrolment: Enrolment) -> None:
        """Remember who this host is; the last step of an enrolment. Raises: `disk-*`."""
        data = encode(
            {
                "schema": _SCHEMA,
                "node": enrolment.node,
                "product": enrolment.product,
                "policy": enrolment.policy,
            }
        )
        publish_once(self._disk, self._path("node.json"), data, 0o644)

    # --- trust ---------------------------------------------------------------------------------

    def policy_bytes(self) -> bytes | None:
        """Return the trust policy's bytes, None before enrolment. Raises: `disk-*`."""
        return self._read(self._layout.policy, _POLICY_BYTES_MAX)

    def policy(self) -> "Policy":
        """Return the trust policy. Raises: `host-not-enrolled`, as `decode_policy`."""
        # Imported where it is needed: a survey reads the state of every host and no policy.
        from capsule_manifest.policy import decode_policy

        raw = self.policy_bytes()
        if raw is None:
            raise Failed(
                "host-not-enrolled", "the host has no trust policy", where=self._layout.policy
            )
        return decode_policy(raw, where=self._layout.policy)

    def store_policy(self, raw: bytes) -> None:
        """Store a policy that was checked. Raises: `disk-*`."""
        replace_file(self._disk, self._layout.policy, raw, 0o644)

    def keep_policy(self) -> None:
        """Make the policy that was found durable, before its receipt says so. Raises: `disk-*`."""
        keep_name(self._disk, self._layout.policy)

    def route_envelope(self) -> Envelope | None:
        """Return the last route that was accepted, None before the first. Raises: `json-*`."""
        path = self._path("route.json")
        raw = self._read(path, _RECORD_BYTES_MAX)
        return None if raw is None else decode_record(raw, where=path)

    def route(self, policy: "Policy") -> "VerifiedRoute | None":
        """Return the last route, verified again under `policy`. Raises: as `verify_route`."""
        from capsule_manifest.trust_orders import verify_route

        envelope = self.route_envelope()
        return None if envelope is None else verify_route(policy, envelope)

    def store_route(self, envelope: Envelope) -> None:
        """Store a route that was verified. Raises: `disk-*`."""
        replace_file(self._disk, self._path("route.json"), encode_record(envelope), 0o600)

    # --- numbers that only grow ----------------------------------------------------------------

    def fence(self) -> int:
        """Return the highest fence that was accepted, 0 at first. Raises: `state-malformed`."""
        return self._number("fence")

    def raise_fence(self, fence: int) -> None:
        """Accept a controller's fence, durably before anything is done for it.

        Raises:
            Refused: `order-fenced` for a lower one than was seen.
        """
        known = self.fence()
        if fence < known:
            raise Refused(
                "order-fenced",
                "a newer controller has spoken to this host",
                expected=f"fence {known} or higher",
                got=fence,
                where=self._layout.state,
            )
        if fence > known:
            self._store_number("fence", fence)
        elif fence:
            keep_name(self._disk, self._path("fence"))

    def counter_floor(self) -> int:
        """Return the lowest release counter that may be installed. Raises: `state-malformed`."""
        return self._number("counter-floor")

    def raise_counter_floor(self, counter: int) -> None:
        """Refuse older releases from now on; called after an activation. Never lowers it."""
        if counter > self.counter_floor():
            self._store_number("counter-floor", counter)
        else:
            keep_name(self._disk, self._path("counter-floor"))

    # --- nonces --------------------------------------------------------------------------------

    def remember_nonce(self, nonce: str, *, boot_id: str, boot_ms: int) -> None:
        """Remember that a hello gave out `nonce` at `boot_ms` of this boot.

        Not durable: an order is bound to the boot, so a power loss makes the nonce worthless.
        """
        folder = self._layout.nonces
        aged = sorted(
            (self._nonce_ms(name, boot_id) or 0, name) for name in self._disk.list(folder)
        )
        for _, name in aged[: max(0, len(aged) - _NONCES_MAX + 1)]:
            self._disk.unlink(f"{folder}/{name}")
        with self._disk.create(f"{folder}/{nonce}", 0o600) as writer:
            writer.write(f"{boot_id} {boot_ms}\n".encode())

    def nonce_ms(self, nonce: str, *, boot_id: str) -> int | None:
        """Return when on the boot clock `nonce` was given out, None if never in this boot."""
        if not nonce.isalnum():
            return None
        return self._nonce_ms(nonce, boot_id)

    # --- markers, listings, ops ----------------------------------------------------------------

    def staged_generations(self) -> list[str]:
        """Return the names of all generations with a staged marker. Raises: `disk-*`."""
        names = self._names(self._layout.staged)
        return [name.removesuffix(".json") for name in names if name.endswith(".json")]

    def staged_marker(self, generation: str, key: PublicKey) -> Marker | None:
        """Return the staged marker of a generation, verified with the node's own key.

        Raises:
            Refused: `json-*`, `document-*`, `key-unknown`, `signature-*`, `state-malformed` for a
                marker of another generation.
        """
        path = self._layout.marker(generation)
        raw = self._read(path, _RECORD_BYTES_MAX)
        if raw is None:
            return None
        payload = decode_record(raw, where=path).verify(key, payload_type=MARKER_TYPE, where=path)
        marker = decode_marker(payload, where=path)
        if (marker.kind, marker.generation) != ("staged", generation):
            raise Refused(
                "state-malformed",
                "a marker is not the one that its name says",
                expected=f"staged {generation}",
                got=f"{marker.kind} {marker.generation}",
                where=path,
            )
        return marker

    def generation_of(self, link: str) -> str:
        """Return the generation that the link `current` or `previous` names, or `absent`.

        Raises:
            Refused: `state-malformed` when it leads anywhere else.
        """
        found = self._disk.stat(link)
        if found is None:
            return "absent"
        target = self._disk.read_link(link) if found.kind is FileKind.LINK else f"a {found.kind}"
        folder, _, name = target.rpartition("/")
        if folder != "generations" or not name:
            raise Refused(
                "state-malformed",
                "a link of capsule leads somewhere else",
                expected="generations/…",
                got=target,
                where=link,
            )
        return name

    def open_op(self) -> str | None:
        """Return the op that has begun and not ended, if any. Raises: `disk-*`."""
        for op_id in self._names(self._layout.ops):
            folder = self._layout.op(op_id)
            has_intent = self._disk.stat(f"{folder}/intent") is not None
            if has_intent and self._disk.stat(f"{folder}/result") is None:
                return op_id
        return None

    def is_held(self) -> bool:
        """Say whether the hold file is there. Raises: `disk-*`."""
        return self._disk.stat(self._layout.hold) is not None

    def ensure_ballast(self) -> None:
        """Put space and an inode aside that rescue can free first. Raises: `disk-*`."""
        found = self._disk.stat(self._layout.ballast)
        if found is None or found.size_bytes != BALLAST_BYTES:
            # Not zeros: a file system that compresses or keeps holes would reserve nothing.
            filler = bytes(range(1, 256)) * (BALLAST_BYTES // 255 + 1)
            replace_file(self._disk, self._layout.ballast, filler[:BALLAST_BYTES], 0o600)

    # --- inside --------------------------------------------------------------------------------

    def _path(self, name: str) -> str:
        return f"{self._layout.state}/{name}"

    def _read(self, path: str, size_bytes_max: int) -> bytes | None:
        try:
            return self._disk.read(path, size_bytes_max)
        except FileNotFoundError:
            return None

    def _names(self, folder: str) -> list[str]:
        try:
            names = self._disk.list(folder)
        except FileNotFoundError:
            return []
        # A name that begins with a dot is what a stopped write left.
        return [name for name in names if not name.startswith(".")]

    def _number(self, name: str) -> int:
        raw = self._read(self._path(name), _SMALL_BYTES_MAX)
        if raw is None:
            return 0
        text = raw.decode("ascii", "replace").removesuffix("\n")
        # isdecimal alone takes the digits of every script, and int() reads them.
        if not (text.isascii() and text.isdecimal() and int(text) <= _NUMBER_MAX):
            raise Refused(
                "state-malformed",
                "a number of the state can't be read",
                got=text,
                where=self._path(name),
            )
        return int(text)

    def _store_number(self, name: str, value: int) -> None:
        replace_file(self._disk, self._path(name), f"{value}\n".encode(), 0o644)

    def _nonce_ms(self, name: str, boot_id: str) -> int | None:
        raw = self._read(f"{self._layout.nonces}/{name}", _SMALL_BYTES_MAX)
        match (raw or b"").decode("ascii", "replace").split():
            case [known, text] if known == boot_id and text.isdecimal():
                return int(text)
        return None
