"""Read one wheel and prove that it is what its own RECORD says, nothing missing and nothing more.

Source: PEP 427; the binary distribution format and the core metadata specification of the Python
Packaging User Guide.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from email.message import Message
from email.parser import BytesParser
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from capsule.builder.examine import Examined
from capsule.builder.lockfile import WheelPin
from capsule.builder.remembered import Memory
from capsule.builder.spool import Spool
from capsule.builder.wheel_facts import WheelFacts, decode_facts, encode_facts
from capsule.builder.wheel_record import begin_check
from capsule.builder.zip_view import ZipView
from capsule_manifest.errors import Refused
from capsule_manifest.paths import escape

__all__ = ["Wheel", "read_wheel", "read_wheels"]

_METADATA_BYTES_MAX: Final = 16 * 1024 * 1024
_THREADS: Final = min(4, os.cpu_count() or 1)


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

    Raises:
        Refused: as `read_wheels`.
    """
    (wheel,) = read_wheels([(path, pin)], memory, spool)
    return wheel


def read_wheels(
    found: Iterable[tuple[Path, WheelPin]],
    memory: Memory | None = None,
    spool: Spool | None = None,
) -> tuple[Wheel, ...]:
    """Read each wheel once, which must be the one that its pin names; the next while one is read.

    If `memory` knows a file as that one and what is in it, nothing is read. What is read is kept
    in `spool`, for who wants it again.

    Raises:
        Refused: `wheel-digest-mismatch`, `zip-refused`, `path-invalid`, `wheel-metadata-invalid`,
            `wheel-record-mismatch`.
    """
    memory = memory or Memory()
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="wheel") as threads:
        try:
            begun = [_begin_wheel(path, pin, memory, spool, threads) for path, pin in found]
            return tuple(finish() for finish in begun)
        finally:
            # Of a wheel that is refused the rest is not read.
            threads.shutdown(cancel_futures=True)


def _begin_wheel(
    path: Path, pin: WheelPin, memory: Memory, spool: Spool | None, threads: Executor
) -> Callable[[], Wheel]:
    """Check a wheel's directory and have its members checked; return what waits for that."""
    _check_digest(path, pin, memory)
    key = f"{pin.sha256} {pin.name} {pin.version} {pin.file}"
    known = memory.recall("wheel", key)
    if known is not None:
        return partial(_known_wheel, path, pin, decode_facts(known))
    finish = _begin_reading(path, pin, spool, threads)

    def finish_and_keep() -> Wheel:
        wheel = finish()
        memory.keep("wheel", key, encode_facts(_facts_of(wheel)))
        return wheel

    return finish_and_keep


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


def _begin_reading(
    path: Path, pin: WheelPin, spool: Spool | None, threads: Executor
) -> Callable[[], Wheel]:
    view = ZipView(path)
    dist_info = _find_dist_info(view, pin)
    wheel = _headers(view, f"{dist_info}/WHEEL", pin)
    wheel_version = str(wheel.get("Wheel-Version", "none"))
    if not wheel_version.startswith("1."):
        raise _bad_metadata("an unknown wheel format", "1.x", wheel_version, pin)
    metadata = _headers(view, f"{dist_info}/METADATA", pin)
    _check_identity(metadata, pin)
    requires = _requires(metadata, pin)
    groups = begin_check(view, dist_info, pin, spool, threads)

    def finish() -> Wheel:
        checked = [member for group in groups for member in group.result()]
        return Wheel(
            pin=pin,
            view=view,
            dist_info=dist_info,
            examined=MappingProxyType({member.name: member.examined for member in checked}),
            requires_python=str(metadata.get("Requires-Python", "")),
            requires=requires,
            spool=spool,
            kept={member.name: member.kept for member in checked if member.kept is not None},
        )

    return finish


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


def _bad_metadata(what: str, expected: object, got: object, pin: WheelPin) -> Refused:
    return Refused("wheel-metadata-invalid", what, expected=expected, got=got, where=pin.file)
