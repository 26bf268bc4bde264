"""Find secrets before they are signed: an immutable file on every host can't be called back.

Only patterns that are hardly ever anything else are looked for, in every file that is text. What is
found and meant (a test key, an example) is waived in a file beside `release.toml`, for a reason and
until a day.
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from capsule.builder.packer import Listing
from capsule.builder.secret_rules import scan_text
from capsule_manifest.digest import ObjectId
from capsule_manifest.errors import Refused
from capsule_manifest.paths import escape
from capsule_manifest.release import Component

__all__ = [
    "Finding",
    "Waiver",
    "check_secrets",
    "find_secrets",
    "load_waivers",
    "scan_text",
    "waivers_schema",
]

_WAIVERS_BYTES_MAX: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Finding:
    """Something that looks like a secret. `line` counts from 1; the secret itself isn't kept."""

    component: str
    path: str
    line: int
    rule: str


class Waiver(BaseModel):
    """One entry of the waiver file: what is meant to be there, why, and the last day of it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    component: str
    path: str = Field(description="A path in the component, or a pattern with * and ?")
    rule: str
    reason: str = Field(min_length=8)
    until: date

    def covers(self, finding: Finding) -> bool:
        """Say whether the finding is what this waiver names."""
        return (
            self.component == finding.component
            and self.rule == finding.rule
            and fnmatchcase(finding.path, self.path)
        )


class _WaiverFile(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    waivers: list[Waiver]


def load_waivers(path: Path) -> tuple[Waiver, ...]:
    """Read the waiver file; none if it is not there.

    Raises:
        Refused: `waivers-invalid`.
    """
    try:
        with path.open("rb") as stream:
            raw = stream.read(_WAIVERS_BYTES_MAX + 1)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise _invalid("the file can't be read", error, path) from error
    if len(raw) > _WAIVERS_BYTES_MAX:
        raise _invalid("the file is too large", f"over {_WAIVERS_BYTES_MAX} bytes", path)
    try:
        return tuple(_WaiverFile.model_validate(tomllib.loads(raw.decode())).waivers)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise _invalid("the file is not TOML", error, path) from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise _invalid(f"{place}: {first['msg']}", repr(first["input"]), path) from None


def waivers_schema() -> dict[str, object]:
    """Return the JSON Schema of the waiver file."""
    return _WaiverFile.model_json_schema()


def check_secrets(
    findings: Iterable[Finding], waivers: Sequence[Waiver], *, today: date
) -> tuple[Finding, ...]:
    """Return what is waived.

    Raises:
        Refused: `secret-found` for the first that no waiver covers today.
    """
    waived = []
    for finding in findings:
        matching = [waiver for waiver in waivers if waiver.covers(finding)]
        if not any(waiver.until >= today for waiver in matching):
            ended = max((waiver.until for waiver in matching), default=None)
            raise Refused(
                "secret-found",
                "a file of the release looks like a secret",
                expected="no secret, or a waiver that is in force",
                got=f"{finding.rule}" + (f", waived until {ended}" if ended else ""),
                where=f"{finding.component}: {escape(finding.path)}, line {finding.line}",
            )
        waived.append(finding)
    return tuple(waived)


def find_secrets(
    components: Iterable[Component], listings: Mapping[ObjectId, Listing]
) -> Iterator[Finding]:
    """Yield what looks like a secret, in order of components and paths.

    Nothing is read: each object was looked through when it was hashed.
    """
    for component in components:
        listing = listings[component.tree]
        for entry in listing.tree.entries:
            if entry.object is not None:
                for rule, line in listing.secrets.get(entry.object, ()):
                    yield Finding(component=component.name, path=entry.path, line=line, rule=rule)


def _invalid(what: str, got: object, where: Path) -> Refused:
    return Refused(
        "waivers-invalid", what, expected="[[waivers]] with component, path, rule, reason, until",
        got=got, where=where,
    )  # fmt: skip
