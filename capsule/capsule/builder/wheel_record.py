"""Compare every member of a wheel with RECORD, on several threads, and learn all of each at once.

Source: the binary distribution format of the Python Packaging User Guide, "The .dist-info
directory"; PEP 376, "RECORD".
"""

import base64
import csv
import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Final

from capsule.builder.examine import Examined, examine_bytes, examine_chunks
from capsule.builder.lockfile import WheelPin
from capsule.builder.solid import CHUNK_BYTES
from capsule.builder.spool import Spool, SpoolWriter
from capsule.builder.zip_view import OpenZip, ZipView
from capsule_manifest.errors import Refused
from capsule_manifest.paths import escape

__all__ = ["Checked", "begin_check"]

_RECORD_BYTES_MAX: Final = 16 * 1024 * 1024
_GROUP_BYTES: Final = 8 * 1024 * 1024
_GROUP_FILES_MAX: Final = 256
_ALGORITHMS: Final = frozenset({"sha256", "sha384", "sha512"})
_SIGNATURES: Final = ("RECORD.jws", "RECORD.p7s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A member that is what RECORD says. `kept` is where its content is in the spool, if it is."""

    name: str
    examined: Examined
    kept: int | None


def begin_check(
    view: ZipView, dist_info: str, pin: WheelPin, spool: Spool | None, threads: Executor
) -> Sequence[Future[list[Checked]]]:
    """Compare RECORD with the directory, and have `threads` compare it with all members.

    Raises:
        Refused: `wheel-record-mismatch`, `zip-refused`; of members, the futures do.
    """
    record = f"{dist_info}/RECORD"
    unlisted = {record, *(f"{dist_info}/{name}" for name in _SIGNATURES)}
    rows = _read_record(view, record, pin)
    # RECORD and its signatures can't list their own digest.
    missing = sorted(view.members.keys() - rows.keys() - unlisted)
    extra = sorted(rows.keys() - view.members.keys())
    if missing or extra:
        raise _mismatch(
            "RECORD and the archive name different files",
            "the same files",
            ", ".join(escape(name) for name in (missing + extra)[:5]),
            pin,
        )
    names = sorted(view.members.keys() - unlisted, key=lambda name: view.members[name].data_offset)
    group_check = _GroupCheck(view=view, rows=rows, pin=pin, spool=spool)
    return [threads.submit(group_check, group) for group in _groups(names, view)]


def _groups(names: Sequence[str], view: ZipView) -> list[list[str]]:
    """Cut `names` into groups, one for one thread at a time, the largest first.

    A large file costs as much as many small ones, and must not be begun when all else is done.
    """
    groups: list[tuple[int, list[str]]] = []
    group: list[str] = []
    size_bytes = 0
    for name in names:
        if size_bytes > _GROUP_BYTES or len(group) >= _GROUP_FILES_MAX:
            groups.append((size_bytes, group))
            group, size_bytes = [], 0
        group.append(name)
        size_bytes += view.members[name].size_bytes
    groups.append((size_bytes, group))
    return [group for _, group in sorted(groups, key=lambda item: -item[0])]


@dataclass(frozen=True, slots=True, kw_only=True)
class _GroupCheck:
    """Check some members that lie one after another in the archive."""

    view: ZipView
    rows: Mapping[str, tuple[str, str]]
    pin: WheelPin
    spool: Spool | None

    def __call__(self, names: Sequence[str]) -> list[Checked]:
        size_bytes = sum(self.view.members[name].size_bytes for name in names)
        writer = self.spool.writer(size_bytes) if self.spool is not None else None
        found: list[tuple[str, Examined, int]] = []
        with self.view.opened() as archive:
            for name in names:
                offset = writer.offset if writer is not None else 0
                examined = self._examined(archive, name, writer)
                self._compare(archive, name, examined)
                found.append((name, examined, offset))
        written = -1
        if writer is not None:
            writer.flush()
            written = writer.written
        return [
            Checked(
                name=name,
                examined=examined,
                kept=offset if offset + examined.size_bytes <= written else None,
            )
            for name, examined, offset in found
        ]

    def _examined(self, archive: OpenZip, name: str, writer: SpoolWriter | None) -> Examined:
        content = archive.read_short(name)
        put = writer.put if writer is not None else None
        if content is None:
            chunks = archive.chunks(name, CHUNK_BYTES)
            return examine_chunks(chunks, f"{self.pin.file}: {name}", put)
        if put is not None:
            put(content)
        return examine_bytes(content)

    def _compare(self, archive: OpenZip, name: str, examined: Examined) -> None:
        row = self.rows[name]
        algorithm, _, expected = row[0].partition("=")
        if algorithm not in _ALGORITHMS:
            raise _mismatch(
                f"{escape(name)} has no strong digest",
                ", ".join(sorted(_ALGORITHMS)),
                algorithm,
                self.pin,
            )
        digest = examined.sha256
        if algorithm != "sha256":
            other = hashlib.new(algorithm)
            for chunk in archive.chunks(name, CHUNK_BYTES):
                other.update(chunk)
            digest = other.digest()
        got = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        size_bytes = str(examined.size_bytes)
        # The size may be left out; the digest can't.
        if got != expected or row[1] not in {"", size_bytes}:
            raise _mismatch(
                f"{escape(name)} is not what RECORD says",
                f"{row[1]} bytes, {row[0]}",
                f"{size_bytes} bytes, {algorithm}={got}",
                self.pin,
            )


def _read_record(view: ZipView, record: str, pin: WheelPin) -> dict[str, tuple[str, str]]:
    if record not in view.members:
        raise _mismatch("RECORD is missing", record, "none", pin)
    try:
        text = view.read(record, _RECORD_BYTES_MAX).decode()
        lines = list(csv.reader(text.splitlines(), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise _mismatch("RECORD is malformed", "CSV in UTF-8", error, pin) from None
    rows: dict[str, tuple[str, str]] = {}
    for line in lines:
        if not line:
            continue
        if len(line) != 3 or line[0] in rows:
            raise _mismatch("a row is malformed or given twice", "3 fields", escape(line[0]), pin)
        rows[line[0]] = (line[1], line[2])
    return rows


def _mismatch(what: str, expected: object, got: object, pin: WheelPin) -> Refused:
    return Refused("wheel-record-mismatch", what, expected=expected, got=got, where=pin.file)
