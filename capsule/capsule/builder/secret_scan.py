"""Find secrets before they are signed: an immutable file on every host can't be called back.

Only patterns that are hardly ever anything else are looked for, in every file that is text. What is
found and meant (a test key, an example) is waived in a file beside `release.toml`, for a reason and
until a day.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from capsule.builder.packer import Listing
from capsule_manifest.digest import ObjectId
from capsule_manifest.errors import Refused
from capsule_manifest.paths import escape
from capsule_manifest.release import Component

__all__ = ["Finding", "Waiver", "check_secrets", "find_secrets", "load_waivers", "scan_text"]

_TEXT_BYTES_MAX: Final = 4 * 1024 * 1024
_WAIVERS_BYTES_MAX: Final = 1024 * 1024
_SNIFFED_BYTES: Final = 8 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """A pattern, and literals of which one is in every match: those are searched first."""

    name: str
    literals: tuple[bytes, ...]
    pattern: re.Pattern[bytes]


def _rule(name: str, pattern: bytes, *literals: bytes) -> _Rule:
    return _Rule(name=name, literals=literals, pattern=re.compile(pattern))


_RULES: Final = (
    # With the beginning of a body: programs that only look for the line hold no key.
    _rule(
        "private-key",
        rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY-----[\s\\nr\"']{1,8}[A-Za-z0-9+/=:, -]{40}",
        b"PRIVATE KEY-----",
    ),
    _rule(
        "aws-access-key",
        rb"(?<![A-Z0-9])(?:AKIA|ASIA)(?![A-Z0-9]*EXAMPLE)[A-Z0-9]{16}(?![A-Z0-9])",
        b"AKIA", b"ASIA",
    ),
    _rule(
        "github-token",
        rb"(?<![A-Za-z0-9_])(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{80})",
        b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_", b"github_pat_",
    ),
    _rule("gitlab-token", rb"(?<![A-Za-z0-9_-])glpat-[A-Za-z0-9_-]{20}", b"glpat-"),
    _rule("slack-token", rb"(?<![A-Za-z0-9])xox[abprs]-[0-9]{6,}-[A-Za-z0-9-]{16,}",
          b"xoxa-", b"xoxb-", b"xoxp-", b"xoxr-", b"xoxs-"),
    _rule("google-api-key", rb"(?<![A-Za-z0-9_-])AIza[A-Za-z0-9_-]{35}(?![A-Za-z0-9_-])", b"AIza"),
    _rule("npm-token", rb"(?<![A-Za-z0-9_])npm_[A-Za-z0-9]{36}(?![A-Za-z0-9])", b"npm_"),
    _rule("pypi-token", rb"(?<![A-Za-z0-9-])pypi-AgE[A-Za-z0-9_-]{60,}", b"pypi-AgE"),
    _rule(
        "stripe-key", rb"(?<![A-Za-z0-9_])[rs]k_live_[A-Za-z0-9]{24,}", b"sk_live_", b"rk_live_"
    ),
)  # fmt: skip


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
    """Yield what looks like a secret, in order of components and paths; each object read once."""
    known: dict[ObjectId, tuple[tuple[str, int], ...]] = {}
    for component in components:
        listing = listings[component.tree]
        for entry in listing.tree.entries:
            if entry.object is None or not 0 < entry.size_bytes <= _TEXT_BYTES_MAX:
                continue
            if entry.object not in known:
                source = listing.sources[entry.object]
                assert source.open is not None, "a file has content"
                with source.open() as stream:
                    head = stream.read(_SNIFFED_BYTES)
                    # The rest of a binary file is not even read.
                    text = b"" if b"\0" in head else head + stream.read(_TEXT_BYTES_MAX)
                known[entry.object] = tuple(scan_text(text))
            for rule, line in known[entry.object]:
                yield Finding(component=component.name, path=entry.path, line=line, rule=rule)


def scan_text(text: bytes) -> Iterator[tuple[str, int]]:
    """Yield the rule and the line, from 1, of each match in a text."""
    for rule in _RULES:
        if any(literal in text for literal in rule.literals):
            for match in rule.pattern.finditer(text):
                yield rule.name, text.count(b"\n", 0, match.start()) + 1


def _invalid(what: str, got: object, where: Path) -> Refused:
    return Refused(
        "waivers-invalid", what, expected="[[waivers]] with component, path, rule, reason, until",
        got=got, where=where,
    )  # fmt: skip
