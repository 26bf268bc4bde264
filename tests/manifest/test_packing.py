"""Tests of packing.json: round trip, and every way in which its numbers may not agree."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule_manifest.canonical import Limits, decode, encode
from capsule_manifest.digest import ObjectId, object_id
from capsule_manifest.packing import (
    Content,
    Frame,
    Pack,
    Packing,
    decode_packing,
    encode_packing,
)
from support.formats import CAPSULE_ID, make_pack, refused, sample_packing

Change = Callable[[Any], None]


def changed(change: Change) -> bytes:
    """Return the sample document after `change` was applied to its value."""
    document: Any = decode(encode_packing(sample_packing()[0]))
    change(document)
    return encode(document)


def first_pack(document: Any) -> Any:
    """Return the first pack of the content that has two."""
    return next(c for c in document["contents"].values() if len(c["packs"]) == 2)["packs"][0]


@given(
    st.lists(
        st.lists(st.binary(min_size=1, max_size=3000), min_size=1, max_size=3),
        max_size=3,
    )
)
def test_a_packing_reads_back(packs: list[list[bytes]]) -> None:
    described = tuple(make_pack(contents)[1] for contents in packs)
    content = Content(stream_bytes=sum(len(c) for p in packs for c in p), packs=described)
    packing = Packing(capsule=CAPSULE_ID, contents={object_id(b"root"): content})
    raw = encode_packing(packing)
    assert decode_packing(raw) == packing
    assert encode_packing(decode_packing(raw)) == raw


def test_offsets_are_told_by_sizes_and_not_written() -> None:
    packing = sample_packing()[0]
    assert [f.offset for p in packing.contents[object_id(b"tree one")].packs for f in p.frames] == [
        0,
        5,
        0,
    ]
    assert decode_packing(encode_packing(packing)) == packing


def test_packs_may_be_shared_between_trees() -> None:
    packing = decode_packing(encode_packing(sample_packing()[0]))
    one, two = packing.contents[object_id(b"tree one")], packing.contents[object_id(b"tree two")]
    assert one.packs[0] == two.packs[0]


@pytest.mark.parametrize(
    ("change", "error_id"),
    [
        (lambda d: d.update(schema="capsule-packing/2"), "document-version"),
        (lambda d: d.update(deltas=[{}]), "document-version"),
        (lambda d: d.update(deltas=None), "document-version"),
        (lambda d: d.update(chunking={}), "document-version"),
        (lambda d: d.update(more=1), "document-invalid"),
        (lambda d: d.pop("deltas"), "document-invalid"),
        (lambda d: d.update(capsule="sha256:00"), "digest-malformed"),
        (lambda d: d.update(capsule=7), "digest-malformed"),
        (lambda d: d.update(contents=[]), "document-invalid"),
        (lambda d: d["contents"].update({"blake3:xx": {}}), "document-invalid"),
        (lambda d: first_pack(d).update(id="x"), "digest-malformed"),
        (lambda d: first_pack(d).update(size_bytes=True), "document-invalid"),
        (lambda d: first_pack(d).update(size_bytes=-1), "document-invalid"),
        (lambda d: first_pack(d).update(size_bytes="1"), "document-invalid"),
        (lambda d: first_pack(d).update(size_bytes=1), "packing-inconsistent"),
        (lambda d: first_pack(d).update(frames={}), "document-invalid"),
        (lambda d: first_pack(d).update(frames=[]), "packing-inconsistent"),
        (lambda d: first_pack(d)["frames"].pop(), "packing-inconsistent"),
        (lambda d: first_pack(d)["frames"][0].pop(), "document-invalid"),
        (lambda d: first_pack(d)["frames"].append("row"), "document-invalid"),
        (lambda d: first_pack(d)["frames"][0].__setitem__(0, "lz4"), "document-invalid"),
        (lambda d: first_pack(d)["frames"][0].__setitem__(0, 1), "document-invalid"),
        (lambda d: first_pack(d)["frames"][0].__setitem__(0, "zstd"), "packing-inconsistent"),
        (lambda d: first_pack(d)["frames"][0].__setitem__(1, 4), "packing-inconsistent"),
        (lambda d: first_pack(d)["frames"][0].__setitem__(2, 2**30), "packing-inconsistent"),
        (lambda d: first_pack(d)["frames"][0].__setitem__(3, "AA" * 32), "digest-malformed"),
        (lambda d: first_pack(d)["frames"][0].__setitem__(4, "aa" * 32), "packing-inconsistent"),
    ],
)
def test_a_document_that_does_not_agree_is_refused(change: Change, error_id: str) -> None:
    with refused(error_id):
        decode_packing(changed(change))


def test_a_stream_that_its_frames_do_not_add_up_to_is_refused() -> None:
    def shorten(document: Any) -> None:
        content = next(c for c in document["contents"].values() if c["packs"])
        content["stream_bytes"] -= 1

    with refused("packing-inconsistent"):
        decode_packing(changed(shorten))


def test_one_pack_described_in_two_ways_is_refused() -> None:
    _, one = make_pack([b"content"])
    _, two = make_pack([b"CONTENT"])
    contents = {
        object_id(b"a"): Content(stream_bytes=7, packs=(one,)),
        object_id(b"b"): Content(stream_bytes=7, packs=(dataclasses.replace(two, id=one.id),)),
    }
    with refused("packing-inconsistent"):
        encode_packing(Packing(capsule=CAPSULE_ID, contents=contents))


def test_frames_with_a_gap_are_refused_by_the_writer_too() -> None:
    _, pack = make_pack([b"a", b"b"])
    moved = (pack.frames[0], dataclasses.replace(pack.frames[1], offset=2))
    content = Content(stream_bytes=2, packs=(dataclasses.replace(pack, frames=moved),))
    with refused("packing-inconsistent"):
        encode_packing(Packing(capsule=CAPSULE_ID, contents={object_id(b"a"): content}))


def test_a_pack_above_256_mib_is_refused() -> None:
    digest = ObjectId(bytes(32))
    size = 16 * 1024 * 1024
    frames = tuple(
        Frame(
            offset=i * size,
            stored_bytes=size,
            content_bytes=size,
            codec="raw",
            stored_digest=digest,
            content_digest=digest,
        )
        for i in range(16)
    )
    pack = Pack(id=digest, size_bytes=16 * size + 8 + 16 * 73 + 12, frames=frames)
    content = Content(stream_bytes=16 * size, packs=(pack,))
    with refused("packing-inconsistent"):
        encode_packing(Packing(capsule=CAPSULE_ID, contents={digest: content}))


def test_a_document_above_its_limit_is_refused() -> None:
    raw = encode_packing(sample_packing()[0])
    with refused("json-too-large"):
        decode_packing(raw, Limits(size_bytes_max=len(raw) - 1))


def test_another_spelling_of_the_same_value_is_refused() -> None:
    with refused("json-not-canonical"):
        decode_packing(encode_packing(sample_packing()[0]).replace(b":", b": ", 1))


def test_a_stream_above_2_to_the_53_bytes_is_refused() -> None:
    content = Content(stream_bytes=2**53, packs=())
    with refused("packing-inconsistent"):
        encode_packing(Packing(capsule=CAPSULE_ID, contents={object_id(b"a"): content}))


def many_frames(count: int) -> Content:
    """Return content of so many one-byte frames in one pack."""
    digest = ObjectId(bytes(32))
    frames = tuple(
        Frame(
            offset=i,
            stored_bytes=1,
            content_bytes=1,
            codec="raw",
            stored_digest=digest,
            content_digest=digest,
        )
        for i in range(count)
    )
    pack = Pack(id=digest, size_bytes=count + 8 + 73 * count + 12, frames=frames)
    return Content(stream_bytes=count, packs=(pack,))


def test_counts_of_frames_packs_and_trees_are_bounded() -> None:
    with refused("packing-inconsistent"):
        encode_packing(Packing(capsule=CAPSULE_ID, contents={object_id(b"a"): many_frames(65_537)}))
    shared = many_frames(50_001)
    contents = {object_id(b"%d" % i): shared for i in range(4)}
    with refused("packing-inconsistent"):
        encode_packing(Packing(capsule=CAPSULE_ID, contents=contents))
    empty = Content(stream_bytes=0, packs=())
    trees = {object_id(b"%d" % i): empty for i in range(10_001)}
    with refused("packing-inconsistent"):
        decode_packing(encode_packing(Packing(capsule=CAPSULE_ID, contents=trees)))
