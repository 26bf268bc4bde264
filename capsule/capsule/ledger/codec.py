"""Events of a rollout as canonical JSON, and the hash that chains them.

An event is stored as its class's name and fields. A class that is renamed or loses a field can no
longer be read back, so a test pins the list.
"""

from collections.abc import Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Final, cast, get_args

from capsule.lane import epoch, lane, node
from capsule.lane.events import Event, HealthSeen, HoldReturned, Started
from capsule.ledger.rebuilt import NodeRebuilt
from capsule_manifest.canonical import JsonValue, Limits, decode, encode
from capsule_manifest.digest import sha256_text
from capsule_manifest.errors import Refused

__all__ = [
    "EVENT_CLASSES",
    "GENESIS",
    "chain_digest",
    "decode_any",
    "decode_event",
    "encode_event",
]

GENESIS: Final = "sha256:" + "0" * 64
"""What the first event of a stream names as the one before it."""

_LIMITS: Final = Limits(size_bytes_max=64 * 1024, depth_max=4)

EVENT_CLASSES: Final[Mapping[str, type]] = MappingProxyType(
    {
        kind.__name__: kind
        for kind in (
            Started,
            HoldReturned,
            HealthSeen,
            NodeRebuilt,
            *node.EVENTS,
            *lane.EVENTS,
            *epoch.EVENTS,
            *epoch.TENURE_EVENTS,
        )
    }
)


def encode_event(event: Event | NodeRebuilt) -> str:
    """Return the stored text of an event."""
    fields: dict[str, JsonValue] = asdict(event)
    return encode({"event": type(event).__name__, **fields}).decode()


def decode_any(text: str) -> Event | NodeRebuilt:
    """Read a stored event of any stream.

    Raises:
        Refused: `ledger-damaged`.
    """
    try:
        value = decode(text.encode(), limits=_LIMITS, where="a ledger event")
        assert isinstance(value, dict)
        fields = dict(value)
        event = EVENT_CLASSES[str(fields.pop("event"))](**fields)
    except (Refused, KeyError, TypeError, AssertionError) as error:
        raise Refused("ledger-damaged", "an event can't be read", got=text[:120]) from error
    assert isinstance(event, (*get_args(Event), NodeRebuilt))
    return cast("Event | NodeRebuilt", event)  # checked in the line above


def decode_event(text: str) -> Event:
    """Read a stored event of an epoch.

    Raises:
        Refused: `ledger-damaged`.
    """
    event = decode_any(text)
    if isinstance(event, NodeRebuilt):
        raise Refused("ledger-damaged", "an event is no epoch's", got=text[:120])
    return event


def chain_digest(previous: str, stream: str, seq: int, fence: int, body: str) -> str:
    """Return the digest that chains an event to the one before it."""
    return sha256_text(
        encode({"previous": previous, "stream": stream, "seq": seq, "fence": fence, "body": body})
    )
