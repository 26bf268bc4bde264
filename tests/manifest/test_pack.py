"""Tests of frames and packs: where frames end, and what is refused before decoding."""

import dataclasses
import random
import struct

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from capsule_manifest.digest import object_id
from capsule_manifest.pack import (
    FRAME_CONTENT_BYTES,
    FRAME_CONTENT_BYTES_MAX,
    FRAME_TABLE_FOOTER_BYTES,
    PACK_BYTES,
    WINDOW_LOG_MAX,
    Frame,
    FrameCutter,
    PackWriter,
    cut_frames,
    decode_frame,
    decode_frame_table,
    encode_frame,
    encode_frame_table,
    frame_table_bytes,
    frame_table_bytes_of,
)
from support.formats import make_pack, refused, zstd_frame

MIB = 1024 * 1024
TEXT = b"the same words again and again; " * 400


def cut_sizes(*sizes: int) -> list[int]:
    """Return the content sizes of the frames of objects with `sizes`."""
    return [len(content) for content in cut_frames([bytes(size)] for size in sizes)]


# --- cutting -----------------------------------------------------------------------------------


def test_a_frame_ends_at_the_first_object_boundary_from_4_mib() -> None:
    assert cut_sizes(MIB, MIB, MIB, MIB, MIB) == [4 * MIB, MIB]
    assert cut_sizes(3 * MIB, 2 * MIB, MIB) == [5 * MIB, MIB]
    assert cut_sizes(3 * MIB, 13 * MIB, 1) == [16 * MIB, 1]


def test_an_object_that_does_not_end_in_16_mib_spans_frames() -> None:
    assert cut_sizes(3 * MIB, 13 * MIB + 1, MIB) == [16 * MIB, MIB + 1]
    assert cut_sizes(40 * MIB) == [16 * MIB, 16 * MIB, 8 * MIB]
    assert cut_sizes(32 * MIB, 1) == [16 * MIB, 16 * MIB, 1]


def test_no_content_makes_no_frame() -> None:
    assert cut_sizes() == []
    assert cut_sizes(0) == []


def test_content_is_neither_lost_nor_repeated() -> None:
    generator = random.Random(7)
    objects = [generator.randbytes(generator.randrange(3 * MIB)) for _ in range(12)]
    frames = list(cut_frames([content] for content in objects))
    assert b"".join(frames) == b"".join(objects)
    assert all(FRAME_CONTENT_BYTES <= len(f) <= FRAME_CONTENT_BYTES_MAX for f in frames[:-1])


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.integers(0, 20 * MIB), max_size=4),
    st.integers(100_000, 18 * MIB),
)
def test_frames_do_not_depend_on_how_objects_are_fed(sizes: list[int], chunk: int) -> None:
    pieces = [
        [bytes(min(chunk, size - start)) for start in range(0, size, chunk)] for size in sizes
    ]
    assert [len(f) for f in cut_frames(pieces)] == cut_sizes(*sizes)


def test_a_cutter_holds_one_frame_at_most() -> None:
    cutter = FrameCutter()
    held = 0
    for _ in range(40):
        held += MIB - sum(map(len, cutter.feed(bytes(MIB))))
        assert held <= FRAME_CONTENT_BYTES_MAX


# --- frames ------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=5000), st.sampled_from([1, 3, 6, 9, 19]))
def test_a_frame_reads_back(content: bytes, level: int) -> None:
    stored, codec = encode_frame(content, level=level)
    frame = dataclasses.replace(zstd_frame(stored, content), codec=codec)
    assert decode_frame(stored, frame) == content


def test_what_zstd_does_not_help_stays_raw() -> None:
    noise = random.Random(1).randbytes(100_000)
    assert encode_frame(noise) == (noise, "raw")
    stored, codec = encode_frame(TEXT)
    assert codec == "zstd"
    assert len(stored) < len(TEXT)


def test_raw_begins_below_a_ratio_of_1_05() -> None:
    """Walk from all noise to half noise: the codec changes exactly at the ratio."""
    seen = set()
    for share in range(50, 101):
        content = random.Random(share).randbytes(share * 200) + bytes((100 - share) * 200)
        compressed = zstandard.ZstdCompressor(level=6, write_checksum=False).compress(content)
        codec = encode_frame(content)[1]
        assert (codec == "raw") == (len(content) / len(compressed) < 1.05)
        seen.add(codec)
    assert seen == {"raw", "zstd"}


def test_a_frame_is_one_zstd_frame_with_size_and_without_checksum_or_dictionary() -> None:
    stored, _ = encode_frame(TEXT)
    header = zstandard.get_frame_parameters(stored)
    assert header.content_size == len(TEXT)
    assert header.dict_id == 0
    assert not header.has_checksum
    assert zstandard.ZstdDecompressor().decompress(stored, allow_extra_data=False) == TEXT


def test_encoding_twice_gives_the_same_bytes() -> None:
    assert encode_frame(TEXT) == encode_frame(TEXT)


@pytest.mark.parametrize("level", [19, 22])
def test_no_level_exceeds_a_window_of_2_to_the_27(level: int) -> None:
    content = TEXT * 100
    stored, _ = encode_frame(content, level=level)
    assert zstandard.get_frame_parameters(stored).window_size <= 1 << WINDOW_LOG_MAX


def test_a_changed_stored_byte_is_refused_before_decoding() -> None:
    stored, _ = encode_frame(TEXT)
    frame = zstd_frame(stored, TEXT)
    for position in range(len(stored)):
        changed = bytearray(stored)
        changed[position] ^= 1
        with refused("frame-digest-mismatch"):
            decode_frame(bytes(changed), frame)


def test_a_frame_of_another_length_is_refused() -> None:
    stored, _ = encode_frame(TEXT)
    for wrong in (stored[:-1], stored + b"\0", b""):
        with refused("frame-malformed"):
            decode_frame(wrong, zstd_frame(stored, TEXT))


def test_other_content_than_named_is_refused() -> None:
    stored, _ = encode_frame(TEXT)
    frame = dataclasses.replace(zstd_frame(stored, TEXT), content_digest=object_id(b"other"))
    with refused("frame-digest-mismatch"):
        decode_frame(stored, frame)


def test_bomb_whose_size_exceeds_its_description_is_refused() -> None:
    bomb = zstandard.ZstdCompressor(level=19).compress(bytes(200 * MIB))
    with refused("frame-malformed"):
        decode_frame(bomb, zstd_frame(bomb, bytes(1000)))


def test_bomb_that_hides_its_size_is_refused() -> None:
    compressor = zstandard.ZstdCompressor(write_content_size=False)
    bomb = compressor.compress(bytes(MIB))
    with refused("frame-malformed"):
        decode_frame(bomb, zstd_frame(bomb, bytes(MIB)))


def test_bomb_that_lies_about_its_size_is_refused() -> None:
    """The header promises 1000 bytes, the blocks hold a mebibyte."""
    small = zstandard.ZstdCompressor().compress(bytes(1000))
    large = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(MIB))
    # Magic, descriptor and two size bytes of the small frame; the large has a window byte instead.
    bomb = small[: small.index(b"\xe8\x02") + 2] + large[6:]
    with refused("frame-malformed"):
        decode_frame(bomb, zstd_frame(bomb, bytes(1000)))


def test_zstd_window_above_2_to_the_27_is_refused() -> None:
    content = TEXT
    # A frame header by hand: window descriptor 2^28, content size of 4 bytes, one raw block.
    header = b"\x28\xb5\x2f\xfd" + bytes([0b1000_0000, (28 - 10) << 3])
    header += struct.pack("<I", len(content))
    block = struct.pack("<I", 1 | 0 << 1 | len(content) << 3)[:3] + content
    good = b"\x28\xb5\x2f\xfd" + bytes([0b1000_0000, (27 - 10) << 3]) + header[6:] + block
    assert decode_frame(good, zstd_frame(good, content)) == content
    bad = header + block
    with refused("frame-malformed"):
        decode_frame(bad, zstd_frame(bad, content))


@pytest.mark.parametrize("extra", [b"\0", b"\x50\x2a\x4d\x18\0\0\0\0", None])
def test_data_after_the_frame_is_refused(extra: bytes | None) -> None:
    stored, _ = encode_frame(TEXT)
    longer = stored + (stored if extra is None else extra)
    with refused("frame-malformed"):
        decode_frame(longer, zstd_frame(longer, TEXT))


@pytest.mark.parametrize(
    "stored",
    [
        b"\x50\x2a\x4d\x18\x01\0\0\0a",
        b"\x28\xb5\x2f\xfd",
        b"\x28\xb5\x2f\xfd\x20",
        b"x" * 50,
        zstandard.ZstdCompressor(write_checksum=True).compress(TEXT),
        encode_frame(TEXT)[0][:-4],
    ],
)
def test_what_is_not_one_plain_zstd_frame_is_refused(stored: bytes) -> None:
    with refused("frame-malformed"):
        decode_frame(stored, zstd_frame(stored, TEXT))


def test_a_raw_frame_is_checked_like_any_other() -> None:
    content = b"noise"
    frame = dataclasses.replace(zstd_frame(content, content), codec="raw")
    assert decode_frame(content, frame) == content
    with refused("frame-digest-mismatch"):
        decode_frame(b"noisy", frame)


def test_a_raw_frame_with_another_content_size_is_refused() -> None:
    frame = dataclasses.replace(zstd_frame(b"noise", b"nois"), codec="raw")
    with refused("frame-malformed"):
        decode_frame(b"noise", frame)


# --- packs -------------------------------------------------------------------------------------


def test_a_pack_is_frames_and_their_table_and_its_id_covers_both() -> None:
    contents = [TEXT, random.Random(2).randbytes(5000), b"x" * 9000]
    raw, pack = make_pack(contents)
    assert pack.id == object_id(raw)
    assert pack.size_bytes == len(raw)
    assert [frame.codec for frame in pack.frames] == ["zstd", "raw", "zstd"]
    stored = [raw[f.offset : f.offset + f.stored_bytes] for f in pack.frames]
    assert [decode_frame(s, f) for s, f in zip(stored, pack.frames, strict=True)] == contents
    table_bytes = frame_table_bytes_of(raw[-FRAME_TABLE_FOOTER_BYTES:])
    assert table_bytes == frame_table_bytes(3)
    assert raw == b"".join(stored) + raw[-table_bytes:]
    assert decode_frame_table(raw[-table_bytes:]) == pack.frames


def test_a_zstd_reader_skips_the_frame_table() -> None:
    raw, _ = make_pack([TEXT, b"x" * 9000])
    reader = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
    assert reader.read() == TEXT + b"x" * 9000


def test_a_pack_is_full_from_64_mib_on() -> None:
    written = 0

    def sink(raw: bytes) -> None:
        nonlocal written
        written += len(raw)

    writer = PackWriter(sink)
    noise = random.Random(3).randbytes(FRAME_CONTENT_BYTES_MAX)
    while not writer.is_full:
        assert written < PACK_BYTES
        writer.add_encoded(noise, noise, "raw")
    assert written == PACK_BYTES
    with pytest.raises(AssertionError):
        writer.add(noise)


def test_every_truncation_and_every_changed_bit_of_structure_is_refused() -> None:
    raw, pack = make_pack([TEXT, b"x" * 9000])
    table = encode_frame_table(pack.frames)
    assert raw.endswith(table)
    for length in range(len(table)):
        with refused("pack-malformed"):
            decode_frame_table(table[:length])
        with refused("pack-malformed"):
            decode_frame_table(table[length + 1 :])
    for position in [*range(9), *range(len(table) - FRAME_TABLE_FOOTER_BYTES, len(table))]:
        changed = bytearray(table)
        changed[position] ^= 0xFF
        with refused("pack-malformed"):
            decode_frame_table(bytes(changed))


@pytest.mark.parametrize(
    "change",
    [
        {"stored_bytes": 0},
        {"content_bytes": 0},
        {"content_bytes": FRAME_CONTENT_BYTES_MAX + 1},
        {"stored_bytes": 9000},
        {"codec": "raw"},
    ],
)
def test_a_frame_that_contradicts_itself_is_refused(change: dict[str, object]) -> None:
    _, pack = make_pack([b"x" * 9000])
    frame: Frame = dataclasses.replace(pack.frames[0], **change)  # type: ignore[arg-type]
    with refused("pack-malformed"):
        decode_frame_table(encode_frame_table([frame]))
