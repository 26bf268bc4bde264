"""Read `release.toml`: what a user writes about a release.

The document is checked by pydantic and leaves this module as frozen values. All wrong values are
reported together, each with its path, what was expected and what was found. Nothing is resolved
here: no file but `release.toml` is read.

Source: `docs/reference/release-toml.md`.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pydantic import ValidationError

from capsule.builder.config_document import ReleaseDocument
from capsule.builder.config_issues import Issue, issues_of
from capsule.builder.config_values import (
    ComponentSource,
    FilesSource,
    GitSource,
    ImageSource,
    ManagedFileSource,
    NixOrigin,
    PathOrigin,
    RecoverySource,
    ServiceSource,
    ToolSource,
    UnitSource,
    UrlOrigin,
    WheelOrigin,
    WheelsSource,
)
from capsule_manifest.errors import Refused
from capsule_manifest.release import Budgets, InstallerMinimum, Platform, Role

__all__ = [
    "ComponentSource",
    "FilesSource",
    "GitSource",
    "ImageSource",
    "ManagedFileSource",
    "NixOrigin",
    "PathOrigin",
    "RecoverySource",
    "ReleaseSource",
    "ServiceSource",
    "ToolSource",
    "UnitSource",
    "UrlOrigin",
    "WheelOrigin",
    "WheelsSource",
    "load_release",
    "parse_release",
    "release_schema",
]

_SIZE_BYTES_MAX: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseSource:
    """A checked `release.toml`.

    `folder` holds the file; every path in it is relative to that folder. Components, platforms and
    roles keep the order in which they were written.
    """

    folder: Path
    product: str
    version: str
    release_counter: int
    installer: InstallerMinimum
    platforms: Mapping[str, Platform]
    components: tuple[ComponentSource, ...]
    roles: Mapping[str, Role]
    budgets: Budgets

    def platforms_of(self, component: ComponentSource) -> tuple[str, ...]:
        """Return the platforms that a component is for, sorted; all if it names none."""
        return tuple(sorted(component.platforms or self.platforms))


def load_release(path: Path) -> ReleaseSource:
    """Read and check `release.toml`.

    Raises:
        Refused: `release-missing`, `release-invalid`.
    """
    try:
        with path.open("rb") as stream:
            raw = stream.read(_SIZE_BYTES_MAX + 1)
    except OSError as error:
        raise Refused(
            "release-missing", "a release file can't be read", expected="a file", where=path
        ) from error
    return parse_release(raw, folder=path.parent, where=str(path))


def parse_release(raw: bytes, *, folder: Path, where: str = "release.toml") -> ReleaseSource:
    """Check the bytes of a `release.toml` that lies in `folder`.

    Raises:
        Refused: `release-invalid`. Its causes are the other wrong values, if there are several.
    """
    if len(raw) > _SIZE_BYTES_MAX:
        raise _invalid("the file is too large", f"at most {_SIZE_BYTES_MAX} bytes", "more", where)
    try:
        value = tomllib.loads(raw.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise _invalid("the file is not TOML", "TOML 1.0 in UTF-8", error, where) from None
    document, issues = _validate(value)
    if document is None or issues:
        # Not inside an except block: `from None` would cut off the chain of issues.
        raise _all_issues(issues, where)
    return ReleaseSource(
        folder=folder,
        product=document.product,
        version=document.version,
        release_counter=document.release_counter,
        installer=document.installer.value(),
        platforms=MappingProxyType({n: item.value() for n, item in document.platforms.items()}),
        components=tuple(item.value(name) for name, item in document.components.items()),
        roles=MappingProxyType({n: item.value() for n, item in document.roles.items()}),
        budgets=document.budgets.value(),
    )


def release_schema() -> dict[str, object]:
    """Return the JSON Schema of `release.toml`, for editors."""
    return ReleaseDocument.model_json_schema()


def _validate(value: object) -> tuple[ReleaseDocument | None, list[Issue]]:
    try:
        document = ReleaseDocument.model_validate(value)
    except ValidationError as error:
        return None, issues_of(error)
    return document, document.check()


def _all_issues(issues: list[Issue], where: str) -> Refused:
    """Return the first issue as the error and the others as its chain of causes."""
    errors = []
    for number, issue in enumerate(issues, 1):
        count = f" (issue {number} of {len(issues)})" if len(issues) > 1 else ""
        place = f"{where}: {issue.path}" if issue.path else where
        errors.append(_invalid(issue.what + count, issue.expected, issue.got, place))
    for error, cause in pairwise(errors):
        error.__cause__ = cause
    return errors[0]


def _invalid(what: str, expected: object, got: object, where: str) -> Refused:
    return Refused("release-invalid", what, expected=expected, got=got, where=where)
