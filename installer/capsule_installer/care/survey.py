"""`capsule survey`: everything that says what this host is and runs, side by side. Reads only.

Each surface is read on its own and reported as it is, also when it is unsafe or malformed: to judge
whether they agree is the controller's part, and this verb must answer on a host where they don't.
It takes no lock, writes nothing, remembers nothing and makes no folder.

A controller asks every host of a fleet for it, so it imports little and hashes only what the design
names as a surface: units, managed files and one manifest. The whole content is `verify`'s.

Source: design, section 9 ("Markers and identity"); `docs/reference/identity.md`.
"""

from collections.abc import Callable
from typing import Final, TypeVar

from capsule_installer import __version__
from capsule_installer.guard.facts import host_levels
from capsule_installer.host.identity import NodeSigner, load_node_key
from capsule_installer.host.layout import Layout
from capsule_installer.host.receipts import ReceiptChain
from capsule_installer.host.state import HostState
from capsule_installer.op.managed_files import ABSENT_FILE, WantedFile, difference, names_aside
from capsule_installer.services.base import ServiceManager
from capsule_installer.staging.runtime import running_runtime
from capsule_installer.system.accounts import Accounts
from capsule_installer.system.clock import Clock, wall_ms
from capsule_installer.system.disk import Disk, FileKind, FileStat
from capsule_installer.system.facts import Machine
from capsule_installer.system.processes import Processes
from capsule_manifest.canonical import Limits, decode
from capsule_manifest.digest import ObjectId, object_id, sha256_text
from capsule_manifest.envelope import decode_record
from capsule_manifest.errors import CapsuleError
from capsule_manifest.fields import Object
from capsule_manifest.keys import PublicKey, b64encode
from capsule_manifest.orders import ABSENT
from capsule_manifest.records import MARKER_TYPE, Marker, Receipt, decode_marker
from capsule_manifest.survey import (
    ChangedFile,
    GenerationSurface,
    MarkerSurface,
    Obstacle,
    ReceiptSurface,
    Setting,
    Survey,
    UnitSurface,
    Unreadable,
)

__all__ = ["RETIRED_SETTINGS", "Surveyor"]

RETIRED_SETTINGS: Final = ("MAC_WORKER_DEPLOY_GENERATION", "MAC_WORKER_DEPLOY_BARRIER_FILE")
"""Settings of retired mechanisms: reported where a service still has them, and never obeyed."""

_CHANGES: Final = frozenset({"committed", "restored", "restored-absent", "restore-failed"})
_SIZE_BYTES_MAX: Final = 16 * 1024 * 1024
_SMALL_BYTES_MAX: Final = 4096
_MANIFEST_LIMITS: Final = Limits(size_bytes_max=_SIZE_BYTES_MAX, depth_max=16)
_WRITABLE_BY_OTHERS: Final = 0o022
_RECENT: Final = 1000
_UNITS: Final = "units/"
_FILES: Final = "files/"
_NO_LINK: Final = "leads elsewhere"

Value = TypeVar("Value")


class Surveyor:
    """Read one host once. Whatever can't be read becomes an entry of `unreadable`."""

    def __init__(
        self,
        *,
        disk: Disk,
        layout: Layout,
        clock: Clock,
        machine: Machine,
        services: ServiceManager,
        processes: Processes,
        accounts: Accounts,
    ) -> None:
        self._disk = disk
        self._accounts = accounts
        self._layout = layout
        self._clock = clock
        self._machine = machine
        self._services = services
        self._processes = processes
        self._state = HostState(disk, layout)
        self._unreadable: list[Unreadable] = []
        self._ignored: list[Setting] = []

    def look(self) -> Survey:
        """Return what the host is and runs now."""
        layout, state = self._layout, self._state
        free_bytes, free_inodes = self._tried("space", lambda: self._disk.free(layout.opt)) or (
            0,
            0,
        )
        facts = self._machine.facts()
        signer = self._tried("node key", lambda: load_node_key(self._disk, layout))
        enrolment = self._tried("enrolment", state.enrolment)
        policy = self._tried("policy", state.policy_bytes)
        route = self._tried("route", state.route_envelope)
        current = self._link("current link", layout.current)
        staged = self._staged(signer, current)
        marker, marker_surface = self._marker(signer)
        known = marker if marker is not None and marker.generation == current else staged
        manifest = None if current is None else self._manifest(current)
        return Survey(
            installer=__version__,
            runtime=running_runtime(layout),
            node=None if enrolment is None else enrolment.node,
            node_key=None if signer is None else b64encode(signer.public.spki),
            machine=facts.machine,
            machine_id=self._machine_id(),
            glibc=facts.glibc,
            pythons=facts.pythons,
            service_manager=self._services.name,
            guard_levels=host_levels(layout, self._clock),
            boot_id=self._clock.boot_id(),
            boot_ms=self._clock.boot_ms(),
            wall_ms=wall_ms(),
            free_bytes=free_bytes,
            free_inodes=free_inodes,
            noexec=self._tried("mount flags", lambda: self._machine.is_noexec(layout.opt)) or False,
            ballast=self._disk.stat(layout.ballast) is not None,
            policy=None if policy is None else sha256_text(policy),
            counter_floor=self._tried("counter floor", state.counter_floor) or 0,
            fence=self._tried("fence", state.fence) or 0,
            route=None if route is None else route.digest,
            staged=tuple(state.staged_generations()),
            open_op=self._tried("ops", state.open_op),
            hold=self._hold(),
            current=_NO_LINK if current is None else current,
            previous=self._link("previous link", layout.previous) or _NO_LINK,
            marker=marker_surface,
            generation=None
            if current in {None, ABSENT}
            else GenerationSurface(
                manifest=None if manifest is None else sha256_text(manifest),
                staged=None if staged is None else staged.capsule,
            ),
            receipt=None if signer is None else self._receipt(signer),
            units=self._units(known, manifest),
            files=self._changed_files(known, manifest),
            obstacles=self._obstacles(signer, known),
            ignored=tuple(self._ignored),
            unreadable=tuple(self._unreadable),
        )

    # --- what identifies the generation ----------------------------------------------------------

    def _link(self, name: str, path: str) -> str | None:
        return self._tried(name, lambda: self._state.generation_of(path))

    def _staged(self, signer: NodeSigner | None, current: str | None) -> Marker | None:
        if signer is None or current in {None, ABSENT}:
            return None
        return self._staged_marker(str(current), signer.public)

    def _staged_marker(self, generation: str, key: PublicKey) -> Marker | None:
        return _or_none(lambda: self._state.staged_marker(generation, key))

    def _manifest(self, current: str) -> bytes | None:
        if current == ABSENT:
            return None
        return self._bytes(f"{self._layout.generation(current)}/capsule.json")

    def _marker(self, signer: NodeSigner | None) -> tuple[Marker | None, MarkerSurface]:
        """Return the marker if it is safe and signed, and what is to be said of it."""
        path = self._layout.installed_marker
        stat = self._disk.stat(path)
        if stat is None:
            return None, MarkerSurface(state="absent")
        unsafe = _unsafe(stat, self._machine.uid())
        if unsafe or signer is None:
            return None, MarkerSurface(state="unsafe", why=unsafe or "no key to check it with")
        try:
            raw = self._disk.read(path, _SIZE_BYTES_MAX)
            payload = decode_record(raw, where=path).verify(
                signer.public, payload_type=MARKER_TYPE, where=path
            )
            marker = decode_marker(payload, where=path)
        except (CapsuleError, OSError) as error:
            return None, MarkerSurface(state="invalid", why=_why(error))
        return marker, MarkerSurface(
            state="signed",
            generation=marker.generation,
            previous=marker.previous,
            capsule=marker.capsule,
        )

    def _receipt(self, signer: NodeSigner) -> ReceiptSurface | None:
        """Return the last receipt that says what became current."""
        chain = ReceiptChain(self._disk, self._layout, signer)
        found = _or_none(lambda: chain.find_last(_changes_current, among=_RECENT))
        if found is None:
            return None
        receipt = found.receipt
        committed = receipt.result == "committed"
        return ReceiptSurface(
            sequence=receipt.sequence,
            result=receipt.result,
            current=receipt.target if committed else receipt.source,
            capsule=receipt.capsule if committed else None,
            op_id=receipt.op_id,
        )

    # --- what runs -------------------------------------------------------------------------------

    def _units(self, known: Marker | None, manifest: bytes | None) -> dict[str, UnitSurface]:
        # Its digest is what the host signed, so that one field can be read without the whole form.
        if known is None or manifest is None or sha256_text(manifest) != known.capsule:
            return {}
        commit = self._tried("manifest", lambda: _commit(manifest))
        if commit is None:
            return {}
        names = sorted(key.removeprefix(_UNITS) for key in known.derived if key.startswith(_UNITS))
        return {name: self._unit(known, name, commit) for name in names}

    def _unit(self, known: Marker, name: str, commit: str) -> UnitSurface:
        raw = self._bytes(f"{self._layout.units}/{name}")
        state = self._tried(f"unit {name}", lambda: self._services.state(name))
        same = raw is not None and object_id(raw) == known.derived[_UNITS + name]
        # What the service manager runs is what it has read, not what lies on the disk.
        if state is not None and (
            state.is_stale or state.fragment not in {"", f"{self._layout.units}/{name}"}
        ):
            same = False
        pid = 0 if state is None else state.pid
        facts = self._processes.facts(pid) if pid else None
        environment = {} if facts is None else facts.environment
        self._ignored += [
            Setting(unit=name, setting=setting)
            for setting in RETIRED_SETTINGS
            if setting in environment or f"{setting}=".encode() in (raw or b"")
        ]
        return UnitSurface(
            fragment="absent" if raw is None else "same" if same else "differs",
            active=state is not None and state.active,
            pid=pid,
            invocation_id=(state.invocation_id or None) if state is not None else None,
            generation=_shown(environment.get("CAPSULE_GENERATION")),
            commit=_shown(environment.get("CAPSULE_COMMIT")),
            expected_commit=commit,
            is_service=name.endswith(".service"),
        )

    def _changed_files(
        self, known: Marker | None, manifest: bytes | None
    ) -> tuple[ChangedFile, ...]:
        if known is None:
            return ()
        said = {} if manifest is None or sha256_text(manifest) != known.capsule else (
            self._tried("managed files", lambda: _attributes(manifest)) or {}
        )  # fmt: skip
        changed = []
        for target, digest in sorted(_derived_files(known).items()):
            mode, owner, group = said.get(target, (None, "", ""))
            ids = None if mode is None else self._ids(target, owner, group)
            path = self._layout.inside(target)
            wanted = WantedFile(path=path, digest=digest, mode=mode, owner=ids)
            got = difference(self._disk, wanted) or self._aside(path)
            if got:
                changed.append(ChangedFile(target=path, expected=wanted.text, got=got))
        return tuple(changed)

    def _aside(self, path: str) -> str:
        names = names_aside(self._disk, path)
        return f"an edit lies beside it as {names[0]}" if names else ""

    def _ids(self, target: str, owner: str, group: str) -> tuple[int, int] | None:
        return self._tried(
            f"owner of {self._layout.inside(target)}", lambda: self._accounts.ids(owner, group)
        )

    def _obstacles(self, signer: NodeSigner | None, known: Marker | None) -> tuple[Obstacle, ...]:
        """Return what stands where a staged generation would put a file that is new here."""
        if signer is None:
            return ()
        ours = {} if known is None else _derived_files(known)
        found = []
        for name in self._state.staged_generations():
            marker = self._staged_marker(name, signer.public)
            files = {} if marker is None or marker == known else _derived_files(marker)
            for target in sorted(files.keys() - ours.keys()):
                path = self._layout.inside(target)
                wanted = WantedFile(path=path, digest=files[target], mode=None, owner=None)
                if difference(self._disk, wanted) not in {"", ABSENT_FILE} or self._aside(path):
                    found.append(Obstacle(generation=name, target=path))
        return tuple(found)

    # --- inside ----------------------------------------------------------------------------------

    def _hold(self) -> str | None:
        if self._disk.stat(self._layout.hold) is None:
            return None
        raw = _or_none(lambda: self._disk.read(self._layout.hold, _SMALL_BYTES_MAX))
        return (raw or b"").decode("utf-8", "replace").strip() or "held"

    def _machine_id(self) -> str | None:
        path = self._layout.inside("/etc/machine-id")
        raw = _or_none(lambda: self._disk.read(path, _SMALL_BYTES_MAX))
        return (raw or b"").decode("ascii", "replace").strip() or None

    def _bytes(self, path: str) -> bytes | None:
        return _or_none(lambda: self._disk.read(path, _SIZE_BYTES_MAX))

    def _tried(self, surface: str, read: Callable[[], Value]) -> Value | None:
        """Return what `read` returns; None where it fails, which is then said."""
        try:
            return read()
        except (CapsuleError, OSError) as error:
            self._unreadable.append(Unreadable(surface=surface, why=_why(error)))
            return None


def _or_none(read: Callable[[], Value]) -> Value | None:
    """Return what `read` returns, None where the surface is not there or not valid."""
    try:
        return read()
    except (CapsuleError, OSError):
        return None


def _why(error: CapsuleError | OSError) -> str:
    return error.error_id if isinstance(error, CapsuleError) else str(error)


def _unsafe(stat: FileStat, uid: int) -> str:
    if stat.kind is not FileKind.FILE:
        return f"is a {stat.kind}"
    if stat.uid != uid:
        return f"belongs to user {stat.uid}"
    if stat.mode & _WRITABLE_BY_OTHERS:
        return f"can be written by others, mode {stat.mode:#o}"
    return f"has {stat.links} names" if stat.links > 1 else ""


def _changes_current(receipt: Receipt) -> bool:
    return receipt.result in _CHANGES


def _commit(manifest: bytes) -> str:
    where = "capsule.json"
    document = Object(decode(manifest, limits=_MANIFEST_LIMITS, where=where), where)
    return document.nested("source").text("commit")


def _derived_files(marker: Marker) -> dict[str, ObjectId]:
    """Return the digest of each managed file of a generation by its place on the host."""
    return {
        "/" + key.removeprefix(_FILES): digest
        for key, digest in marker.derived.items()
        if key.startswith(_FILES)
    }


def _attributes(manifest: bytes) -> dict[str, tuple[int, str, str]]:
    """Return mode, owner and group of each managed file, without reading the whole release."""
    where = "capsule.json"
    document = Object(decode(manifest, limits=_MANIFEST_LIMITS, where=where), where)
    files = document.items("components", lambda item: item.items("files", _attribute))
    return {target: (mode, owner, group)
            for component in files for target, mode, owner, group in component}  # fmt: skip


def _attribute(item: Object) -> tuple[str, int, str, str]:
    return item.text("target"), item.integer("mode"), item.text("owner"), item.text("group")


def _shown(text: str | None) -> str | None:
    """Return what a process says of itself as text that can be written down."""
    return text.encode("utf-8", "replace").decode() if text else None
