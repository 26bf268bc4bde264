"""Choose wheels for a target from locked requirements; wheels only, each named by its digest.

`Wanted` is one distribution that the target needs, with the digests that its lock allows. It comes
from hash-locked requirements here, or from a `pylock.toml` in `pylock`. Markers and tags are those
of the target, never of the machine that builds. Nothing here touches the network.

Source: the requirements file format of pip; PEP 427, PEP 440, PEP 508.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

from capsule.builder.lockfile import WheelPin, WheelSet
from capsule.builder.target import Target
from capsule_manifest.errors import Refused

__all__ = [
    "Wanted",
    "check_file",
    "check_pins",
    "input_digest",
    "make_pin",
    "parse_requirements",
    "pinned",
    "read_locked",
    "unfit",
    "without_addresses",
]

_SIZE_BYTES_MAX: Final = 16 * 1024 * 1024
_HASH_OPTION: Final = re.compile(r"\s--hash[=\s]\s*(\S+)")
_SHA256: Final = re.compile(r"sha256:([0-9a-f]{64})")
_COMMENT: Final = re.compile(r"(^|\s)#.*$")
_ARCHIVE: Final = re.compile(r"\.(tar\.(gz|bz2|xz)|tgz|zip)$", re.IGNORECASE)
_WITH_ADDRESS: Final = re.compile(r"[a-z][a-z0-9+.-]*://\S+", re.IGNORECASE)
_ADDRESS: Final = re.compile(r"^([a-z][a-z0-9+.-]*:|\.{0,2}/|file:)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One distribution that a target needs: any file of `version` with one of these digests.

    `name` is normalised, `sha256` are hex digits; none means that no digest is known yet, and
    whatever is fetched is pinned, which only `capsule lock` does, for a tool's wheel. `file` is
    known if the lock chose one already; `path` is where a pylock keeps it, relative to the pylock.
    """

    name: str
    version: str
    sha256: frozenset[str]
    where: str
    file: str | None = None
    path: str | None = None


def read_locked(path: Path) -> bytes:
    """Return the bytes of a lock that a component names.

    Raises:
        Refused: `requirements-missing`, `requirements-invalid` if it is too large.
    """
    try:
        with path.open("rb") as stream:
            raw = stream.read(_SIZE_BYTES_MAX + 1)
    except OSError as error:
        raise Refused(
            "requirements-missing", "a file with locked requirements can't be read", where=path
        ) from error
    if len(raw) > _SIZE_BYTES_MAX:
        raise _invalid("the file is too large", f"{_SIZE_BYTES_MAX} bytes", "more", str(path))
    return raw


def input_digest(raw: bytes) -> str:
    """Return what `release.lock` remembers of the requirements that its pins answer."""
    return hashlib.sha256(raw).hexdigest()


def parse_requirements(raw: bytes, target: Target, *, where: str) -> tuple[Wanted, ...]:
    """Return what hash-locked requirements ask for on the target, sorted by name.

    Raises:
        Refused: `requirements-invalid`, `requirement-without-hash`, `requirement-not-pinned`,
            `requirement-editable`, `wheel-is-sdist`, `marker-unknowable`.
    """
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise _invalid("the file is not text", "UTF-8", error, where) from None
    wanted: dict[str, Wanted] = {}
    for number, line in _logical_lines(text):
        place = f"{where}:{number}"
        item = _parse_line(line, target, place)
        if item is None:
            continue
        if item.name in wanted:
            raise _invalid(
                "two requirements for one name hold on one target",
                f"one version of {item.name} for {target.name}",
                f"{wanted[item.name].version} and {item.version}",
                place,
            )
        wanted[item.name] = item
    return tuple(wanted[name] for name in sorted(wanted))


def check_file(file: str, name: str, version: str, target: Target, *, where: str) -> int:
    """Refuse a file that is no wheel of this distribution for the target; return its rank.

    Raises:
        Refused: `wheel-is-sdist`, `wheel-name-invalid`, `wheel-unfit`.
    """
    if _ARCHIVE.search(file):
        raise _is_sdist(file, where)
    try:
        file_name, file_version, _, tags = parse_wheel_filename(file)
    except InvalidWheelFilename as error:
        raise Refused(
            "wheel-name-invalid", "a file is not named as a wheel is", got=file, where=where
        ) from error
    if file_name != name or not _is_version(file_version, version):
        raise Refused(
            "wheel-name-invalid",
            "a wheel is of another distribution or version",
            expected=f"{name} {version}",
            got=file,
            where=where,
        )
    fit = target.fit(tags)
    if fit.rank is None:
        raise Refused(
            "wheel-unfit",
            f"{file} {fit.reason}",
            expected=f"{fit.expected}, for platform {target.name}",
            got=fit.got,
            where=where,
        )
    return fit.rank


def unfit(wanted: Wanted, files: Iterable[str], target: Target) -> Refused:
    """Return why none of the files that exist for a distribution can be used.

    `files` are names of wheels and source distributions, as an index lists them.
    """
    wheels: list[str] = []
    sdists: list[str] = []
    for file in sorted(set(files)):
        if file.endswith(".whl"):
            if _is_of(file, wanted):
                wheels.append(file)
        elif _is_sdist_of(file, wanted):
            sdists.append(file)
    reasons = []
    for file in wheels:
        try:
            check_file(file, wanted.name, wanted.version, target, where=wanted.where)
        except Refused as error:
            reasons.append(error)
    if reasons:
        # A wheel for the right machine says more than one for another system.
        return max(reasons, key=lambda error: "glibc" in error.got)
    if sdists and not wheels:
        return _is_sdist(sdists[0], wanted.where)
    return Refused(
        "wheel-not-found",
        f"no wheel of {wanted.name} {wanted.version} has one of the locked digests",
        expected=f"a wheel for {target.description}",
        got=", ".join(wheels) or "no file at all",
        where=wanted.where,
    )


def check_pins(
    wanted: Sequence[Wanted], pins: WheelSet, target: Target, *, input_sha256: str, where: str
) -> None:
    """Refuse pins that do not answer these requirements for this target, exactly.

    Raises:
        Refused: `lock-stale`, `wheel-is-sdist`, `wheel-name-invalid`, `wheel-unfit`.
    """
    if pins.input_sha256 != input_sha256:
        raise _stale("the requirements changed", input_sha256, pins.input_sha256, where)
    if pins.target != target.description:
        raise _stale("the platform changed", target.description, pins.target, where)
    by_name = {pin.name: pin for pin in pins.wheels}
    if len(by_name) != len(pins.wheels) or set(by_name) != {item.name for item in wanted}:
        names = ", ".join(sorted(item.name for item in wanted))
        raise _stale("it pins other distributions", names, ", ".join(sorted(by_name)), where)
    for item in wanted:
        pin = by_name[item.name]
        if item.sha256 and pin.sha256 not in item.sha256:
            allowed = ", ".join(sorted(item.sha256))
            raise _stale(f"it pins another {item.name}", allowed, pin.sha256, where)
        check_file(pin.file, item.name, item.version, target, where=where)


def pinned(wanted: Sequence[Wanted], pins: Sequence[WheelPin]) -> tuple[Wanted, ...]:
    """Return `wanted` narrowed to exactly the files that `check_pins` found to answer it."""
    by_name = {pin.name: pin for pin in pins}
    return tuple(
        replace(item, sha256=frozenset({by_name[item.name].sha256}), file=by_name[item.name].file)
        for item in wanted
    )


def make_pin(item: Wanted, file: str, sha256: str, size_bytes: int) -> WheelPin:
    """Return the pin of a wheel that was checked against `item`, with the version of its name."""
    _, version, _, _ = parse_wheel_filename(file)
    return WheelPin(
        name=item.name, version=str(version), file=file, sha256=sha256, size_bytes=size_bytes
    )


def without_addresses(text: str) -> str:
    """Return `text` for a message: an address may hold a password."""
    return _WITH_ADDRESS.sub("<address>", text)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines with the number of their first line: continued ones joined, comments removed."""
    pending = ""
    first = 0
    for number, raw_line in enumerate(text.splitlines(), 1):
        line = raw_line if pending else raw_line.lstrip("\ufeff")
        is_comment = line.lstrip().startswith("#")
        first = first or number
        if line.endswith("\\") and not is_comment:
            pending += line[:-1] + " "
            continue
        joined = _COMMENT.sub("", pending + ("" if is_comment else line)).strip()
        if joined:
            yield first, joined
        pending, first = "", 0
    if pending.strip():
        yield first, _COMMENT.sub("", pending).strip()


def _parse_line(line: str, target: Target, where: str) -> Wanted | None:
    digests = _HASH_OPTION.findall(line)
    text = _HASH_OPTION.sub("", line).strip()
    _check_form(text, where)
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        raise _invalid("a line is no requirement", "name==version", error, where) from None
    if requirement.url is not None:
        raise _invalid(
            "a requirement names an address", "name==version with hashes", requirement.name, where
        )
    # A line is checked whole before its marker is asked: a lock is right or wrong for everyone.
    version = _pinned_version(requirement, where)
    matches = [_SHA256.fullmatch(digest) for digest in digests]
    sha256 = frozenset(match[1] for match in matches if match)
    if not sha256:
        raise Refused(
            "requirement-without-hash",
            f"{requirement.name} has no SHA-256",
            expected="--hash=sha256:<64 hex digits>",
            got=", ".join(digests) or "no --hash",
            where=where,
        )
    if not target.holds(requirement.marker, where=where):
        return None
    return Wanted(
        name=canonicalize_name(requirement.name), version=version, sha256=sha256, where=where
    )


def _check_form(text: str, where: str) -> None:
    """Refuse what is no requirement by name: options, editables, files and addresses."""
    if text.startswith(("-e ", "-e.", "-e/", "--editable")):
        raise Refused(
            "requirement-editable",
            "a requirement is an editable folder",
            expected="a wheel",
            got=text,
            where=where,
        )
    if text.startswith("-"):
        raise _invalid(
            "the file holds an option: an index is configured, and files are not included",
            "requirements only",
            re.split(r"[=\s]", text, maxsplit=1)[0],
            where,
        )
    first = text.partition(";")[0].strip()
    if _ARCHIVE.search(first):
        raise _is_sdist(first.rpartition("/")[2], where)
    if _ADDRESS.match(first) or first.endswith(".whl"):
        raise _invalid("a requirement is a file or an address", "name==version", first, where)


def _pinned_version(requirement: Requirement, where: str) -> str:
    pins = list(requirement.specifier)
    if len(pins) == 1 and pins[0].operator in {"==", "==="}:
        try:
            return str(Version(pins[0].version))
        except InvalidVersion:
            pass
    raise Refused(
        "requirement-not-pinned",
        f"{requirement.name} is not pinned to one version",
        expected="name==version",
        got=requirement,
        where=where,
    )


def _is_version(version: Version, pinned_version: str) -> bool:
    """Say whether a file of `version` answers `==pinned_version`: `1.0+cpu` answers `==1.0` too.

    Source: the version specifiers specification, "Version matching".
    """
    asked = Version(pinned_version)
    return version == asked or (asked.local is None and Version(version.public) == asked)


def _is_of(file: str, wanted: Wanted) -> bool:
    try:
        name, version, _, _ = parse_wheel_filename(file)
    except InvalidWheelFilename:
        return False
    return name == wanted.name and _is_version(version, wanted.version)


def _is_sdist_of(file: str, wanted: Wanted) -> bool:
    try:
        name, version = parse_sdist_filename(file)
    except InvalidSdistFilename:
        return False
    return name == wanted.name and version == Version(wanted.version)


def _is_sdist(file: str, where: str) -> Refused:
    return Refused(
        "wheel-is-sdist",
        "only a source distribution exists, and building one runs its code",
        expected="a wheel",
        got=file,
        where=where,
    )


def _stale(what: str, expected: str, got: str, where: str) -> Refused:
    return Refused(
        "lock-stale", f"the lock is stale: {what}", expected=expected, got=got, where=where
    )


def _invalid(what: str, expected: object, got: object, where: str) -> Refused:
    shown = without_addresses(str(got))
    return Refused("requirements-invalid", what, expected=expected, got=shown, where=where)
