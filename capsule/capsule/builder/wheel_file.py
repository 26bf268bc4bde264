"""Read one wheel and prove that it is what its own RECORD says, nothing missing and nothing more.

Source: PEP 427; the binary distribution format and the core metadata specification of the Python
Packaging User Guide.
"""

import base64
import csv
import hashlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from email.message import Message
from email.parser import BytesParser
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from capsule.builder.examine import Examined, examine
from capsule.builder.lockfile import WheelPin
from capsule.builder.remembered import Memory
from capsule.builder.spool import Spool
from capsule.builder.wheel_facts import WheelFacts, decode_facts, encode_facts
from capsule.builder.zip_view import ZipView
from capsule_manifest.errors import Refused
from capsule_manifest.paths import escape

__all__ = ["Wheel", "read_wheel"]

_METADATA_BYTES_MAX: Final = 16 * 1024 * 1024
_CHUNK_BYTES: Final = 1024 * 1024
_GROUP_BYTES: Final = 8 * 1024 * 1024
_GROUP_FILES_MAX: Final = 256
_THREADS: Final = min(4, os.cpu_count() or 1)
_ALGORITHMS: Final = frozenset({"sha256", "sha384", "sha512"})
_SIGNATURES: Final = ("RECORD.jws", "RECORD.p7s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """A checked wheel. `examined` says what each file is; `dist_info` is its metadata folder.

    `requires_python` is empty if the wheel says nothing. `kept` says where in `spool` the content
    of files is that was decompressed when the wheel was checked.
    """

    pin: WheelPin
    view: ZipView
    dist_info: str
    examined: Mapping[str, Examined]
    requires_python: str
    requires: tuple[Requirement, ...]
    spool: Spool | None = None
    kept: Mapping[str, int] = field(default_factory=dict)

    def open(self, name: str) -> BinaryIO:
        """Return a file's content, from where it was decompressed to if it was.

        Raises:
            Refused: `zip-refused`, while reading or before.
        """
        if self.spool is not None and name in self.kept:
            return self.spool.open(self.kept[name], self.examined[name].size_bytes)
        return self.view.open(name)

    def read_metadata(self, name: str) -> bytes | None:
        """Return a file of the metadata folder, or None if it is not there.

        Raises:
            Refused: `zip-refused` if it is too large.
        """
        path = f"{self.dist_info}/{name}"
        return self.view.read(path, _METADATA_BYTES_MAX) if path in self.examined else None


def read_wheel(
    path: Path, pin: WheelPin, memory: Memory | None = None, spool: Spool | None = None
) -> Wheel:
    """Read all of the wheel at `path` once, which must be the one that `pin` names.

    If `memory` knows the file as that one and what is in it, nothing is read. What is read is kept
    in `spool`, for who wants it again.

    Raises:
        Refused: `wheel-digest-mismatch`, `zip-refused`, `path-invalid`, `wheel-metadata-invalid`,
            `wheel-record-mismatch`.
    """
    memory = memory or Memory()
    _check_digest(path, pin, memory)
    key = f"{pin.sha256} {pin.name} {pin.version} {pin.file}"
    known = memory.recall("wheel", key)
    if known is not None:
        return _known_wheel(path, pin, decode_facts(known))
    wheel = _read_wheel(path, pin, spool)
    memory.keep("wheel", key, encode_facts(_facts_of(wheel)))
    return wheel


def _known_wheel(path: Path, pin: WheelPin, facts: WheelFacts) -> Wheel:
    return Wheel(
        pin=pin,
        view=ZipView(path, known=facts.members),
        dist_info=facts.dist_info,
        examined=facts.examined,
        requires_python=facts.requires_python,
        requires=tuple(map(Requirement, facts.requires)),
    )


def _facts_of(wheel: Wheel) -> WheelFacts:
    return WheelFacts(
        dist_info=wheel.dist_info,
        requires_python=wheel.requires_python,
        requires=tuple(map(str, wheel.requires)),
        members=wheel.view.members,
        examined=wheel.examined,
    )


def _read_wheel(path: Path, pin: WheelPin, spool: Spool | None) -> Wheel:
    view = ZipView(path)
    dist_info = _find_dist_info(view, pin)
    wheel = _headers(view, f"{dist_info}/WHEEL", pin)
    wheel_version = str(wheel.get("Wheel-Version", "none"))
    if not wheel_version.startswith("1."):
        raise _bad_metadata("an unknown wheel format", "1.x", wheel_version, pin)
    metadata = _headers(view, f"{dist_info}/METADATA", pin)
    _check_identity(metadata, pin)
    checked = _check_record(view, dist_info, pin, spool)
    return Wheel(
        pin=pin,
        view=view,
        dist_info=dist_info,
        examined=MappingProxyType({name: item for name, (item, _) in checked.items()}),
        requires_python=str(metadata.get("Requires-Python", "")),
        requires=_requires(metadata, pin),
        spool=spool,
        kept={name: offset for name, (_, offset) in checked.items() if offset is not None},
    )


def _check_digest(path: Path, pin: WheelPin, memory: Memory) -> None:
    state = memory.state(path)
    if memory.is_proved(path, pin.sha256) and path.stat().st_size == pin.size_bytes:
        return
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        size_bytes = stream.tell()
    if (digest, size_bytes) != (pin.sha256, pin.size_bytes):
        raise Refused(
            "wheel-digest-mismatch",
            "a wheel is not the one that is pinned",
            expected=f"{pin.size_bytes} bytes, sha256:{pin.sha256}",
            got=f"{size_bytes} bytes, sha256:{digest}",
            where=pin.file,
        )
    memory.prove(path, digest, state)


def _find_dist_info(view: ZipView, pin: WheelPin) -> str:
    # Compared without case: on some systems, and for some tools, these are one folder.
    folders = {name.partition("/")[0] for name in view.members if "/" in name}
    found = sorted(name for name in folders if name.lower().endswith(".dist-info"))
    if len(found) != 1 or not found[0].endswith(".dist-info"):
        raise _bad_metadata("the metadata folder is ambiguous", "one", ", ".join(found), pin)
    (dist_info,) = found
    inside = [name for name in view.members if name.lower().startswith(f"{dist_info.lower()}/")]
    if len({name.lower() for name in inside}) != len(inside):
        raise _bad_metadata("metadata files differ in case only", "one of each", "two", pin)
    name, _, version = dist_info.removesuffix(".dist-info").partition("-")
    _check_name_version(name, version, pin)
    return dist_info


def _check_identity(metadata: Message, pin: WheelPin) -> None:
    for header in ("Name", "Version"):
        values = metadata.get_all(header, [])
        if len(values) != 1:
            raise _bad_metadata(f"{header} is not given once", "one", len(values), pin)
    _check_name_version(str(metadata["Name"]), str(metadata["Version"]), pin)


def _check_name_version(name: str, version: str, pin: WheelPin) -> None:
    try:
        same = Version(version) == Version(pin.version)
    except InvalidVersion:
        same = False
    if not same or canonicalize_name(name) != pin.name:
        raise _bad_metadata(
            "a wheel calls itself something else",
            f"{pin.name} {pin.version}",
            f"{escape(name)} {escape(version)}",
            pin,
        )


def _requires(metadata: Message, pin: WheelPin) -> tuple[Requirement, ...]:
    try:
        return tuple(Requirement(str(text)) for text in metadata.get_all("Requires-Dist", []))
    except InvalidRequirement as error:
        raise _bad_metadata("Requires-Dist is malformed", "PEP 508", error, pin) from None


def _headers(view: ZipView, name: str, pin: WheelPin) -> Message:
    if name not in view.members:
        raise _bad_metadata("a metadata file is missing", name, "none", pin)
    return BytesParser().parsebytes(view.read(name, _METADATA_BYTES_MAX), headersonly=True)


def _check_record(
    view: ZipView, dist_info: str, pin: WheelPin, spool: Spool | None
) -> dict[str, tuple[Examined, int | None]]:
    """Compare every member with RECORD; return what each file is, and its place in the spool."""
    record = f"{dist_info}/RECORD"
    unlisted = {record, *(f"{dist_info}/{name}" for name in _SIGNATURES)}
    rows = _read_record(view, record, pin)
    # RECORD and its signatures can't list their own digest.
    missing = sorted(view.members.keys() - rows.keys() - unlisted)
    extra = sorted(rows.keys() - view.members.keys())
    if missing or extra:
        raise _bad_record(
            "RECORD and the archive name different files",
            "the same files",
            ", ".join(escape(name) for name in (missing + extra)[:5]),
            pin,
        )
    names = sorted(view.members.keys() - unlisted, key=lambda name: view.members[name].data_offset)
    # Whole runs of small files for each thread; a large one costs as much as many of them.
    groups = _groups(names, view)
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="wheel") as pool:
        found = pool.map(
            lambda group: [
                (name, _check_member(view, name, rows[name], pin, spool)) for name in group
            ],
            groups,
        )
        return {name: member for group in found for name, member in group}


def _groups(names: Sequence[str], view: ZipView) -> list[list[str]]:
    groups: list[list[str]] = [[]]
    size_bytes = 0
    for name in names:
        if size_bytes > _GROUP_BYTES or len(groups[-1]) >= _GROUP_FILES_MAX:
            groups.append([])
            size_bytes = 0
        groups[-1].append(name)
        size_bytes += view.members[name].size_bytes
    return groups


def _read_record(view: ZipView, record: str, pin: WheelPin) -> dict[str, tuple[str, str]]:
    if record not in view.members:
        raise _bad_record("RECORD is missing", record, "none", pin)
    try:
        text = view.read(record, _METADATA_BYTES_MAX).decode()
        lines = list(csv.reader(text.splitlines(), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise _bad_record("RECORD is malformed", "CSV in UTF-8", error, pin) from None
    rows: dict[str, tuple[str, str]] = {}
    for line in lines:
        if not line:
            continue
        if len(line) != 3 or line[0] in rows:
            raise _bad_record("a row is malformed or given twice", "3 fields", escape(line[0]), pin)
        rows[line[0]] = (line[1], line[2])
    return rows


def _check_member(
    view: ZipView, name: str, row: tuple[str, str], pin: WheelPin, spool: Spool | None
) -> tuple[Examined, int | None]:
    algorithm, _, expected = row[0].partition("=")
    if algorithm not in _ALGORITHMS:
        raise _bad_record(
            f"{escape(name)} has no strong digest", ", ".join(sorted(_ALGORITHMS)), algorithm, pin
        )
    offset, copy = None, None
    if spool is not None:
        offset = spool.reserve(view.members[name].size_bytes)
        copy = spool.copy(offset)
    with view.open(name) as stream:
        examined = examine(stream, f"{pin.file}: {name}", copy)
    digest = examined.sha256
    if algorithm != "sha256":
        with view.open(name) as stream:
            other = hashlib.new(algorithm)
            while chunk := stream.read(_CHUNK_BYTES):
                other.update(chunk)
        digest = other.digest()
    got = base64.urlsafe_b64encode(digest).decode().rstrip("=")
    size_bytes = str(examined.size_bytes)
    # The size may be left out; the digest can't.
    if got != expected or row[1] not in {"", size_bytes}:
        raise _bad_record(
            f"{escape(name)} is not what RECORD says",
            f"{row[1]} bytes, {row[0]}",
            f"{size_bytes} bytes, {algorithm}={got}",
            pin,
        )
    return examined, offset if copy is not None and copy.is_whole else None


def _bad_record(what: str, expected: object, got: object, pin: WheelPin) -> Refused:
    return Refused("wheel-record-mismatch", what, expected=expected, got=got, where=pin.file)


def _bad_metadata(what: str, expected: object, got: object, pin: WheelPin) -> Refused:
    return Refused("wheel-metadata-invalid", what, expected=expected, got=got, where=pin.file)
