"""Canonical JSON: one value, one spelling.

Encoding follows RFC 8785 for the values that capsule uses: objects with string keys, arrays,
strings, whole numbers within ±(2^53-1), true, false and null. There are no fractions: times are
whole units, so the number rules of section 3.2.2.3 never apply.

Decoding is strict: limits are checked before parsing, duplicate keys are refused, and bytes that
are not exactly what `encode` would write are refused. A signed document thus has one form only.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from capsule_manifest.errors import Refused

__all__ = [
    "DEFAULT_LIMITS",
    "JsonValue",
    "Limits",
    "decode",
    "decode_foreign",
    "encode",
]

JsonValue: TypeAlias = "Mapping[str, JsonValue] | Sequence[JsonValue] | str | int | bool | None"

_INTEGER_MAX = 2**53 - 1
# Possessive, and an unterminated string runs to the end of the input: each byte is read once, so
# hostile quotes can't make this quadratic.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_STRUCTURE = re.compile(rb"[\[\]{},]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds that are checked before a document is parsed."""

    size_bytes_max: int
    depth_max: int = 32
    values_max: int = 2_000_000


DEFAULT_LIMITS: Final = Limits(size_bytes_max=8 * 1024 * 1024)


def encode(value: JsonValue) -> bytes:
    """Return the canonical bytes of `value`.

    Raises:
        Refused: `json-unsupported-value` for a fraction, a number out of range, a key that is not
            a string, a lone surrogate, or another type.

    Source: RFC 8785, sections 3.2.2 (serialisation) and 3.2.3 (keys sorted by UTF-16 code units).
    """
    return json.dumps(
        _ordered(value, "$", 0),
        ensure_ascii=False,
        separators=(",", ":"),
        allow_nan=False,
    ).encode()


def decode(raw: bytes, *, limits: Limits = DEFAULT_LIMITS, where: str = "document") -> JsonValue:
    """Read canonical JSON and refuse any other spelling of it.

    Raises:
        Refused: `json-too-large`, `json-too-deep`, `json-malformed`, `json-unsupported-value`,
            `json-not-canonical`.
    """
    value = decode_foreign(raw, limits=limits, where=where)
    if encode(value) != raw:
        raise Refused(
            "json-not-canonical",
            "the bytes are not the canonical form of their own value",
            expected="RFC 8785 with no white space and sorted keys",
            where=where,
        )
    return value


def decode_foreign(
    raw: bytes, *, limits: Limits = DEFAULT_LIMITS, where: str = "document"
) -> JsonValue:
    """Read JSON that another program wrote: any spacing and order, but no duplicate key.

    Raises:
        Refused: `json-too-large`, `json-too-deep`, `json-malformed`, `json-unsupported-value`.
    """
    _check_limits(raw, limits, where)
    try:
        text = raw.decode("utf-8")
        value: JsonValue = json.loads(
            text,
            object_pairs_hook=_no_duplicates,
            parse_float=_no_fraction,
            parse_constant=_no_fraction,
            parse_int=_bounded_integer,
        )
    except (ValueError, RecursionError) as error:
        raise Refused(
            "json-malformed",
            "the document is not JSON as expected",
            got=error,
            where=where,
        ) from None
    return value


def _check_limits(raw: bytes, limits: Limits, where: str) -> None:
    if len(raw) > limits.size_bytes_max:
        raise Refused(
            "json-too-large",
            "a document is larger than its kind may be",
            expected=f"at most {limits.size_bytes_max} bytes",
            got=f"{len(raw)} bytes",
            where=where,
        )
    depth = deepest = values = 0
    # The parser recurses, so depth is measured on the raw bytes first: outside of strings only
    # brackets open a level, and invalid strings are the parser's to refuse.
    for match in _STRUCTURE.finditer(_STRING.sub(b"", raw)):
        token = match.group()
        values += 1
        if token in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif token in b"]}":
            depth -= 1
    if deepest > limits.depth_max:
        raise Refused(
            "json-too-deep",
            "a document nests deeper than its kind may",
            expected=f"at most {limits.depth_max} levels",
            got=f"{deepest} levels",
            where=where,
        )
    if values > limits.values_max:
        raise Refused(
            "json-too-large",
            "a document has more values than its kind may have",
            expected=f"at most {limits.values_max}",
            got=values,
            where=where,
        )


def _ordered(value: JsonValue, where: str, depth: int) -> JsonValue:
    if depth > _ENCODE_DEPTH_MAX:
        raise Refused("json-too-deep", "a value nests too deep to be written", where=where)
    # bool is an int in Python, so it is asked for first.
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        if not _is_encodable(value):
            raise _unsupported("a string with a lone surrogate", where)
        return value
    if isinstance(value, int):
        if abs(value) > _INTEGER_MAX:
            raise _unsupported(f"the number {value}", where)
        return int(value)
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) and _is_encodable(key) for key in value):
            raise _unsupported("a key that is not a plain string", where)
        keys = sorted(value, key=_utf16)
        return {key: _ordered(value[key], f"{where}.{key}", depth + 1) for key in keys}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_ordered(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
    raise _unsupported(type(value).__name__, where)


_ENCODE_DEPTH_MAX = 64


def _utf16(key: str) -> bytes:
    # RFC 8785 3.2.3 sorts by UTF-16 code units; code points differ above the basic plane.
    return key.encode("utf-16-be")


def _is_encodable(text: str) -> bool:
    # UTF-8 can't hold lone surrogates and nothing else; asking the codec is a hundred times faster
    # than looking at each character.
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unsupported(got: str, where: str) -> Refused:
    return Refused(
        "json-unsupported-value",
        "a value has no canonical form here",
        expected="an object, array, string, whole number within 2^53-1, true, false or null",
        got=got,
        where=where,
    )


def _no_duplicates(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                message = f"duplicate key {key!r}"
                raise ValueError(message)
            seen.add(key)
    return result


def _no_fraction(text: str) -> JsonValue:
    message = f"the number {text[:40]} is not whole"
    raise ValueError(message)


def _bounded_integer(text: str) -> int:
    # Checked by length first: int() of a megabyte of digits is quadratic.
    if len(text) > len(str(-_INTEGER_MAX)) or abs(int(text)) > _INTEGER_MAX:
        message = f"the number {text[:40]} is out of range"
        raise ValueError(message)
    return int(text)
