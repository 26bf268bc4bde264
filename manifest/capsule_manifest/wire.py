"""Framing between controller and host: binary messages in, JSON records out.

A host's standard output may carry whatever its shell start-up files print, so each record is framed
as a JSON text sequence (RFC 7464): a record separator byte, JSON, a line feed; anything between
records is noise and is kept apart. Towards the host there is no noise: messages are a type byte and
an eight-byte length.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from capsule_manifest.canonical import JsonValue, Limits, decode_foreign, encode
from capsule_manifest.errors import Refused

__all__ = [
    "Message",
    "MessageType",
    "RecordReader",
    "encode_message",
    "encode_wire_record",
    "read_messages",
]

_SEPARATOR = b"\x1e"
_RECORD_BYTES_MAX = 32 * 1024 * 1024
_NOISE_BYTES_MAX = 64 * 1024
_HEADER_BYTES = 9


class MessageType(IntEnum):
    """What a message towards the host carries, in the order in which they may come."""

    BEGIN = 1
    """Canonical JSON: node, role, platform, fence, epoch."""
    ROUTE = 2
    """A signed record of the route."""
    MANIFEST = 3
    """The bytes of `capsule.json`."""
    SIGNATURE = 4
    """A file name, a zero byte, a Sigstore bundle."""
    PACKING = 5
    """The bytes of `packing.json`."""
    TREE = 6
    """An encoded tree listing."""
    PLAN = 7
    """Nothing: all metadata was sent, the host answers with what it lacks."""
    FRAME = 8
    """32 bytes tree root, four bytes frame index, then the stored bytes of the frame."""
    END = 9
    """Nothing: the stream is complete."""


_MESSAGE_BYTES_MAX: Final[Mapping[MessageType, int]] = {
    MessageType.BEGIN: 64 * 1024,
    MessageType.ROUTE: 16 * 1024 * 1024,
    MessageType.MANIFEST: 8 * 1024 * 1024,
    MessageType.SIGNATURE: 256 * 1024 + 256,
    MessageType.PACKING: 64 * 1024 * 1024,
    MessageType.TREE: 256 * 1024 * 1024,
    MessageType.PLAN: 0,
    MessageType.FRAME: 20 * 1024 * 1024,
    MessageType.END: 0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message towards the host."""

    type: MessageType
    body: bytes


def encode_message(message_type: MessageType, body: bytes = b"") -> bytes:
    """Return the framed bytes of one message; `body` must be within its type's limit."""
    assert len(body) <= _MESSAGE_BYTES_MAX[message_type], message_type
    return bytes([message_type]) + len(body).to_bytes(8, "big") + body


def read_messages(read_exactly: Callable[[int], bytes]) -> Iterator[Message]:
    """Yield messages up to and including END. `read_exactly(n)` returns fewer than n only at end.

    Raises:
        Refused: `wire-malformed` for an unknown type, a length above its type's limit, an early
            end, or a message after a later kind.
    """
    last = MessageType.BEGIN
    while True:
        header = read_exactly(_HEADER_BYTES)
        if len(header) != _HEADER_BYTES:
            raise Refused("wire-malformed", "the stream ended early", got=f"{len(header)} bytes")
        try:
            message_type = MessageType(header[0])
        except ValueError:
            raise Refused("wire-malformed", "unknown message type", got=header[0]) from None
        size_bytes = int.from_bytes(header[1:], "big")
        if size_bytes > _MESSAGE_BYTES_MAX[message_type]:
            raise Refused(
                "wire-malformed",
                f"a {message_type.name} message is too large",
                expected=f"at most {_MESSAGE_BYTES_MAX[message_type]} bytes",
                got=size_bytes,
            )
        if message_type < last:
            raise Refused(
                "wire-malformed",
                "messages came out of order",
                expected=f"{last.name} or later",
                got=message_type.name,
            )
        body = read_exactly(size_bytes)
        if len(body) != size_bytes:
            raise Refused("wire-malformed", "the stream ended inside a message")
        last = message_type
        message = Message(type=message_type, body=body)
        del body
        yield message
        del message  # its taker alone decides how long a frame lies in memory
        if message_type is MessageType.END:
            return


def encode_wire_record(record: JsonValue) -> bytes:
    """Return one framed record for a host's standard output. Source: RFC 7464, section 2.2."""
    return _SEPARATOR + encode(record) + b"\n"


class RecordReader:
    """Pick records out of a host's standard output, bytes as they come.

    `noise` keeps the last bytes that belonged to no record, for messages to a person.
    """

    def __init__(self) -> None:
        self._buffer = b""
        self.noise = b""

    def feed(self, data: bytes) -> list[Mapping[str, JsonValue]]:
        """Return the records completed by `data`.

        Raises:
            Refused: `wire-malformed` for a record that is no JSON object or too large.
        """
        self._buffer += data
        records: list[Mapping[str, JsonValue]] = []
        while True:
            start = self._buffer.find(_SEPARATOR)
            if start < 0:
                self._keep_noise(self._buffer)
                self._buffer = b""
                return records
            self._keep_noise(self._buffer[:start])
            self._buffer = self._buffer[start:]
            end = self._buffer.find(b"\n")
            if end < 0:
                if len(self._buffer) > _RECORD_BYTES_MAX:
                    raise Refused("wire-malformed", "a host's record is too large")
                return records
            records.append(_record(self._buffer[1:end]))
            self._buffer = self._buffer[end + 1 :]

    def _keep_noise(self, data: bytes) -> None:
        self.noise = (self.noise + data)[-_NOISE_BYTES_MAX:]


def _record(raw: bytes) -> Mapping[str, JsonValue]:
    limits = Limits(size_bytes_max=_RECORD_BYTES_MAX, depth_max=12)
    try:
        value = decode_foreign(raw, limits=limits, where="a host's record")
    except Refused as error:
        raise Refused("wire-malformed", "a host's record is not JSON") from error
    if not isinstance(value, Mapping):
        raise Refused("wire-malformed", "a host's record is not an object")
    return value
