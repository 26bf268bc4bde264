"""Placeholders in units, templated managed files and probe addresses: strict, and without logic.

`@{name}` is replaced by a value, `@@{` stands for a literal `@{`; everything else is copied. The
form was chosen because neither systemd (`%i`, `${VAR}`), nor a shell, TOML, YAML or nginx uses it.

The known names are `root`, `generation`, `current`, `node.id`, `node.NAME` for the values that the
route gives a node, and `image.NAME` for the id of an image of the release. A name that is not of
this list is refused when a release is built, a value that the route lacks when it is staged:
nothing is ever left empty or as it stood.

Source: `docs/reference/template.md`.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from capsule_manifest.errors import Refused

__all__ = ["PLACES", "placeholders", "substitute"]

PLACES: Final = ("root", "generation", "current")
"""What the host answers by itself; all other names begin with `node.` or `image.`."""

# The escape comes first: the `@{` inside of `@@{` begins nothing.
_TOKEN = re.compile(r"@@\{|@\{([^{}\n]*)(\}?)")
_NAME = re.compile(
    rf"{'|'.join(PLACES)}|node\.[A-Za-z][A-Za-z0-9_-]{{0,62}}|image\.[a-z0-9][a-z0-9._-]{{0,62}}"
)
# A line break in a value would add a directive to a unit; nothing of the kind belongs in one.
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def placeholders(text: str, *, where: str = "template") -> set[str]:
    """Return the names that `text` refers to.

    Raises:
        Refused: `template-invalid` for a name that does not exist or a brace that is not closed.
    """
    return {name for _, name in _tokens(text, where) if name is not None}


def substitute(text: str, values: Mapping[str, str], *, where: str = "template") -> str:
    """Return `text` with every placeholder replaced. Values are not read for placeholders.

    Raises:
        Refused: `template-invalid`, `template-value-missing`, `template-value-invalid` for a value
            with a control character.
    """
    parts: list[str] = []
    end = 0
    for match, name in _tokens(text, where):
        parts.append(text[end : match.start()])
        parts.append("@{" if name is None else _value(name, values, where))
        end = match.end()
    parts.append(text[end:])
    return "".join(parts)


def _tokens(text: str, where: str) -> Iterator[tuple[re.Match[str], str | None]]:
    """Yield every escape (with None) and every placeholder (with its name)."""
    for match in _TOKEN.finditer(text):
        name = match[1]
        if name is not None and not (match[2] and _NAME.fullmatch(name)):
            line = text.count("\n", 0, match.start()) + 1
            raise Refused(
                "template-invalid",
                "a placeholder is unknown" if match[2] else "a placeholder is not closed",
                expected=", ".join(
                    f"@{{{known}}}" for known in (*PLACES, "node.id", "node.NAME", "image.NAME")
                )
                + ", or @@{ for a literal @{",
                got=match[0],
                where=f"{where}, line {line}",
            )
        yield match, name


def _value(name: str, values: Mapping[str, str], where: str) -> str:
    value = values.get(name)
    if value is None:
        raise Refused(
            "template-value-missing",
            "a placeholder has no value for this node",
            expected=f"a value for {name}",
            got=", ".join(sorted(values)),
            where=where,
        )
    if _CONTROL.search(value):
        raise Refused(
            "template-value-invalid",
            "a value holds a control character",
            expected="one line of text",
            got=repr(value),
            where=f"{where}, {name}",
        )
    return value
