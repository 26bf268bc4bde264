"""What a host program answers, read strictly in what is used and without objection to more.

A newer host may say more than an older controller knows; what it says is a claim until a signature
in it was checked.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from capsule_manifest.canonical import JsonValue
from capsule_manifest.digest import ObjectId, parse_blake3
from capsule_manifest.error_table import ROWS
from capsule_manifest.errors import CapsuleError, Failed, Refused
from capsule_manifest.fields import Object
from capsule_manifest.keys import PublicKey, b64decode, public_key

__all__ = [
    "WIRE_VERSION",
    "Hello",
    "HostRecord",
    "Staged",
    "Want",
    "host_error",
    "read_hello",
    "read_staged",
    "read_want",
]

WIRE_VERSION: Final = 1

HostRecord = Mapping[str, JsonValue]
"""One record as `RecordReader` returns it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """What a host says of itself now. `nonce` binds an order to this moment."""

    installer: str
    runtime: str | None
    node: str | None
    node_key: PublicKey | None
    machine: str
    glibc: str
    pythons: Mapping[str, str]
    free_bytes: int
    free_inodes: int
    boot_id: str
    nonce: str
    fence: int
    counter_floor: int
    policy: str | None
    route: str | None
    staged: tuple[str, ...]
    trees: frozenset[str]
    current: str
    previous: str
    open_op: str | None
    hold: bool
    guard_levels: tuple[str, ...]
    service_manager: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """The frames that a host lacks, by tree root, and what receiving them takes."""

    frames: Mapping[ObjectId, tuple[int, ...]]
    stored_bytes: int
    free_after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """The end of a receive: what is staged now, with the host's signed receipt."""

    generation: str
    receipt: bytes
    content_bytes: int
    took_ms: int


def read_hello(record: HostRecord, node: str) -> Hello:
    """Read a hello.

    Raises:
        Refused: `document-invalid`, `document-version` for another version of the wire.
    """
    item = Object(record, f"hello of {node}")
    wire = item.integer("wire")
    if wire != WIRE_VERSION:
        raise Refused(
            "document-version",
            "a host speaks another version of the wire",
            expected=WIRE_VERSION,
            got=wire,
            where=node,
        )
    spki = item.optional_text("node_key")
    where = f"node key of {node}"
    return Hello(
        installer=item.text("installer"),
        runtime=item.optional_text("runtime"),
        node=item.optional_text("node"),
        node_key=None if spki is None else public_key(b64decode(spki, where), where),
        machine=item.text("machine"),
        glibc=item.text("glibc"),
        pythons=item.text_map("pythons"),
        free_bytes=item.integer("free_bytes"),
        free_inodes=item.integer("free_inodes"),
        boot_id=item.text("boot_id"),
        nonce=item.text("nonce"),
        fence=item.integer("fence"),
        counter_floor=item.integer("counter_floor"),
        policy=item.optional_text("policy"),
        route=item.optional_text("route"),
        staged=item.texts("staged"),
        trees=frozenset(item.texts("trees")),
        current=item.text("current"),
        previous=item.text("previous"),
        open_op=item.optional_text("open_op"),
        hold=item.boolean("hold"),
        guard_levels=item.texts("guard_levels"),
        service_manager=item.text("service_manager"),
    )


def read_want(record: HostRecord, node: str) -> Want:
    """Read a want. Raises: `document-invalid`, `digest-malformed`."""
    item = Object(record, f"want of {node}")
    frames = item.nested("frames")
    return Want(
        frames={
            parse_blake3(root, frames.where): _indexes(value, f"{frames.where}.{root}")
            for root, value in _mapping(record["frames"]).items()
        },
        stored_bytes=item.integer("bytes"),
        free_after=item.integer("free_after"),
    )


def read_staged(record: HostRecord, node: str) -> Staged:
    """Read the end of a receive. Raises: `document-invalid`."""
    item = Object(record, f"answer of {node}")
    return Staged(
        generation=item.text("generation"),
        receipt=b64decode(item.text("receipt"), item.where),
        content_bytes=item.integer("content_bytes"),
        took_ms=item.integer("took_ms"),
    )


def host_error(record: HostRecord, node: str) -> CapsuleError:
    """Return the error that a host reported, under its own id where this program knows it."""
    item = Object(record, f"error of {node}")
    error_id = item.text("error")
    what = item.text("what")
    expected = item.text("expected", empty=True)
    got = item.text("got", empty=True)
    place = item.text("where", empty=True)
    where = f"{node}: {place}" if place else node
    if error_id not in ROWS:
        return Failed(
            "host-error-unknown",
            "a host failed in a way that this program has no name for",
            got=f"{error_id}: {what}, expected {expected}, got {got}",
            where=where,
        )
    return Failed(error_id, what, expected=expected, got=got, where=where)


def _mapping(value: JsonValue) -> Mapping[str, JsonValue]:
    assert isinstance(value, Mapping), "Object.nested has checked it"
    return value


def _indexes(value: JsonValue, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(
        isinstance(index, int) and not isinstance(index, bool) and index >= 0 for index in value
    ):
        raise Refused(
            "document-invalid", "not a list of frame numbers", got=repr(value)[:80], where=where
        )
    return tuple(value)
