"""Unit files are read as systemd reads them, or refused: nothing may hide between two readers."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule.builder.unit_file import parse_duration_ms, parse_unit
from capsule_manifest.errors import Refused
from support.failures import fails_with


def settings(text):
    unit = parse_unit(text, where="x.service")
    return [(item.section, item.key, item.value) for item in unit.settings]


def test_settings_keep_their_order_section_and_line():
    unit = parse_unit("[Unit]\n# c\nA=1\n\n[Service]\n; c\nB = 2 \nB=\n", where="x")
    assert [(item.section, item.key, item.value, item.line) for item in unit.settings] == [
        ("Unit", "A", "1", 3), ("Service", "B", "2", 7), ("Service", "B", "", 8),
    ]  # fmt: skip


def test_the_last_assignment_of_any_of_the_keys_counts():
    unit = parse_unit("[Service]\nA=1\nB=2\n[Unit]\nA=3\n", where="x")
    last = unit.last("Service", "A", "B")
    assert last is not None
    assert last.value == "2"
    assert unit.last("Service", "C") is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("A=b \\\n  c", "b  c"),
        ("A=b \\\n# a comment\nc", "b  c"),
        ("A=b\\", "b"),
        ("A=b \\\n\nC=d", "b"),
    ],
)
def test_a_backslash_at_the_end_continues_a_line(text, value):
    assert settings(f"[S]\n{text}\n")[0] == ("S", "A", value)


@pytest.mark.parametrize("end", ["\\ ", "\\\t", "\\\\", "\\\\\\\\"])
def test_no_other_backslash_hides_the_next_line(end):
    """Systemd would run the second line, which a reader that joins too much never sees."""
    found = settings(f"[Service]\nDescription=x {end}\nExecStartPre=/bin/fetch\n")
    assert found[1] == ("Service", "ExecStartPre", "/bin/fetch")


@pytest.mark.parametrize(
    "character", [*map(chr, range(9)), "\x0b", "\x0c", "\r", "\x1c", "\x85", "\u2028"]
)
def test_a_character_at_which_some_readers_end_a_line_is_refused(character):
    with fails_with("unit-invalid") as caught:
        parse_unit(f'[Service]\nExecStart=/bin/sh -c "{character}; fetch"\n', where="x")
    assert caught.value.where == "x:2"


@pytest.mark.parametrize(
    "text", ["A=1", "[S]\nnothing", "[S\nA=1", "[]\nA=1", "[S]\n=1", "[S]\n1A=2"]
)
def test_what_systemd_would_skip_with_a_warning_is_refused(text):
    with fails_with("unit-invalid"):
        parse_unit(text, where="x")


def test_a_unit_file_that_is_too_large_is_refused():
    with fails_with("unit-invalid"):
        parse_unit("[S]\n" + "A=1\n" * 20_000, where="x")


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text):
    found = ()
    with suppress(Refused):
        found = parse_unit(text, where="x").settings
    assert all(item.section and item.key for item in found)


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("5", 5000), ("5s", 5000), ("5 s", 5000), ("1min 30s", 90_000), ("1min30s", 90_000),
        ("2.5", 2500), ("250ms", 250), ("1h", 3_600_000), ("1d", 86_400_000), ("1000us", 1),
    ],
)  # fmt: skip
def test_a_time_span_is_read_as_systemd_reads_it(text, duration_ms):
    assert parse_duration_ms(text, where="x") == duration_ms


@pytest.mark.parametrize("text", ["", "0", "infinity", "-5", "5 parsecs", "5s x", "x", "1us", "٥"])
def test_a_time_span_without_a_bound_is_refused(text):
    with fails_with("unit-invalid"):
        parse_duration_ms(text, where="x")
