"""Decide which frames carry a content stream: old ones where they fit, new ones between them.

A frame is known by the pieces of objects that it holds, and those follow from a signed tree and the
sizes in a packing. So a frame of an earlier capsule can be used again although another file of its
component changed, and without reading what it holds. Where a new frame would run into an old one
that fits, it ends; otherwise frames end where `capsule_manifest.pack` says. Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from capsule_manifest.digest import ObjectId
from capsule_manifest.pack import FRAME_CONTENT_BYTES, FRAME_CONTENT_BYTES_MAX, Pack

__all__ = ["KnownFrame", "KnownPack", "Piece", "PlannedFrame", "pieces_of", "plan_frames", "steps"]

_KEPT_FRAME_BYTES_MIN: Final = 1024 * 1024
"""A smaller old frame is packed anew with what surrounds it, or small ones would never go."""

_KEPT_PACK_BYTES_MIN: Final = 16 * 1024 * 1024
"""Frames of a smaller old pack are copied, or packs would become many and small."""


class Piece(NamedTuple):
    """A range of one object."""

    object: ObjectId
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPack:
    """A pack on the disk, and the pieces that each of its frames holds."""

    path: Path
    pack: Pack
    pieces: tuple[tuple[Piece, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFrame:
    """One frame of a known pack."""

    pack: KnownPack
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFrame:
    """What a frame of the new stream holds, and the old frame that holds the same, if any."""

    pieces: tuple[Piece, ...]
    known: KnownFrame | None


def pieces_of(
    order: Sequence[tuple[ObjectId, int]], sizes: Iterable[int]
) -> tuple[tuple[Piece, ...], ...]:
    """Return the pieces that frames of these content sizes hold; fewer if they hold too much."""
    frames: list[tuple[Piece, ...]] = []
    index, offset = 0, 0
    for size_bytes in sizes:
        pieces: list[Piece] = []
        left = size_bytes
        while left and index < len(order):
            digest, whole = order[index]
            taken = min(left, whole - offset)
            pieces.append(Piece(digest, offset, taken))
            left -= taken
            offset += taken
            if offset == whole:
                index, offset = index + 1, 0
        if left:
            break
        frames.append(tuple(pieces))
    return tuple(frames)


def plan_frames(
    order: Sequence[tuple[ObjectId, int]], known: Sequence[KnownPack]
) -> list[PlannedFrame]:
    """Return the frames of a content stream, in order."""
    by_start = _by_start(known)
    planned: list[PlannedFrame] = []
    pending: list[Piece] = []
    size_bytes, index, offset = 0, 0, 0

    def flush() -> None:
        nonlocal size_bytes
        if pending:
            planned.append(PlannedFrame(pieces=tuple(pending), known=None))
            pending.clear()
            size_bytes = 0

    while index < len(order):
        digest, whole = order[index]
        old = _fitting(by_start.get((digest, offset), ()), order, index)
        if old is not None:
            flush()
            pieces = old.pack.pieces[old.index]
            planned.append(PlannedFrame(pieces=pieces, known=old))
            last = pieces[-1]
            index += len(pieces) - 1
            offset = last.offset + last.size_bytes
        else:
            if size_bytes == FRAME_CONTENT_BYTES_MAX:
                flush()
            taken = min(whole - offset, FRAME_CONTENT_BYTES_MAX - size_bytes)
            pending.append(Piece(digest, offset, taken))
            offset += taken
            size_bytes += taken
        if offset == order[index][1]:
            index, offset = index + 1, 0
            if size_bytes >= FRAME_CONTENT_BYTES:
                flush()
    flush()
    return planned


def steps(planned: Sequence[PlannedFrame]) -> list[PlannedFrame | KnownPack]:
    """Return the plan with runs of frames that are a whole old pack replaced by that pack."""
    found: list[PlannedFrame | KnownPack] = []
    index = 0
    while index < len(planned):
        pack = _whole_pack(planned, index)
        found.append(planned[index] if pack is None else pack)
        index += 1 if pack is None else len(pack.pieces)
    return found


def _by_start(known: Sequence[KnownPack]) -> Mapping[tuple[ObjectId, int], list[KnownFrame]]:
    by_start: dict[tuple[ObjectId, int], list[KnownFrame]] = {}
    for pack in known:
        for index, pieces in enumerate(pack.pieces):
            frame = KnownFrame(pack=pack, index=index)
            by_start.setdefault((pieces[0].object, pieces[0].offset), []).append(frame)
    return by_start


def _fitting(
    candidates: Iterable[KnownFrame], order: Sequence[tuple[ObjectId, int]], index: int
) -> KnownFrame | None:
    """Return the first frame whose pieces are exactly what comes from `index` on."""
    for frame in candidates:
        pieces = frame.pack.pieces[frame.index]
        following = order[index : index + len(pieces)]
        is_small = sum(piece.size_bytes for piece in pieces) < _KEPT_FRAME_BYTES_MIN
        if is_small and index + len(pieces) < len(order):
            continue
        if len(following) == len(pieces) and all(
            piece.object == digest and piece.offset + piece.size_bytes <= whole
            for piece, (digest, whole) in zip(pieces, following, strict=True)
        ):
            return frame
    return None


def _whole_pack(planned: Sequence[PlannedFrame], index: int) -> KnownPack | None:
    first = planned[index].known
    if first is None or first.index or first.pack.pack.size_bytes < _KEPT_PACK_BYTES_MIN:
        return None
    run = planned[index : index + len(first.pack.pieces)]
    is_whole = len(run) == len(first.pack.pieces) and all(
        frame.known is not None and frame.known.pack is first.pack and frame.known.index == position
        for position, frame in enumerate(run)
    )
    return first.pack if is_whole else None
