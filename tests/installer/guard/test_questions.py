"""The resolver sink: what is asked is read, and refused."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule_installer.guard.questions import asked_name, refusal


def query(name, *, flags=0x0100, questions=1):
    labels = b"".join(bytes([len(part)]) + part for part in name.split(b".") if part)
    return struct.pack("!6H", 7, flags, questions, 0, 0, 0) + labels + b"\0" + b"\0\1\0\1"


def test_a_name_is_read_and_refused_with_its_own_question():
    asked = query(b"www.example.org")
    assert asked_name(asked) == "www.example.org"
    answer = refusal(asked)
    assert answer[:2] == asked[:2]
    flags, questions, answers = struct.unpack_from("!3H", answer, 2)
    assert (flags & 0x8000, flags & 0x000F, questions, answers) == (0x8000, 5, 1, 0)
    assert answer[12:] == asked[12:]


def test_the_root_has_a_name():
    assert asked_name(query(b"")) == "."


@pytest.mark.parametrize(
    "message",
    [
        b"",
        query(b"a.b", flags=0x8000),
        query(b"a.b", questions=0),
        query(b"a.b")[:14],
        struct.pack("!6H", 7, 0, 1, 0, 0, 0) + b"\xc0\x0c",
        struct.pack("!6H", 7, 0, 1, 0, 0, 0) + (b"\x3f" + b"a" * 63) * 5 + b"\0",
    ],
)
def test_what_is_no_question_has_no_name_and_no_answer(message):
    assert asked_name(message) is None
    assert refusal(message) is None


@given(st.binary(max_size=600))
def test_any_bytes_are_a_name_or_none(message):
    name = asked_name(message)
    assert name is None or len(name) <= 4 * 256
    answer = refusal(message)
    assert answer is None or len(answer) <= len(message)
