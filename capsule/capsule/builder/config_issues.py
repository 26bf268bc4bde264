"""What is wrong in a document: one issue for each wrong value, in words of this project."""

from typing import Final, NamedTuple

from pydantic import ValidationError

__all__ = ["Issue", "issues_of"]

_VALUE_CHARACTERS_MAX: Final = 80


class Issue(NamedTuple):
    """One wrong value: where it is in the document, and both sides."""

    path: str
    what: str
    expected: str
    got: str


def issues_of(error: ValidationError) -> list[Issue]:
    """Return all issues that pydantic found, in the order of the document."""
    issues: list[Issue] = []
    for item in error.errors(include_url=False):
        place = item["loc"]
        # pydantic adds the kind that it chose for a component; the document has no such level.
        if place[:1] == ("components",):
            place = place[:2] + place[3:]
        path = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in place)[1:]
        match item["type"]:
            case "missing":
                found = ("a value is missing", "a value", "nothing")
            case "extra_forbidden":
                found = ("the key is unknown", "only documented keys", _shown(place[-1]))
            case "string_pattern_mismatch":
                pattern = item["ctx"]["pattern"].removeprefix("^").removesuffix("$")
                found = ("a value is wrong", f"text that matches {pattern}", _shown(item["input"]))
            case "union_tag_invalid" | "union_tag_not_found":
                path += ".kind"
                tags = item["ctx"].get("expected_tags", "a kind of component")
                found = ("the kind is unknown", tags, _shown(item["ctx"].get("tag", "nothing")))
            case _:
                message = item["msg"].removeprefix("Value error, ")
                found = ("a value is wrong", _expected(message), _shown(item["input"]))
        issues.append(Issue(path, *found))
    return issues


def _expected(message: str) -> str:
    return message.removeprefix("Input should be ").removeprefix("Input should ")


def _shown(value: object) -> str:
    text = repr(value) if isinstance(value, str | int | float | bool) else type(value).__name__
    return text if len(text) <= _VALUE_CHARACTERS_MAX else text[:_VALUE_CHARACTERS_MAX] + "…"
