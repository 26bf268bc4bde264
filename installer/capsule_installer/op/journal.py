"""What an op does, line by line, for `capsule follow` and for its receipt.

Not durable and never decisive: after a power cut it may lack its end. An op that is not decided
must be able to record what it does, so a step whose line can't be written fails. A restore goes on
without: undoing comes first, and `required` is False.
"""

from collections.abc import Iterable

from capsule_installer.op.op_folder import OpFile, OpFolder
from capsule_installer.system.disk import Disk, Writer
from capsule_manifest.canonical import DEFAULT_LIMITS, JsonValue, decode_foreign, encode
from capsule_manifest.errors import Failed, Refused
from capsule_manifest.records import Step

__all__ = ["JOURNALS", "Journal", "JournalReader", "finished_steps", "read_journal"]

JOURNALS = (OpFile.STEPS, OpFile.STEPS_RESTORE)
"""The files of a journal in their order: by the supervisor, by a restore."""


class Journal:
    """Write one journal file of an op. With `required`, a line that can't be written is an error.

    `started`, `done` and `deadline` then raise `disk-*`; `failed` never does, because it is written
    on the way out of another error.
    """

    def __init__(self, *, disk: Disk, op: OpFolder, name: OpFile, required: bool = False) -> None:
        self._writer: Writer | None = None
        self._required = required
        self._failure: Failed | None = None
        path = f"{op.path}/{name}"
        try:
            if disk.stat(path) is not None:
                disk.unlink(path)
            self._writer = disk.create(path, 0o600)
        except Failed as error:
            self._failure = error

    def started(self, name: str, limit_ms: int) -> None:
        """Say that a step began."""
        self._require({"name": name, "state": "started", "limit_ms": limit_ms})

    def done(self, step: Step) -> None:
        """Say that a step ended well."""
        self._require({"name": step.name, "state": "done", "took_ms": step.took_ms,
                       "limit_ms": step.limit_ms})  # fmt: skip

    def deadline(self, name: str, at_ms: int) -> None:
        """Say when, on the boot clock, a timer will restore."""
        self._require({"name": name, "state": "deadline", "at_ms": at_ms})

    def failed(self, name: str, took_ms: int, why: str) -> None:
        """Say that a step failed."""
        self._write({"name": name, "state": "failed", "took_ms": took_ms, "why": why})

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _require(self, line: JsonValue) -> None:
        self._write(line)
        if self._required and self._failure is not None:
            raise self._failure

    def _write(self, line: JsonValue) -> None:
        if self._writer is None:
            return
        try:
            self._writer.write(encode(line) + b"\n")
        except Failed as error:
            self._failure = error
            self.close()


class JournalReader:
    """Read an op's journal while it grows: what was read before is not parsed again."""

    def __init__(self, op: OpFolder) -> None:
        self._op = op
        self._read_bytes = dict.fromkeys(JOURNALS, 0)

    def new_lines(self) -> list[dict[str, JsonValue]]:
        """Return the whole lines that came since the last call."""
        lines: list[dict[str, JsonValue]] = []
        for name in JOURNALS:
            raw = self._op.read(name) or b""
            # A journal that began anew is shorter than what was read of the one before.
            begin = self._read_bytes[name] if len(raw) >= self._read_bytes[name] else 0
            # What follows the last line feed is still being written.
            end = raw.rfind(b"\n") + 1
            lines += _parsed(raw[begin:end], name)
            self._read_bytes[name] = max(begin, end)
        return lines


def read_journal(op: OpFolder) -> list[dict[str, JsonValue]]:
    """Return all whole lines of an op's journal."""
    return JournalReader(op).new_lines()


def _parsed(raw: bytes, name: str) -> list[dict[str, JsonValue]]:
    lines: list[dict[str, JsonValue]] = []
    for line in raw.split(b"\n")[:-1]:
        try:
            value = decode_foreign(line, limits=DEFAULT_LIMITS, where=name)
        except Refused:
            continue
        if isinstance(value, dict):
            lines.append(value)
    return lines


def finished_steps(lines: Iterable[dict[str, JsonValue]]) -> tuple[Step, ...]:
    """Return the steps that ended well, as a receipt lists them."""
    steps = []
    for line in lines:
        match line:
            case {"name": str(name), "state": "done", "took_ms": int(took_ms), **rest}:
                limit_ms = rest.get("limit_ms")
                steps.append(
                    Step(
                        name=name,
                        took_ms=took_ms,
                        limit_ms=limit_ms if isinstance(limit_ms, int) else None,
                    )
                )
    return tuple(steps)
