"""Typed reading of decoded JSON: every value is asked for by name, type and range, none is left.

A document's reader takes an `Object`, asks for its fields and calls `end`. A field that nobody
asked for is refused, so that a signed document never says more than its reader understood.
"""

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from capsule_manifest.canonical import JsonValue
from capsule_manifest.digest import ObjectId, parse_blake3, parse_sha256
from capsule_manifest.errors import Refused

__all__ = ["Object", "root_object"]

Item = TypeVar("Item")

_INTEGER_MAX = 2**53 - 1
# A payload in base64 is the longest text; whole documents are bounded before they are parsed.
_TEXT_CHARACTERS_MAX = 16 * 1024 * 1024
_MISSING = object()


class Object:
    """Read one JSON object field by field; `where` locates every refusal."""

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, Mapping):
            raise _invalid(where, "an object", value)
        self._value: Mapping[str, JsonValue] = value
        self._asked: set[str] = set()
        self.where = where

    def has(self, key: str) -> bool:
        """Say whether a field is there, whatever its value; for documents that others write."""
        return key in self._value

    def text(self, key: str, *, empty: bool = False, one_of: tuple[str, ...] = ()) -> str:
        """Return a string; `one_of` lists the only values allowed, when given."""
        value = self._take(key)
        if not isinstance(value, str) or not (value or empty) or len(value) > _TEXT_CHARACTERS_MAX:
            raise _invalid(self._at(key), "a string" if empty else "a string, not empty", value)
        if one_of and value not in one_of:
            raise _invalid(self._at(key), "one of " + ", ".join(one_of), value)
        return value

    def matching(self, key: str, pattern: re.Pattern[str]) -> str:
        """Return a string that `pattern` matches as a whole."""
        value = self.text(key)
        if not pattern.fullmatch(value):
            raise _invalid(self._at(key), f"text like {pattern.pattern}", value)
        return value

    def optional_text(self, key: str) -> str | None:
        """Return a string or null; the key itself must be there."""
        return None if self._null(key) else self.text(key)

    def integer(self, key: str, *, least: int = 0, most: int = _INTEGER_MAX) -> int:
        """Return a whole number within `least` and `most`, both included."""
        value = self._take(key)
        # true is an int in Python; a document that says true for a count is not ours.
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise _invalid(self._at(key), f"a whole number from {least} to {most}", value)
        return value

    def optional_integer(self, key: str, *, least: int = 0) -> int | None:
        """Return a whole number or null; the key itself must be there."""
        return None if self._null(key) else self.integer(key, least=least)

    def boolean(self, key: str) -> bool:
        """Return true or false."""
        value = self._take(key)
        if not isinstance(value, bool):
            raise _invalid(self._at(key), "true or false", value)
        return value

    def sha256(self, key: str) -> str:
        """Return `sha256:<hex>`."""
        return parse_sha256(self._take(key), self._at(key))

    def optional_sha256(self, key: str) -> str | None:
        """Return `sha256:<hex>` or null; the key itself must be there."""
        return None if self._null(key) else self.sha256(key)

    def blake3(self, key: str) -> ObjectId:
        """Return the 32 bytes of a `blake3:<hex>` value."""
        return parse_blake3(self._take(key), self._at(key))

    def nested(self, key: str) -> "Object":
        """Return a nested object."""
        return Object(self._take(key), self._at(key))

    def optional_nested(self, key: str) -> "Object | None":
        """Return a nested object or null; the key itself must be there."""
        return None if self._null(key) else self.nested(key)

    def items(self, key: str, read: Callable[["Object"], Item]) -> tuple[Item, ...]:
        """Return an array of objects, each read by `read`."""
        return tuple(
            read(Object(value, f"{self._at(key)}[{index}]"))
            for index, value in enumerate(self._array(key))
        )

    def texts(self, key: str) -> tuple[str, ...]:
        """Return an array of strings, none empty."""
        values = self._array(key)
        if not all(isinstance(value, str) and value for value in values):
            raise _invalid(self._at(key), "an array of strings", values)
        return tuple(str(value) for value in values)

    def named(self, key: str, read: Callable[["Object"], Item]) -> dict[str, Item]:
        """Return a mapping from any names to objects, each read by `read`."""
        return self.nested(key).all(read)

    def all(self, read: Callable[["Object"], Item]) -> dict[str, Item]:
        """Read every field of this object as an object of one kind."""
        self._asked |= set(self._value)
        return {
            name: read(Object(value, f"{self.where}.{name}")) for name, value in self._value.items()
        }

    def names(self) -> tuple[str, ...]:
        """Return the names of all fields, in the order of the document."""
        return tuple(self._value)

    def text_map(self, key: str) -> dict[str, str]:
        """Return a mapping from names to strings, which may be empty."""
        nested = self.nested(key)
        return {name: nested.text(name, empty=True) for name in nested.names()}

    def integer_map(self, key: str) -> dict[str, int]:
        """Return a mapping from names to whole numbers."""
        nested = self.nested(key)
        return {name: nested.integer(name) for name in nested.names()}

    def end(self) -> None:
        """Refuse fields that nobody asked for."""
        extra = sorted(set(self._value) - self._asked)
        if extra:
            raise _invalid(self.where, "no other field", ", ".join(extra))

    def _array(self, key: str) -> list[JsonValue]:
        value = self._take(key)
        if not isinstance(value, list):
            raise _invalid(self._at(key), "an array", value)
        return value

    def _take(self, key: str) -> object:
        self._asked.add(key)
        value = self._value.get(key, _MISSING)
        if value is _MISSING:
            raise _invalid(self._at(key), "a value", "nothing")
        return value

    def _null(self, key: str) -> bool:
        if self._take(key) is None:
            return True
        self._asked.discard(key)
        return False

    def _at(self, key: str) -> str:
        return f"{self.where}.{key}"


def root_object(value: object, *, schema: str, name: str) -> Object:
    """Return the reader of a whole document after its `schema` was found to be `schema`.

    Raises:
        Refused: `document-invalid`; `document-version` when it is another version of this format.
    """
    document = Object(value, name)
    got = document.text("schema")
    if got != schema:
        known, _, _ = schema.partition("/")
        error_id = "document-version" if got.startswith(known + "/") else "document-invalid"
        raise Refused(
            error_id,
            f"this is not a {name} that can be read",
            expected=schema,
            got=got,
            where=name,
        )
    return document


def _invalid(where: str, expected: str, got: object) -> Refused:
    return Refused(
        "document-invalid",
        "a document has a wrong value",
        expected=expected,
        got=repr(got)[:120],
        where=where,
    )
