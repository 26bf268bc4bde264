"""Framing: noise is kept apart, order and sizes are enforced, an early end is seen."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule_manifest.errors import Refused
from capsule_manifest.wire import (
    MessageType,
    RecordReader,
    encode_message,
    encode_wire_record,
    read_messages,
)

STREAM = (
    encode_message(MessageType.BEGIN, b"{}")
    + encode_message(MessageType.TREE, b"a")
    + encode_message(MessageType.TREE, b"b")
    + encode_message(MessageType.PLAN)
    + encode_message(MessageType.FRAME, b"x" * 1000)
    + encode_message(MessageType.END)
)


def read(raw: bytes) -> list[tuple[MessageType, bytes]]:
    return [(message.type, message.body) for message in read_messages(io.BytesIO(raw).read)]


def test_messages_arrive_as_they_were_sent() -> None:
    assert [kind.name for kind, _ in read(STREAM)] == [
        "BEGIN",
        "TREE",
        "TREE",
        "PLAN",
        "FRAME",
        "END",
    ]


@pytest.mark.parametrize("length", range(len(STREAM)))
def test_a_stream_cut_anywhere_is_seen_as_cut(length: int) -> None:
    with pytest.raises(Refused) as caught:
        read(STREAM[:length])
    assert caught.value.error_id == "wire-malformed"


def test_a_message_of_an_earlier_kind_is_refused() -> None:
    raw = encode_message(MessageType.FRAME, b"") + encode_message(MessageType.ROUTE, b"")
    with pytest.raises(Refused) as caught:
        read(raw)
    assert caught.value.error_id == "wire-malformed"


@pytest.mark.parametrize("raw", [b"\x00" + bytes(8), b"\x63" + bytes(8)])
def test_an_unknown_type_is_refused(raw: bytes) -> None:
    with pytest.raises(Refused):
        read(raw)


@pytest.mark.parametrize("kind", MessageType)
def test_a_declared_size_above_the_limit_is_refused_before_it_is_read(kind: MessageType) -> None:
    asked: list[int] = []

    def read_exactly(count: int) -> bytes:
        asked.append(count)
        return bytes([kind]) + (2**40).to_bytes(8, "big") if count == 9 else b""

    with pytest.raises(Refused):
        list(read_messages(read_exactly))
    assert asked == [9]


@given(st.lists(st.binary(max_size=20).filter(lambda b: b"\x1e" not in b), max_size=5), st.data())
def test_records_are_found_between_any_noise_in_any_pieces(
    noise: list[bytes], data: st.DataObject
) -> None:
    raw = b"".join(
        junk + encode_wire_record({"record": "step", "n": n}) for n, junk in enumerate(noise)
    )
    reader = RecordReader()
    found = []
    while raw:
        size = data.draw(st.integers(1, len(raw)))
        found += reader.feed(raw[:size])
        raw = raw[size:]
    assert [record["n"] for record in found] == list(range(len(noise)))
    assert reader.noise == b"".join(noise)


@pytest.mark.parametrize("raw", [b"\x1e{\n", b"\x1e[]\n", b"\x1e\xff\n"])
def test_a_record_that_is_no_object_is_refused(raw: bytes) -> None:
    with pytest.raises(Refused) as caught:
        RecordReader().feed(raw)
    assert caught.value.error_id == "wire-malformed"
