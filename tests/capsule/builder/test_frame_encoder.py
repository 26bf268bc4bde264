"""Frames are made on several threads, and are what one thread would have made."""

import os
from contextlib import closing
from functools import partial
from io import BytesIO

import pytest

from capsule.builder.frame_encoder import encode_frames
from capsule.builder.frame_plan import Piece, plan_frames
from capsule.builder.model import InputEntry
from capsule.builder.object_reader import ObjectReader
from capsule_manifest.digest import object_id
from capsule_manifest.errors import Failed
from capsule_manifest.pack import cut_frames, encode_frame
from capsule_manifest.tree import EntryKind

MIB = 1024 * 1024
SHORT = [b"%d " % index * (index % 7 + 1) * 9_000 for index in range(200)]
LONG = os.urandom(21 * MIB)
OBJECTS = [*SHORT[:90], LONG, *SHORT[90:], b"an end" * MIB, os.urandom(5 * MIB)]


def reader(objects, instead=None):
    """A reader of these objects, of which some read as others."""
    instead = instead or {}
    sources = {
        object_id(data): InputEntry(
            path=f"file-{index}", kind=EntryKind.FILE, mode=0o644, size_bytes=len(data),
            open=partial(BytesIO, instead.get(index, data)),
        )
        for index, data in enumerate(objects)
    }  # fmt: skip
    return ObjectReader(sources)


def other(data, index):
    """The same bytes but one."""
    changed = bytearray(data)
    changed[index] ^= 1
    return bytes(changed)


def planned(objects):
    order = [(object_id(data), len(data)) for data in objects]
    return [frame.pieces for frame in plan_frames(order, [])]


def encoded(objects, frames, workers=2):
    with closing(objects):
        found = list(encode_frames(frames, objects, workers=workers))
        objects.finish()
        return found


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_frames_are_the_same_on_any_number_of_threads(workers):
    contents = list(cut_frames([data] for data in OBJECTS))
    frames = encoded(reader(OBJECTS), planned(OBJECTS), workers)
    assert [(frame.stored, frame.codec) for frame in frames] == [
        encode_frame(content) for content in contents
    ]
    assert [(frame.content_bytes, frame.content_digest) for frame in frames] == [
        (len(content), object_id(content)) for content in contents
    ]
    assert {frame.codec for frame in frames} == {"zstd", "raw"}


@pytest.mark.parametrize("index", [0, 90, len(OBJECTS) - 1], ids=["short", "long", "last"])
@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1],
        lambda data: data + b"more",
        lambda data: other(data, -1),
        lambda _: b"",
    ],
    ids=["shorter", "longer", "other", "empty"],
)
def test_an_object_that_changed_since_it_was_hashed_fails_the_build(index, change):
    objects = reader(OBJECTS, {index: change(OBJECTS[index])})
    with pytest.raises(Failed) as caught:
        encoded(objects, planned(OBJECTS))
    assert caught.value.error_id == "input-changed"


def test_an_object_of_which_a_part_is_wanted_is_proved_whole():
    part = [[Piece(object_id(LONG), 3 * MIB + 5, 2 * MIB)]]
    [frame] = encoded(reader(OBJECTS), part)
    assert frame.content_digest == object_id(LONG[3 * MIB + 5 : 5 * MIB + 5])
    for change in (other(LONG, 0), other(LONG, -1), LONG + b"more"):
        objects = reader(OBJECTS, {90: change})
        with pytest.raises(Failed, match="changed"):
            encoded(objects, part)
