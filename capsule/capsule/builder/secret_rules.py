"""What a secret looks like: patterns that are hardly ever anything else."""

import re
from collections.abc import Iterator
from typing import Final

__all__ = ["SNIFFED_BYTES", "TEXT_BYTES_MAX", "scan_text"]

TEXT_BYTES_MAX: Final = 4 * 1024 * 1024
"""A longer file is not looked through."""

SNIFFED_BYTES: Final = 8 * 1024
"""A file with a zero byte among so many first ones is no text."""


# For each group of rules, what is in every match of one of them: that is searched first, in as few
# passes over a text as there are groups, for most texts have no match of any. A hint begins with a
# letter that is rare in texts if there is one, since that decides how long a pass takes. A rule's
# own hint is asked for before its pattern, which is slow where it can begin with any letter.
_GROUPS: Final = tuple(
    (
        re.compile(hint),
        tuple((name, re.compile(own), re.compile(pattern)) for name, own, pattern in rules),
    )
    for hint, rules in (
        (
            rb"A(?:TE KEY-----|KIA|SIA|Iza|gE)",
            (
                # With the beginning of a body: programs that only look for the line hold no key.
                ("private-key", rb"PRIVATE KEY-----",
                 (rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY-----"
                 rb"[\s\\nr\"']{1,8}[A-Za-z0-9+/=:, -]{40}")),
                ("aws-access-key", rb"A(?:KIA|SIA)",
                 (rb"(?<![A-Z0-9])(?:AKIA|ASIA)(?![A-Z0-9]*EXAMPLE)"
                 rb"[A-Z0-9]{16}(?![A-Z0-9])")),
                ("google-api-key", rb"AIza",
                 rb"(?<![A-Za-z0-9_-])AIza[A-Za-z0-9_-]{35}(?![A-Za-z0-9_-])"),
                ("pypi-token", rb"pypi-AgE",
                 rb"(?<![A-Za-z0-9-])pypi-AgE[A-Za-z0-9_-]{60,}"),
            ),
        ),
        (
            rb"g(?:h[pousr]_|ithub_pat_|lpat-)",
            (
                ("github-token", rb"g(?:h[pousr]_|ithub_pat_)",
                 (rb"(?<![A-Za-z0-9_])"
                 rb"(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{80})")),
                ("gitlab-token", rb"glpat-",
                 rb"(?<![A-Za-z0-9_-])glpat-[A-Za-z0-9_-]{20}"),
            ),
        ),
        (
            rb"xox[abprs]-",
            (
                ("slack-token", rb"xox[abprs]-",
                 rb"(?<![A-Za-z0-9])xox[abprs]-[0-9]{6,}-[A-Za-z0-9-]{16,}"),
            ),
        ),
        (
            rb"pm_",
            (
                ("npm-token", rb"npm_",
                 rb"(?<![A-Za-z0-9_])npm_[A-Za-z0-9]{36}(?![A-Za-z0-9])"),
            ),
        ),
        (
            rb"k_live_",
            (
                ("stripe-key", rb"[rs]k_live_",
                 rb"(?<![A-Za-z0-9_])[rs]k_live_[A-Za-z0-9]{24,}"),
            ),
        ),
    )
)  # fmt: skip


def scan_text(text: bytes) -> Iterator[tuple[str, int]]:
    """Yield the rule and the line, from 1, of each match in a text."""
    for hint, rules in _GROUPS:
        if hint.search(text):
            for name, own, pattern in rules:
                if own.search(text):
                    for match in pattern.finditer(text):
                        yield name, text.count(b"\n", 0, match.start()) + 1
