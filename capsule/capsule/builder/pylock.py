"""Choose wheels for a target from a `pylock.toml`.

The lock lists every file with its digests, so the wheel is chosen here: the best tag that the
target takes. Addresses in the lock are ignored on purpose: the index is the configuration of
whoever fetches, and the digest says whether it is the same file.

Source: PEP 751; the pylock.toml specification of the Python Packaging User Guide.
"""

import re
import tomllib
from typing import Final

from packaging.pylock import Package, Pylock, PylockValidationError
from packaging.utils import canonicalize_name

from capsule.builder.target import Target
from capsule.builder.wheels import Wanted, check_file, unfit
from capsule_manifest.errors import Refused

__all__ = ["parse_pylock"]

_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_OTHER_FORMS: Final = ("vcs", "directory", "archive")


def parse_pylock(raw: bytes, target: Target, *, where: str) -> tuple[Wanted, ...]:
    """Return the wheels that the lock has for the target, sorted by name. Extras are not asked for.

    Raises:
        Refused: `requirements-invalid`, `requirement-without-hash`, `requirement-editable`,
            `wheel-is-sdist`, `wheel-unfit`, `wheel-name-invalid`, `marker-unknowable`.
    """
    try:
        lock = Pylock.from_dict(tomllib.loads(raw.decode()))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, PylockValidationError) as error:
        raise _invalid("the file is no pylock", "PEP 751, lock-version 1.0", error, where) from None
    _check_environments(lock, target, where)
    groups = frozenset(str(group) for group in lock.default_groups or ())
    wanted: dict[str, Wanted] = {}
    for package in lock.packages:
        place = f"{where}: {package.name}"
        if not target.holds_in_lock(package.marker, where=place, groups=groups):
            continue
        if package.name in wanted:
            raise _invalid(
                "two packages of one name hold on one target", "one", package.name, place
            )
        wanted[package.name] = _choose(package, target, place)
    return tuple(wanted[name] for name in sorted(wanted))


def _check_environments(lock: Pylock, target: Target, where: str) -> None:
    if lock.requires_python is not None and not target.accepts_python(str(lock.requires_python)):
        raise _invalid(
            "the lock is for another Python", target.platform.python, lock.requires_python, where
        )
    markers = lock.environments or ()
    if markers and not any(target.holds(marker, where=where) for marker in markers):
        raise _invalid(
            "the lock is for other environments",
            target.description,
            "; ".join(str(marker) for marker in markers),
            where,
        )


def _choose(package: Package, target: Target, where: str) -> Wanted:
    if package.directory is not None and package.directory.editable:
        raise Refused(
            "requirement-editable",
            "a package is an editable folder",
            expected="a wheel",
            got=package.directory.path,
            where=where,
        )
    for form in _OTHER_FORMS:
        if getattr(package, form) is not None:
            raise _invalid(f"a package comes from {form}", "wheels", package.name, where)
    if package.version is None:
        raise _invalid("a package has no version", "a version", "none", where)
    if package.requires_python and not target.accepts_python(str(package.requires_python)):
        raise _invalid(
            "a package is for another Python",
            target.platform.python,
            package.requires_python,
            where,
        )
    name = canonicalize_name(package.name)
    version = str(package.version)
    anything = Wanted(name=name, version=version, sha256=frozenset(), where=where)
    best: tuple[int, str, str, str | None] | None = None
    for wheel in package.wheels or ():
        try:
            rank = check_file(wheel.filename, name, version, target, where=where)
        except Refused as error:
            if error.error_id != "wheel-unfit":
                raise
            continue
        digest = wheel.hashes.get("sha256")
        if digest is None or not _SHA256.fullmatch(digest):
            raise Refused(
                "requirement-without-hash",
                f"{wheel.filename} has no SHA-256",
                expected="hashes.sha256, 64 lower-case hex digits",
                got=", ".join(sorted(wheel.hashes)),
                where=where,
            )
        candidate = (rank, wheel.filename, digest, wheel.path)
        best = candidate if best is None else min(best, candidate, key=lambda item: item[:2])
    if best is None:
        files = [wheel.filename for wheel in package.wheels or ()]
        if package.sdist is not None:
            files.append(package.sdist.filename)
        raise unfit(anything, files, target)
    _, file, sha256, path = best
    return Wanted(
        name=name, version=version, sha256=frozenset({sha256}), where=where, file=file, path=path
    )


def _invalid(what: str, expected: object, got: object, where: str) -> Refused:
    return Refused("requirements-invalid", what, expected=expected, got=got, where=where)
