"""The resolver sink's view of DNS: which name is asked for, and an answer that refuses.

Source: RFC 1035, sections 4.1 and 3.1. Bytes come from programs that may be hostile.
"""

import struct
from typing import Final

__all__ = ["asked_name", "refusal"]

_HEADER_BYTES: Final = 12
_LABEL_BYTES_MAX: Final = 63
_NAME_BYTES_MAX: Final = 255
_RESPONSE: Final = 0x8000
_KEPT: Final = 0x7900  # opcode and "recursion desired", as they were asked
_REFUSED: Final = 5


def asked_name(message: bytes) -> str | None:
    """Return the first name that a query asks for; None for what is no query."""
    end = _end_of_name(message)
    if end is None:
        return None
    labels, at = [], _HEADER_BYTES
    while message[at]:
        labels.append(message[at + 1 : at + 1 + message[at]].decode("ascii", "backslashreplace"))
        at += 1 + message[at]
    return ".".join(labels) or "."


def refusal(message: bytes) -> bytes | None:
    """Return the answer "refused", which ends a resolver's wait; None for what is no query."""
    end = _end_of_name(message)
    if end is None or len(message) < end + 4:
        return None
    identity, flags = struct.unpack_from("!HH", message)
    header = struct.pack("!6H", identity, flags & _KEPT | _RESPONSE | _REFUSED, 1, 0, 0, 0)
    return header + message[_HEADER_BYTES : end + 4]


def _end_of_name(message: bytes) -> int | None:
    if len(message) <= _HEADER_BYTES:
        return None
    flags, questions = struct.unpack_from("!HH", message, 2)
    if flags & _RESPONSE or questions == 0:
        return None
    at = _HEADER_BYTES
    while at < len(message) and message[at]:
        # A pointer has nothing to point at in the first name.
        if message[at] > _LABEL_BYTES_MAX:
            return None
        at += 1 + message[at]
        if at - _HEADER_BYTES > _NAME_BYTES_MAX:
            return None
    return at + 1 if at < len(message) else None
