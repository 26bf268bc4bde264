"""Frames are planned as the kernel cuts them, and old ones are used where they fit."""

import hashlib
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from capsule.builder.frame_plan import KnownPack, PlannedFrame, pieces_of, plan_frames, steps
from capsule_manifest.digest import ObjectId
from capsule_manifest.pack import (
    FRAME_CONTENT_BYTES,
    FRAME_CONTENT_BYTES_MAX,
    Frame,
    Pack,
    cut_frames,
)

MIB = 1024 * 1024
SIZES = st.lists(
    st.one_of(
        st.integers(1, 3 * MIB),
        st.sampled_from(
            [FRAME_CONTENT_BYTES, FRAME_CONTENT_BYTES_MAX, FRAME_CONTENT_BYTES_MAX + 1, 40 * MIB]
        ),
    ),
    min_size=1,
    max_size=40,
)


def order_of(sizes):
    return tuple(
        (ObjectId(hashlib.sha256(f"{index} {size}".encode()).digest()), size)
        for index, size in enumerate(sizes)
    )


def cut_sizes(sizes):
    """What the kernel's cutter does."""
    return [len(frame) for frame in cut_frames([bytes(size)] for size in sizes)]


def sizes_of(planned):
    return [sum(piece.size_bytes for piece in frame.pieces) for frame in planned]


def known(order, stored_bytes=20 * MIB, per_pack=4):
    """The packs that an earlier build made of a stream."""
    frames = pieces_of(order, sizes_of(plan_frames(order, ())))
    packs = []
    for start in range(0, len(frames), per_pack):
        some = frames[start : start + per_pack]
        rows = tuple(
            Frame(
                offset=0, stored_bytes=1, content_bytes=sum(p.size_bytes for p in pieces),
                codec="raw", stored_digest=ObjectId(bytes(32)), content_digest=ObjectId(bytes(32)),
            )
            for pieces in some
        )  # fmt: skip
        pack = Pack(id=ObjectId(start.to_bytes(32)), size_bytes=stored_bytes, frames=rows)
        packs.append(KnownPack(path=Path(f"{start}.pack"), pack=pack, pieces=some))
    return packs


@settings(max_examples=30, deadline=None)  # real bytes are cut
@given(SIZES)
def test_without_old_packs_frames_are_those_of_the_kernel(sizes):
    order = order_of(sizes)
    planned = plan_frames(order, ())
    assert sizes_of(planned) == cut_sizes(sizes)
    assert pieces_of(order, sizes_of(planned)) == tuple(frame.pieces for frame in planned)


@settings(max_examples=200, deadline=None)
@given(SIZES, st.data())
def test_any_change_keeps_the_stream_and_uses_old_frames_whole(sizes, data):
    before = order_of(sizes)
    index = data.draw(st.integers(0, len(before) - 1))
    added = data.draw(st.integers(0, 5 * MIB))
    other = ((ObjectId(bytes([7]) * 32), added),) if added else ()
    after = (*before[:index], *other, *before[index + 1 :])
    planned = plan_frames(after, known(before))
    stream = [piece for frame in planned for piece in frame.pieces]
    position = 0
    for digest, size in after:
        offset = 0
        while offset < size:
            piece = stream[position]
            assert (piece.object, piece.offset) == (digest, offset)
            offset, position = offset + piece.size_bytes, position + 1
        assert offset == size
    assert position == len(stream)
    assert all(0 < size <= FRAME_CONTENT_BYTES_MAX for size in sizes_of(planned))
    for frame in planned:
        if frame.known is not None:
            assert frame.known.pack.pieces[frame.known.index] == frame.pieces


def test_a_change_in_the_middle_leaves_all_other_packs_as_they_are():
    sizes = [MIB] * 200
    before = order_of(sizes)
    packs = known(before)
    after = (*before[:90], (ObjectId(bytes([7]) * 32), 300_000), *before[91:])
    plan = steps(plan_frames(after, packs))
    new = [item for item in plan if isinstance(item, PlannedFrame) and item.known is None]
    linked = [item for item in plan if isinstance(item, KnownPack)]
    # 4 MiB frames, 4 of them a pack: one frame is new, its pack's other three are copied.
    assert len(new) == 1
    assert sum(piece.size_bytes for piece in new[0].pieces) == 3 * MIB + 300_000
    assert len(linked) == len(packs) - 1


def test_the_same_stream_is_the_same_packs():
    order = order_of([3 * MIB] * 50)
    packs = known(order)
    assert steps(plan_frames(order, packs)) == packs


def test_small_old_packs_are_copied_and_not_kept_for_ever():
    order = order_of([3 * MIB] * 20)
    packs = known(order, stored_bytes=MIB)
    plan = steps(plan_frames(order, packs))
    assert all(isinstance(item, PlannedFrame) and item.known is not None for item in plan)


def test_small_old_frames_are_packed_anew():
    before = order_of([FRAME_CONTENT_BYTES, 10, FRAME_CONTENT_BYTES])
    [pack] = known(before[:2])
    assert sizes_of(plan_frames(before[:2], [pack])) == [FRAME_CONTENT_BYTES, 10]
    planned = plan_frames(before, [pack])
    assert [frame.known is not None for frame in planned] == [True, False]


def test_a_packing_that_holds_more_than_the_tree_is_believed_only_so_far():
    order = order_of([5, 6])
    assert pieces_of(order, [5, 100]) == pieces_of(order, [5])
