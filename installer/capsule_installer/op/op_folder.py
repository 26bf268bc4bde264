"""The folder of one op: every file that the switch, the restore and the answer to a repeat need.

What decides is a *name* that appears once, by linking a file that was written before:

    intent      from now on the op must end as committed or restored
    stopping    a service may have been stopped (valid for this boot only)
    proof       the ordered generation runs, signed
    outcome     committed (signed, by whoever confirms) or `outcome.restoring` (by anybody)
    result      how it ended: one of the prepared `result.*` files; after it, nothing is left to do

so that `rescue.sh` needs no parser, and neither deciding nor restoring needs a free byte.

Source: design, section 9; `docs/reference/records.md`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from capsule_installer.engines.base import WantedImage
from capsule_installer.host.layout import Layout
from capsule_installer.op.switch_plan import NameOperation, Plans, encode_plan, parse_plan
from capsule_installer.system.disk import Disk
from capsule_installer.system.fsops import keep_name, publish_once, replace_file
from capsule_manifest.canonical import DEFAULT_LIMITS, JsonValue, decode, encode
from capsule_manifest.envelope import Envelope, decode_record
from capsule_manifest.fields import Object
from capsule_manifest.records import (
    OUTCOME_TYPE,
    Outcome,
    decode_outcome,
    decode_rescue_outcome,
    encode_rescue_outcome,
)

__all__ = ["OpFile", "OpFolder", "Result", "Summary", "UnitLimits", "list_ops"]

_SIZE_BYTES_MAX: Final = 16 * 1024 * 1024
_UNIT_LINE_FIELDS: Final = 3


class Result(StrEnum):
    """How an op ended."""

    COMMITTED = "committed"
    RESTORED = "restored"
    ABSENT = "absent"
    FAILED = "failed"
    REFUSED = "refused"


class OpFile(StrEnum):
    """The names in an op's folder that `rescue.sh` knows too."""

    ORDER = "order"
    SUMMARY = "summary"
    INTENT = "intent"
    STOPPING = "stopping"
    PROOF = "proof"
    OUTCOME = "outcome"
    RESTORING = "outcome.restoring"
    RESULT = "result"
    REASON = "reason"
    HOLD = "hold"
    ABSENT = "absent"
    MANAGER = "manager"
    SUPERVISOR = "supervisor"
    WORKER = "worker"
    GUARD = "guard"
    VIOLATIONS = "violations"
    STEPS = "steps"
    STEPS_RESTORE = "steps.restore"
    RECEIPTED = "receipted"
    UNITS_OLD = "units.old"
    UNITS_NEW = "units.new"
    IMAGES_OLD = "images.old"
    PLAN_UNITS = "units.plan"
    PLAN_SWITCH = "switch.plan"
    PLAN_RESTORE = "restore.plan"
    PLAN_GONE = "gone.plan"
    PLAN_CLEAN = "clean.plan"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitLimits:
    """A unit with the time it may take to stop and to start, ms."""

    name: str
    stop_ms: int
    start_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What an op changes and when it began: for boot, status and receipts."""

    source: str
    target: str
    boot_id: str
    began_ms: int
    manager: str


class OpFolder:
    """Read and write one op's folder. Writers hold the host's lock, except for `outcome`."""

    def __init__(self, *, disk: Disk, layout: Layout, op_id: str) -> None:
        self.op_id = op_id
        self.path = layout.op(op_id)
        self._disk = disk
        self._layout = layout

    def has(self, name: str) -> bool:
        """Say whether a name is there."""
        return self._disk.stat(f"{self.path}/{name}") is not None

    def read(self, name: str) -> bytes | None:
        """Return a file's bytes, None when it is absent."""
        try:
            return self._disk.read(f"{self.path}/{name}", _SIZE_BYTES_MAX)
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """Write a file whole or not at all; its name is not durable yet."""
        temporary = f"{self.path}/.{name}.tmp"
        if self._disk.stat(temporary) is not None:
            # Left by a stop; its content is unknown.
            self._disk.unlink(temporary)
        with self._disk.create(temporary, 0o600) as writer:
            writer.write(data)
            # All of it is read after a power cut, by programs that can't ask again.
            writer.fsync("op file's data")
        self._disk.rename(temporary, f"{self.path}/{name}")

    def accept(self, record: bytes) -> None:
        """Remember the order; durable, so that repeating it after a power cut is known."""
        replace_file(self._disk, f"{self.path}/{OpFile.ORDER}", record, 0o600)

    def note(self, name: str, data: bytes) -> None:
        """Write what only this boot needs: never torn, not durable."""
        path, temporary = f"{self.path}/{name}", f"{self.path}/.{name}.tmp"
        if self._disk.stat(temporary) is not None:
            self._disk.unlink(temporary)
        with self._disk.create(temporary, 0o600) as writer:
            writer.write(data)
        self._disk.rename(temporary, path)

    def link(self, source: str, name: str) -> bool:
        """Let the prepared file `source` appear as `name`; False when `name` was there before."""
        try:
            self._disk.link(f"{self.path}/{source}", f"{self.path}/{name}")
        except FileExistsError:
            return False
        return True

    def order(self) -> Envelope:
        """Return the order, whose signature was verified when it was accepted."""
        raw = self.read(OpFile.ORDER)
        assert raw is not None, self.path
        return decode_record(raw, where="stored order")

    def summary(self) -> Summary:
        """Return what the op changes; it must have an intent."""
        raw = self.read(OpFile.SUMMARY)
        assert raw is not None, self.path
        document = Object(decode(raw, limits=DEFAULT_LIMITS, where="op summary"), "op summary")
        summary = Summary(
            source=document.text("source"),
            target=document.text("target"),
            boot_id=document.text("boot_id"),
            began_ms=document.integer("began_ms"),
            manager=document.text("manager"),
        )
        document.end()
        return summary

    def plan(self, name: OpFile) -> tuple[NameOperation, ...]:
        """Return a list of name operations."""
        raw = self.read(name)
        assert raw is not None, f"{self.path}/{name}"
        return parse_plan(raw, where=f"{self.path}/{name}")

    def units(self, name: OpFile) -> tuple[UnitLimits, ...]:
        """Return the units of the old or new generation."""
        raw = self.read(name)
        assert raw is not None, f"{self.path}/{name}"
        fields = [line.split("\t") for line in raw.decode().splitlines()]
        assert all(len(line) == _UNIT_LINE_FIELDS for line in fields), fields
        return tuple(
            UnitLimits(name=unit, stop_ms=int(stop_ms), start_ms=int(start_ms))
            for unit, stop_ms, start_ms in fields
        )

    def images(self) -> tuple[WantedImage, ...]:
        """Return the images that the old generation's units run."""
        raw = self.read(OpFile.IMAGES_OLD) or b""
        fields = [line.partition("\t") for line in raw.decode().splitlines()]
        return tuple(
            WantedImage(name=layout.rpartition("/")[2], id=image, layout=layout, units=())
            for image, _, layout in fields
        )

    def proof(self) -> Envelope | None:
        """Return the signed proof, if there is one."""
        raw = self.read(OpFile.PROOF)
        return None if raw is None else decode_record(raw, where="stored proof")

    def outcome(self) -> Outcome | None:
        """Return how the op was decided, None while it is open.

        Only the host's own user can write here, so the bytes are read and not verified again.
        """
        raw = self.read(OpFile.OUTCOME)
        if raw is None:
            return None
        rescued = decode_rescue_outcome(raw, op_id=self.op_id)
        if rescued is not None:
            # The same prepared file decides for both; only the program can also leave a reason.
            return replace(rescued, by="supervisor") if self.has(OpFile.REASON) else rescued
        envelope = decode_record(raw, where="stored outcome")
        assert envelope.payload_type == OUTCOME_TYPE, envelope.payload_type
        return decode_outcome(envelope.payload)

    def result(self) -> Result | None:
        """Return how the op ended, None while something is left to do."""
        raw = self.read(OpFile.RESULT)
        return None if raw is None else Result(raw.decode().strip())

    def reason(self) -> str:
        """Return why it was not committed, for people."""
        return (self.read(OpFile.REASON) or b"").decode("utf-8", "replace").strip()

    def is_open(self) -> bool:
        """Say whether the op has begun and neither ended nor failed to restore."""
        return self.has(OpFile.INTENT) and not self.has(OpFile.RESULT)

    def prepare(
        self,
        *,
        summary: Summary,
        plans: Plans,
        old: Iterable[UnitLimits],
        new: Iterable[UnitLimits],
        absent_after_restore: bool,
        images: Sequence[WantedImage] = (),
    ) -> None:
        """Write every file that the rest of the op needs, durable, before its intent.

        `images` are what the old units run: a restore may have to load them again.
        """
        for name, data in _prepared(self.op_id, summary, plans, old, new).items():
            self.write(name, data)
        if images:
            lines = (f"{image.id}\t{image.layout}\n" for image in images)
            self.write(OpFile.IMAGES_OLD, "".join(lines).encode())
        if absent_after_restore:
            self.write(OpFile.ABSENT, b"restore leaves nothing installed\n")
        # An intent without its plans could not be undone.
        self._disk.fsync_dir(self.path, "prepared op files' names")

    def intend(self) -> None:
        """Make the op one that must end; durable, also when it was one already."""
        self.link(OpFile.SUMMARY, OpFile.INTENT)
        # After this the host changes: a boot must know that it has something to undo.
        self._disk.fsync_dir(self.path, "intent's name")

    def publish_proof(self, record: bytes) -> None:
        """Publish the signed proof; durable before anybody can confirm it."""
        replace_file(self._disk, f"{self.path}/{OpFile.PROOF}", record, 0o600)

    def publish_outcome(self, record: bytes) -> bool:
        """Decide the op with a signed outcome; False when it was decided before. Durable."""
        return publish_once(self._disk, f"{self.path}/{OpFile.OUTCOME}", record, 0o600)

    def keep(self, name: OpFile) -> None:
        """Make a name of this folder durable that was found, before acting on it.

        To act on a commit that a power cut can still forget is to remove what the restore after it
        needs.
        """
        keep_name(self._disk, f"{self.path}/{name}")

    def finish(self, result: Result) -> None:
        """Say how it ended; durable, because the next op builds on it.

        Were it lost, a boot would undo or finish this op again, over what came after it.
        """
        if self.has(OpFile.RESULT):
            if self.result() is result:
                return
            self._disk.unlink(f"{self.path}/{OpFile.RESULT}")
        self.link(f"{OpFile.RESULT}.{result}", OpFile.RESULT)
        self._disk.fsync_dir(self.path, "result's name")


def list_ops(disk: Disk, layout: Layout) -> list[OpFolder]:
    """Return the folder of every op of this host, by name."""
    try:
        names = disk.list(layout.ops)
    except FileNotFoundError:
        return []
    # A name that begins with a dot is being removed.
    kept = [name for name in names if not name.startswith(".")]
    return [OpFolder(disk=disk, layout=layout, op_id=name) for name in kept]


def _prepared(
    op_id: str,
    summary: Summary,
    plans: Plans,
    old: Iterable[UnitLimits],
    new: Iterable[UnitLimits],
) -> Mapping[str, bytes]:
    document: JsonValue = {
        "source": summary.source,
        "target": summary.target,
        "boot_id": summary.boot_id,
        "began_ms": summary.began_ms,
        "manager": summary.manager,
    }
    results = {f"{OpFile.RESULT}.{result}": f"{result}\n".encode() for result in Result}
    return {
        OpFile.SUMMARY: encode(document),
        OpFile.RESTORING: encode_rescue_outcome(op_id),
        OpFile.HOLD: f"op {op_id}\n".encode(),
        OpFile.MANAGER: f"{summary.manager}\n".encode(),
        OpFile.UNITS_OLD: _unit_lines(tuple(old)),
        OpFile.UNITS_NEW: _unit_lines(tuple(new)),
        OpFile.PLAN_UNITS: encode_plan(plans.units),
        OpFile.PLAN_SWITCH: encode_plan(plans.switch),
        OpFile.PLAN_RESTORE: encode_plan(plans.restore),
        OpFile.PLAN_GONE: encode_plan(plans.gone),
        OpFile.PLAN_CLEAN: encode_plan(plans.clean),
    } | results


def _unit_lines(units: Sequence[UnitLimits]) -> bytes:
    return "".join(f"{unit.name}\t{unit.stop_ms}\t{unit.start_ms}\n" for unit in units).encode()
