"""Packs: a component's content as immutable files of independent zstd frames.

The *content stream* of a component is the bytes of its objects, each once, in path order
(`tree.content_order`). Frames cut that stream into pieces, packs collect frames. Where an object
begins follows from the tree, so a pack lists frames only. After its frames a pack carries their
table in a zstd skippable frame, so that a pack explains itself; `docs/reference/pack.md` has the
layout.

A frame is checked in this order: stored digest, header, decoding bounded by the size that a signed
document declared, content digest. Nothing unverified reaches the decompressor.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import zstandard
from blake3 import blake3

from capsule_manifest.digest import ObjectId, blake3_text, object_id
from capsule_manifest.errors import Refused

__all__ = [
    "FRAME_CONTENT_BYTES",
    "FRAME_CONTENT_BYTES_MAX",
    "FRAME_LEVEL",
    "FRAME_TABLE_FOOTER_BYTES",
    "PACK_BYTES",
    "PACK_BYTES_MAX",
    "PACK_FRAMES_MAX",
    "WINDOW_LOG_MAX",
    "Codec",
    "Frame",
    "FrameCutter",
    "Pack",
    "PackWriter",
    "cut_frames",
    "decode_frame",
    "decode_frame_table",
    "encode_frame",
    "encode_frame_table",
    "frame_table_bytes",
    "frame_table_bytes_of",
    "is_consistent",
]

Codec: TypeAlias = Literal["zstd", "raw"]

FRAME_CONTENT_BYTES: Final = 4 * 1024 * 1024
"""A frame ends at the first object boundary at or after so many bytes of content."""

FRAME_CONTENT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Where no object ends before, a frame ends here and the object spans frames."""

PACK_BYTES: Final = 64 * 1024 * 1024
"""A pack that has reached so many bytes takes no further frame."""

PACK_BYTES_MAX: Final = 256 * 1024 * 1024

PACK_FRAMES_MAX: Final = 65_536

WINDOW_LOG_MAX: Final = 27
"""Larger windows need `--long` everywhere and more memory than a host may have to spare."""

FRAME_LEVEL: Final = 6
"""The level that zstd compresses at. Another one changes packs, never an id."""

FRAME_TABLE_FOOTER_BYTES: Final = 12
"""So many last bytes of a pack tell how long its frame table is."""

_RAW_BELOW_RATIO_PERCENT = 105
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_DIGEST_BYTES = 32

_SKIPPABLE_MAGIC = 0x184D2A5C
_TABLE_MAGIC = b"CPSLFRM\x01"
_TABLE_START = struct.Struct("<II")  # skippable magic and payload length, as zstd defines them
_TABLE_ROW = struct.Struct(">BII32s32s")
_TABLE_END = struct.Struct(">I8s")  # number of rows, magic with the version
_CODEC_CODES: dict[Codec, int] = {"raw": 0, "zstd": 1}
_CODECS: dict[int, Codec] = {code: codec for codec, code in _CODEC_CODES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Locate one frame in its pack and pin what is stored and what it holds.

    `offset` counts from the start of the pack. A raw frame's two sizes and digests are equal.
    """

    offset: int
    stored_bytes: int
    content_bytes: int
    codec: Codec
    stored_digest: ObjectId
    content_digest: ObjectId


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """Describe a pack: the digest and size of the whole file, and its frames in order."""

    id: ObjectId
    size_bytes: int
    frames: tuple[Frame, ...]


class FrameCutter:
    """Cut a content stream into the contents of frames, holding one frame at a time.

    Where frames end depends on the objects only, never on how their bytes were fed.
    """

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, chunk: bytes | memoryview) -> list[bytes]:
        """Take the next bytes of the current object; return the frame contents that are full."""
        complete = []
        rest = memoryview(chunk)
        while rest:
            # A full frame is kept until another byte comes: the object may end right here.
            if len(self._pending) == FRAME_CONTENT_BYTES_MAX:
                complete.append(self._take())
            room = FRAME_CONTENT_BYTES_MAX - len(self._pending)
            self._pending += rest[:room]
            rest = rest[room:]
        return complete

    def end_object(self) -> list[bytes]:
        """Mark that the current object ends; return its frame's content if the frame ends too."""
        return [self._take()] if len(self._pending) >= FRAME_CONTENT_BYTES else []

    def finish(self) -> list[bytes]:
        """Mark that the stream ends; return what is left."""
        return [self._take()] if self._pending else []

    def _take(self) -> bytes:
        content = bytes(self._pending)
        self._pending.clear()
        return content


def cut_frames(objects: Iterable[Iterable[bytes]]) -> Iterator[bytes]:
    """Yield the contents of frames for `objects`, each given as its chunks, in content order."""
    cutter = FrameCutter()
    for chunks in objects:
        for chunk in chunks:
            yield from cutter.feed(chunk)
        yield from cutter.end_object()
    yield from cutter.finish()


def encode_frame(content: bytes | memoryview, *, level: int = FRAME_LEVEL) -> tuple[bytes, Codec]:
    """Compress the content of one frame; keep it raw where that saves less than 5 percent.

    The result is one zstd frame with its content size, without checksum and dictionary id, made by
    one thread with a window of at most 2^27. It depends on the version of the zstd library.

    Source: RFC 8878, section 3.1.1.
    """
    assert 0 < len(content) <= FRAME_CONTENT_BYTES_MAX, "frames come from a FrameCutter"
    default = zstandard.ZstdCompressionParameters.from_level(level, source_size=len(content))
    parameters = zstandard.ZstdCompressionParameters.from_level(
        level,
        source_size=len(content),
        window_log=min(default.window_log, WINDOW_LOG_MAX),
        write_content_size=True,
        write_checksum=False,
        write_dict_id=False,
        threads=0,
    )
    stored = zstandard.ZstdCompressor(compression_params=parameters).compress(content)
    if len(content) * 100 >= len(stored) * _RAW_BELOW_RATIO_PERCENT:
        return stored, "zstd"
    del stored  # not beside its copy: a frame is large
    return bytes(content), "raw"


def decode_frame(stored: bytes, frame: Frame) -> bytes:
    """Return the content of a frame, proved to be what `frame` names.

    Raises:
        Refused: `frame-digest-mismatch`, `frame-malformed`.
    """
    where = f"frame at {frame.offset}"
    if len(stored) != frame.stored_bytes:
        raise _bad_frame("a frame has a wrong length", frame.stored_bytes, len(stored), where)
    _check_digest("the stored form of a frame", stored, frame.stored_digest, where)
    if frame.codec == "raw":
        content = stored
    else:
        _check_zstd_header(stored, frame.content_bytes, where)
        decompressor = zstandard.ZstdDecompressor(max_window_size=1 << WINDOW_LOG_MAX)
        try:
            # The header declares the size, checked above, so this never allocates more.
            content = decompressor.decompress(stored, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise _bad_frame("a frame can't be decoded", "one zstd frame", error, where) from None
    if len(content) != frame.content_bytes:
        raise _bad_frame(
            "a frame's content has a wrong length", frame.content_bytes, len(content), where
        )
    _check_digest("the content of a frame", content, frame.content_digest, where)
    return content


class PackWriter:
    """Write one pack to `sink`, frame by frame, and describe it at the end."""

    def __init__(self, sink: Callable[[bytes], None]) -> None:
        self._sink = sink
        self._hasher = blake3()
        self._frames: list[Frame] = []
        self._offset = 0

    @property
    def is_full(self) -> bool:
        """Say whether the next frame belongs into a new pack."""
        return self._offset >= PACK_BYTES

    def add(self, content: bytes, *, level: int = FRAME_LEVEL) -> Frame:
        """Compress `content` and write it as the next frame."""
        stored, codec = encode_frame(content, level=level)
        return self.add_encoded(content, stored, codec)

    def add_encoded(self, content: bytes, stored: bytes, codec: Codec) -> Frame:
        """Write a frame that `encode_frame` made elsewhere, such as on another thread."""
        return self.add_proved(
            stored, codec, content_bytes=len(content), content_digest=object_id(content)
        )

    def add_proved(
        self, stored: bytes, codec: Codec, *, content_bytes: int, content_digest: ObjectId
    ) -> Frame:
        """Write a frame of which somebody proved what it holds, such as one of another pack."""
        assert not self.is_full, "a full pack takes no further frame"
        frame = Frame(
            offset=self._offset,
            stored_bytes=len(stored),
            content_bytes=content_bytes,
            codec=codec,
            stored_digest=content_digest if codec == "raw" else object_id(stored),
            content_digest=content_digest,
        )
        self._write(stored)
        self._frames.append(frame)
        return frame

    def finish(self) -> Pack:
        """Write the frame table and return the description of the pack."""
        frames = tuple(self._frames)
        self._write(encode_frame_table(frames))
        digest = ObjectId(self._hasher.digest())
        return Pack(id=digest, size_bytes=self._offset, frames=frames)

    def _write(self, raw: bytes) -> None:
        self._hasher.update(raw)
        self._offset += len(raw)
        self._sink(raw)


def frame_table_bytes(frame_count: int) -> int:
    """Return the size of the table of `frame_count` frames."""
    return _TABLE_START.size + frame_count * _TABLE_ROW.size + _TABLE_END.size


def frame_table_bytes_of(footer: bytes) -> int:
    """Return the size of the table that ends with `footer`, the last 12 bytes of a pack.

    Raises:
        Refused: `pack-malformed`.
    """
    if len(footer) != FRAME_TABLE_FOOTER_BYTES:
        raise _bad_table("a pack is too short", FRAME_TABLE_FOOTER_BYTES, len(footer))
    count, magic = _TABLE_END.unpack(footer)
    if magic != _TABLE_MAGIC or not 0 < count <= PACK_FRAMES_MAX:
        raise _bad_table("a pack doesn't end with a frame table", _TABLE_MAGIC, magic)
    return frame_table_bytes(count)


def encode_frame_table(frames: Sequence[Frame]) -> bytes:
    """Return the table of `frames` as one zstd skippable frame.

    Source: RFC 8878, section 3.1.2.
    """
    assert 0 < len(frames) <= PACK_FRAMES_MAX, "a pack has frames"
    rows = [
        _TABLE_ROW.pack(
            _CODEC_CODES[frame.codec],
            frame.stored_bytes,
            frame.content_bytes,
            frame.stored_digest,
            frame.content_digest,
        )
        for frame in frames
    ]
    payload = b"".join([*rows, _TABLE_END.pack(len(frames), _TABLE_MAGIC)])
    return _TABLE_START.pack(_SKIPPABLE_MAGIC, len(payload)) + payload


def decode_frame_table(raw: bytes) -> tuple[Frame, ...]:
    """Read the table of a pack: exactly its last `frame_table_bytes_of(...)` bytes.

    The table is a convenience, not evidence: what counts is the table of `packing.json`.

    Raises:
        Refused: `pack-malformed`.
    """
    size_bytes = frame_table_bytes_of(raw[-FRAME_TABLE_FOOTER_BYTES:])
    if len(raw) != size_bytes:
        raise _bad_table("a frame table has a wrong length", size_bytes, len(raw))
    if raw[: _TABLE_START.size] != _TABLE_START.pack(
        _SKIPPABLE_MAGIC, size_bytes - _TABLE_START.size
    ):
        raise _bad_table("a frame table is no skippable frame", "its header", "other bytes")
    frames: list[Frame] = []
    offset = 0
    for row in _TABLE_ROW.iter_unpack(raw[_TABLE_START.size : -_TABLE_END.size]):
        code, stored_bytes, content_bytes, stored_digest, content_digest = row
        codec = _CODECS.get(code)
        if codec is None:
            raise _bad_table("a frame has an unknown codec", "0 (raw) or 1 (zstd)", code)
        frame = Frame(
            offset=offset,
            stored_bytes=stored_bytes,
            content_bytes=content_bytes,
            codec=codec,
            stored_digest=ObjectId(stored_digest),
            content_digest=ObjectId(content_digest),
        )
        if not is_consistent(frame):
            raise _bad_table("a frame contradicts itself", "sizes and digests that agree", frame)
        frames.append(frame)
        offset += stored_bytes
    return tuple(frames)


def is_consistent(frame: Frame) -> bool:
    """Say whether sizes, codec and digests of `frame` can belong together."""
    if not 0 < frame.content_bytes <= FRAME_CONTENT_BYTES_MAX:
        return False
    if frame.codec == "raw":
        return (
            frame.stored_bytes == frame.content_bytes
            and frame.stored_digest == frame.content_digest
        )
    return 0 < frame.stored_bytes < frame.content_bytes


def _check_zstd_header(stored: bytes, content_bytes: int, where: str) -> None:
    # Skippable and legacy frames have other magics, and neither can hold content here.
    if not stored.startswith(_ZSTD_MAGIC):
        raise _bad_frame("a frame is no zstd frame", _ZSTD_MAGIC.hex(), stored[:4].hex(), where)
    try:
        header = zstandard.get_frame_parameters(stored)
    except zstandard.ZstdError as error:
        raise _bad_frame("a frame has no valid header", "zstd", error, where) from None
    if header.window_size > 1 << WINDOW_LOG_MAX:
        raise _bad_frame(
            "a frame's window is too large",
            f"at most 2^{WINDOW_LOG_MAX}",
            header.window_size,
            where,
        )
    if header.content_size != content_bytes:
        raise _bad_frame("a frame declares another size", content_bytes, header.content_size, where)
    if header.dict_id != 0 or header.has_checksum:
        raise _bad_frame(
            "a frame has a dictionary or a checksum",
            "neither",
            f"dictionary {header.dict_id}",
            where,
        )


def _check_digest(what: str, content: bytes, expected: ObjectId, where: str) -> None:
    digest = object_id(content)
    if digest != expected:
        raise Refused(
            "frame-digest-mismatch",
            f"{what} differs from what was named",
            expected=blake3_text(expected),
            got=blake3_text(digest),
            where=where,
        )


def _bad_frame(what: str, expected: object, got: object, where: str) -> Refused:
    return Refused("frame-malformed", what, expected=expected, got=got, where=where)


def _bad_table(what: str, expected: object, got: object) -> Refused:
    return Refused("pack-malformed", what, expected=expected, got=got, where="frame table")
