"""Errors: one table, one code each, text that can't move a terminal."""

import pytest

from capsule_manifest.error_table import ROWS
from capsule_manifest.errors import CapsuleError, ExitCode, Failed, Refused, render


@pytest.mark.parametrize("error_id", ROWS)
def test_every_id_has_a_failing_exit_code_and_advice(error_id: str) -> None:
    error = CapsuleError(error_id, "something failed")
    assert error.exit_code is not ExitCode.DONE
    assert error.advice
    assert error.advice[0].islower() or error.advice[0] == "`"


def test_a_message_gives_both_sides_and_the_place() -> None:
    error = Refused("json-malformed", "it broke", expected="a", got="b", where="file:1")
    assert str(error) == "json-malformed: it broke, expected a, got b (file:1)"


def test_hostile_text_can_not_move_the_cursor_or_forge_a_line() -> None:
    shown = render(
        Refused("json-malformed", "it broke", got="\x1b[2J\nerror: fine\u202e" + "x" * 9999)
    )
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert len(shown) < 1000
    assert shown.count("\n") == 1


def test_causes_are_printed_once_each_below_the_failure() -> None:
    error = Refused("key-unknown", "outer")
    error.__cause__ = Failed("json-malformed", "inner", retryable=True)
    assert render(error).splitlines()[1].strip() == "because: json-malformed: inner"


def test_only_a_failure_of_the_world_can_be_retryable() -> None:
    assert Failed("json-malformed", "x", retryable=True).retryable
    assert not Failed("json-malformed", "x").retryable
    assert not Refused("json-malformed", "x").retryable


def test_the_record_carries_what_a_program_needs() -> None:
    record = Refused("order-fenced", "too late", expected=4, got=3).as_record()
    assert (record["error"], record["exit_code"], record["expected"]) == ("order-fenced", 7, "4")
