"""`packing.json`: how the content of a capsule is packed. Outside the capsule id.

Compression differs between library versions and content does not, so the same capsule may be packed
in several ways. The document names its capsule and, per distinct tree root, the packs that carry
that tree's content stream. It is bound by its own signed statement; every frame it names is checked
against it, and every object against the tree, so a wrong packing can waste a transfer but never
change what is installed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from capsule_manifest.canonical import JsonValue, Limits, decode, encode
from capsule_manifest.digest import (
    CapsuleId,
    ObjectId,
    blake3_text,
    parse_blake3,
    parse_sha256,
)
from capsule_manifest.errors import Refused
from capsule_manifest.pack import (
    PACK_BYTES_MAX,
    PACK_FRAMES_MAX,
    Codec,
    Frame,
    Pack,
    frame_table_bytes,
    is_consistent,
)

__all__ = [
    "PACKING_LIMITS",
    "PACKING_SCHEMA",
    "Content",
    "Frame",
    "Pack",
    "Packing",
    "decode_packing",
    "encode_packing",
]

PACKING_SCHEMA: Final = "capsule-packing/1"

PACKING_LIMITS: Final = Limits(size_bytes_max=64 * 1024 * 1024, depth_max=8)

_CONTENTS_MAX = 10_000
_PACKS_MAX = 100_000
_FRAMES_MAX = 200_000
_STREAM_BYTES_MAX = 2**53 - 1
_ROW_LENGTH = 5
_FIELDS = ("capsule", "chunking", "contents", "deltas", "schema")


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Say which packs, in order, carry the content stream of one tree."""

    stream_bytes: int
    packs: tuple[Pack, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Say how the content of one capsule is packed, by tree root."""

    capsule: CapsuleId
    contents: Mapping[ObjectId, Content]


def encode_packing(packing: Packing) -> bytes:
    """Return the canonical bytes of `packing`.

    Raises:
        Refused: `packing-inconsistent`, `json-too-large`.
    """
    _check(packing)
    contents: dict[str, JsonValue] = {
        blake3_text(root): {
            "packs": [
                {
                    "frames": [_row(frame) for frame in pack.frames],
                    "id": blake3_text(pack.id),
                    "size_bytes": pack.size_bytes,
                }
                for pack in content.packs
            ],
            "stream_bytes": content.stream_bytes,
        }
        for root, content in packing.contents.items()
    }
    return encode(
        {
            "capsule": packing.capsule,
            "chunking": None,
            "contents": contents,
            "deltas": [],
            "schema": PACKING_SCHEMA,
        }
    )


def decode_packing(raw: bytes, limits: Limits = PACKING_LIMITS) -> Packing:
    """Read `packing.json` and check that its sizes, offsets and counts agree.

    Raises:
        Refused: `packing-inconsistent`, `document-invalid`, `document-version`,
            `digest-malformed`, and the `json-…` ids.
    """
    where = "packing.json"
    document = _mapping(decode(raw, limits=limits, where=where), _FIELDS, where)
    if document["schema"] != PACKING_SCHEMA:
        raise _version("schema", PACKING_SCHEMA, document["schema"])
    # Reserved: a reader that skipped them could miss that content comes only as a delta.
    if document["deltas"] != []:
        raise _version("deltas", "[]", "deltas")
    if document["chunking"] is not None:
        raise _version("chunking", "null", "a value")
    roots = _mapping(document["contents"], None, f"{where}.contents")
    if len(roots) > _CONTENTS_MAX:
        raise _inconsistent("too many trees", f"at most {_CONTENTS_MAX}", len(roots), where)
    contents: dict[ObjectId, Content] = {}
    for root, value in roots.items():
        place = f"{where}.contents.{root}"
        contents[parse_blake3(root, place)] = _content(value, place)
    capsule = CapsuleId(parse_sha256(document["capsule"], f"{where}.capsule"))
    packing = Packing(capsule=capsule, contents=contents)
    _check(packing)
    return packing


def _content(value: JsonValue, where: str) -> Content:
    fields = _mapping(value, ("packs", "stream_bytes"), where)
    packs = _sequence(fields["packs"], f"{where}.packs")
    return Content(
        stream_bytes=_count(fields["stream_bytes"], f"{where}.stream_bytes"),
        packs=tuple(_pack(pack, f"{where}.packs[{i}]") for i, pack in enumerate(packs)),
    )


def _pack(value: JsonValue, where: str) -> Pack:
    fields = _mapping(value, ("frames", "id", "size_bytes"), where)
    frames: list[Frame] = []
    offset = 0
    for i, row in enumerate(_sequence(fields["frames"], f"{where}.frames")):
        frame = _frame(row, offset, f"{where}.frames[{i}]")
        frames.append(frame)
        offset += frame.stored_bytes
    return Pack(
        id=parse_blake3(fields["id"], f"{where}.id"),
        size_bytes=_count(fields["size_bytes"], f"{where}.size_bytes"),
        frames=tuple(frames),
    )


def _row(frame: Frame) -> list[JsonValue]:
    return [
        frame.codec,
        frame.stored_bytes,
        frame.content_bytes,
        frame.stored_digest.hex(),
        frame.content_digest.hex(),
    ]


def _frame(value: JsonValue, offset: int, where: str) -> Frame:
    row = _sequence(value, where)
    if len(row) != _ROW_LENGTH:
        raise _invalid("a frame has a wrong number of values", _ROW_LENGTH, len(row), where)
    codec: Codec
    if row[0] == "zstd":
        codec = "zstd"
    elif row[0] == "raw":
        codec = "raw"
    else:
        raise _invalid("a codec is unknown", "zstd or raw", row[0], where)
    return Frame(
        offset=offset,
        stored_bytes=_count(row[1], where),
        content_bytes=_count(row[2], where),
        codec=codec,
        stored_digest=parse_blake3(f"blake3:{row[3]}", where),
        content_digest=parse_blake3(f"blake3:{row[4]}", where),
    )


def _check(packing: Packing) -> None:
    known: dict[ObjectId, Pack] = {}
    packs = frames = 0
    for root, content in packing.contents.items():
        where = f"packing.json, tree {blake3_text(root)}"
        if not 0 <= content.stream_bytes <= _STREAM_BYTES_MAX:
            raise _inconsistent(
                "a stream's size is out of range", "0 to 2^53-1", content.stream_bytes, where
            )
        carried = 0
        for pack in content.packs:
            packs += 1
            frames += len(pack.frames)
            _check_pack(pack, where)
            if known.setdefault(pack.id, pack) != pack:
                raise _inconsistent(
                    "a pack is described in two ways", "one", blake3_text(pack.id), where
                )
            carried += sum(frame.content_bytes for frame in pack.frames)
        if carried != content.stream_bytes:
            raise _inconsistent(
                "frames don't add up to the stream", content.stream_bytes, carried, where
            )
    if packs > _PACKS_MAX or frames > _FRAMES_MAX:
        raise _inconsistent(
            "too many packs or frames",
            f"at most {_PACKS_MAX} packs and {_FRAMES_MAX} frames",
            f"{packs} packs and {frames} frames",
            "packing.json",
        )


def _check_pack(pack: Pack, where: str) -> None:
    where = f"{where}, pack {blake3_text(pack.id)}"
    if not 0 < len(pack.frames) <= PACK_FRAMES_MAX:
        raise _inconsistent(
            "a pack has no frame or too many", f"1 to {PACK_FRAMES_MAX}", len(pack.frames), where
        )
    if pack.frames[0].offset != 0 or any(
        left.offset + left.stored_bytes != right.offset for left, right in pairwise(pack.frames)
    ):
        raise _inconsistent("frames leave a gap or overlap", "contiguous offsets", "", where)
    for frame in pack.frames:
        if not is_consistent(frame):
            raise _inconsistent(
                "a frame contradicts itself",
                "sizes within bounds, and equal ones for raw",
                f"{frame.codec}, {frame.stored_bytes} stored, {frame.content_bytes} of content",
                where,
            )
    last = pack.frames[-1]
    expected = last.offset + last.stored_bytes + frame_table_bytes(len(pack.frames))
    if pack.size_bytes != expected:
        raise _inconsistent("a pack has a wrong size", expected, pack.size_bytes, where)
    if pack.size_bytes > PACK_BYTES_MAX:
        raise _inconsistent("a pack is too large", PACK_BYTES_MAX, pack.size_bytes, where)


def _mapping(
    value: JsonValue, fields: tuple[str, ...] | None, where: str
) -> Mapping[str, JsonValue]:
    if not isinstance(value, Mapping):
        raise _invalid("a value has a wrong type", "an object", type(value).__name__, where)
    if fields is not None and tuple(sorted(value)) != fields:
        raise _invalid(
            "an object has other fields", ", ".join(fields), ", ".join(sorted(value)), where
        )
    return value


def _sequence(value: JsonValue, where: str) -> Sequence[JsonValue]:
    if not isinstance(value, list):
        raise _invalid("a value has a wrong type", "an array", type(value).__name__, where)
    return value


def _count(value: JsonValue, where: str) -> int:
    # bool is an int in Python, and true is no size.
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _invalid("a size is no size", "a whole number from 0", value, where)
    return value


def _invalid(what: str, expected: object, got: object, where: str) -> Refused:
    return Refused("document-invalid", what, expected=expected, got=got, where=where)


def _inconsistent(what: str, expected: object, got: object, where: str) -> Refused:
    return Refused("packing-inconsistent", what, expected=expected, got=got, where=where)


def _version(field: str, expected: object, got: object) -> Refused:
    return Refused(
        "document-version",
        f"{field} holds something that is not known here",
        expected=expected,
        got=got,
        where=f"packing.json.{field}",
    )
