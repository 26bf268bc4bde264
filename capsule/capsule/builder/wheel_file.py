"""Read one wheel and prove that it is what its own RECORD says, nothing missing and nothing more.

Source: PEP 427; the binary distribution format and the core metadata specification of the Python
Packaging User Guide.
"""

import base64
import csv
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesParser
from pathlib import Path
from types import MappingProxyType
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from capsule.builder.lockfile import WheelPin
from capsule.builder.zip_view import ZipView
from capsule_manifest.errors import Refused
from capsule_manifest.paths import escape

__all__ = ["Wheel", "read_wheel"]

_METADATA_BYTES_MAX: Final = 16 * 1024 * 1024
_CHUNK_BYTES: Final = 1024 * 1024
_ALGORITHMS: Final = frozenset({"sha256", "sha384", "sha512"})
_SIGNATURES: Final = ("RECORD.jws", "RECORD.p7s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """A checked wheel. `sha256` has the digest of each file; `dist_info` is its metadata folder.

    `requires_python` is empty if the wheel says nothing.
    """

    pin: WheelPin
    view: ZipView
    dist_info: str
    sha256: Mapping[str, bytes]
    requires_python: str
    requires: tuple[Requirement, ...]

    def read_metadata(self, name: str) -> bytes | None:
        """Return a file of the metadata folder, or None if it is not there.

        Raises:
            Refused: `zip-refused` if it is too large.
        """
        path = f"{self.dist_info}/{name}"
        return self.view.read(path, _METADATA_BYTES_MAX) if path in self.sha256 else None


def read_wheel(path: Path, pin: WheelPin) -> Wheel:
    """Read all of the wheel at `path` once, which must be the one that `pin` names.

    Raises:
        Refused: `wheel-digest-mismatch`, `zip-refused`, `path-invalid`, `wheel-metadata-invalid`,
            `wheel-record-mismatch`.
    """
    _check_digest(path, pin)
    view = ZipView(path)
    dist_info = _find_dist_info(view, pin)
    wheel = _headers(view, f"{dist_info}/WHEEL", pin)
    wheel_version = str(wheel.get("Wheel-Version", "none"))
    if not wheel_version.startswith("1."):
        raise _bad_metadata("an unknown wheel format", "1.x", wheel_version, pin)
    metadata = _headers(view, f"{dist_info}/METADATA", pin)
    _check_identity(metadata, pin)
    return Wheel(
        pin=pin,
        view=view,
        dist_info=dist_info,
        sha256=MappingProxyType(_check_record(view, dist_info, pin)),
        requires_python=str(metadata.get("Requires-Python", "")),
        requires=_requires(metadata, pin),
    )


def _check_digest(path: Path, pin: WheelPin) -> None:
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
    for field in ("Name", "Version"):
        values = metadata.get_all(field, [])
        if len(values) != 1:
            raise _bad_metadata(f"{field} is not given once", "one", len(values), pin)
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


def _check_record(view: ZipView, dist_info: str, pin: WheelPin) -> dict[str, bytes]:
    """Compare every member with RECORD; return each file's SHA-256."""
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
    digests = {}
    for name in view.members.keys() - unlisted:
        digests[name] = _check_member(view, name, rows[name], pin)
    return digests


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


def _check_member(view: ZipView, name: str, row: tuple[str, str], pin: WheelPin) -> bytes:
    algorithm, _, expected = row[0].partition("=")
    if algorithm not in _ALGORITHMS:
        raise _bad_record(
            f"{escape(name)} has no strong digest", ", ".join(sorted(_ALGORITHMS)), algorithm, pin
        )
    digest = hashlib.new(algorithm)
    sha256 = digest if algorithm == "sha256" else hashlib.sha256()
    with view.open(name) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            digest.update(chunk)
            if sha256 is not digest:
                sha256.update(chunk)
    got = base64.urlsafe_b64encode(digest.digest()).decode().rstrip("=")
    size_bytes = str(view.members[name].size_bytes)
    # The size may be left out; the digest can't.
    if got != expected or row[1] not in {"", size_bytes}:
        raise _bad_record(
            f"{escape(name)} is not what RECORD says",
            f"{row[1]} bytes, {row[0]}",
            f"{size_bytes} bytes, {algorithm}={got}",
            pin,
        )
    return sha256.digest()


def _bad_record(what: str, expected: object, got: object, pin: WheelPin) -> Refused:
    return Refused("wheel-record-mismatch", what, expected=expected, got=got, where=pin.file)


def _bad_metadata(what: str, expected: object, got: object, pin: WheelPin) -> Refused:
    return Refused("wheel-metadata-invalid", what, expected=expected, got=got, where=pin.file)
