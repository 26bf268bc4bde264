"""Canonical JSON: one value, one spelling, and limits before parsing."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule_manifest.canonical import Limits, decode, decode_foreign, encode
from capsule_manifest.errors import Refused

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.text(st.characters(exclude_categories=("Cs",))),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=("Cs",))), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(JSON)
def test_what_was_encoded_decodes_to_the_same_value(value: object) -> None:
    assert decode(encode(value)) == value


def test_keys_are_sorted_by_utf_16_code_units_as_rfc_8785_says() -> None:
    # The example of RFC 8785, section 3.2.3: code points would sort the emoji last.
    keys = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6"]
    in_order = list(json.loads(encode(dict.fromkeys(keys, 0))))
    assert in_order == ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]


def test_control_characters_have_the_short_escapes_of_rfc_8785() -> None:
    assert encode('\b\t\n\f\r"\\\x0f\x7f/é') == '"\\b\\t\\n\\f\\r\\"\\\\\\u000f\x7f/é"'.encode()


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a": 1}',
        b'{"b":1,"a":2}',
        b"[1]\n",
        b"\xef\xbb\xbf[]",
        b'"\\u0041"',
        b"-0",
        b"1.0",
        b"1e3",
    ],
)
def test_another_spelling_of_a_value_is_refused(raw: bytes) -> None:
    with pytest.raises(Refused):
        decode(raw)


@pytest.mark.parametrize(
    ("raw", "error_id"),
    [
        (b'{"a":1,"a":1}', "json-malformed"),
        (b'{"a":{"b":1,"b":2}}', "json-malformed"),
        (b"[9007199254740992]", "json-malformed"),
        (b"[NaN]", "json-malformed"),
        (b"[1.5]", "json-malformed"),
        (b"\xff", "json-malformed"),
        (b'"\\ud800"', "json-unsupported-value"),
        (b"", "json-malformed"),
        (b'["', "json-malformed"),
        (b"[" * 33 + b"]" * 33, "json-too-deep"),
        (b"[" * 1_000_000, "json-too-deep"),
    ],
)
def test_each_bad_document_is_refused_with_its_id(raw: bytes, error_id: str) -> None:
    with pytest.raises(Refused) as caught:
        decode(raw)
    assert caught.value.error_id == error_id


def test_size_is_checked_before_parsing() -> None:
    with pytest.raises(Refused) as caught:
        decode(b"[" + b" " * 100 + b"]", limits=Limits(size_bytes_max=50))
    assert caught.value.error_id == "json-too-large"


def test_count_is_checked_before_parsing() -> None:
    with pytest.raises(Refused) as caught:
        decode_foreign(b"[" + b"0," * 100 + b"0]", limits=Limits(size_bytes_max=999, values_max=50))
    assert caught.value.error_id == "json-too-large"


@pytest.mark.parametrize(
    "raw", [b'"' + b'\\"' * 2_000_000, b'"' * 4_000_001, b'"' + b"\\" * 3_999_999]
)
def test_hostile_quotes_cost_time_in_proportion_to_size(raw: bytes) -> None:
    started = time.perf_counter()
    with pytest.raises(Refused):
        decode_foreign(raw)
    assert time.perf_counter() - started < 5


def test_a_megabyte_of_digits_is_refused_without_being_converted() -> None:
    with pytest.raises(Refused) as caught:
        decode(b"1" * 1_000_000)
    assert caught.value.error_id == "json-malformed"


@pytest.mark.parametrize("value", [1.5, 2**53, {1: 2}, {"a": b"x"}, {"\ud800": 1}, object()])
def test_a_value_without_canonical_form_is_not_written(value: object) -> None:
    with pytest.raises(Refused) as caught:
        encode(value)  # type: ignore[arg-type]
    assert caught.value.error_id == "json-unsupported-value"


def test_true_and_one_stay_apart() -> None:
    assert encode([True, 1]) == b"[true,1]"
