"""The payload half of a `receive`: from frames to objects in the store, each byte checked once.

The content stream of a tree is cut into frames; which objects a frame holds follows from the
listing. A frame is asked for if it holds any byte that the store lacks. A large object spans frames
and grows in `incoming/`; after a stop its whole frames are hashed again and kept.

Memory: two frames and their contents, whatever the size of the release: one is decoded while the
objects of the one before are written.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import Final, NamedTuple

from blake3 import blake3

from capsule_installer.host.layout import Layout
from capsule_installer.staging.incoming import Listing
from capsule_installer.staging.store import ObjectStore
from capsule_installer.system.ahead import Ahead
from capsule_installer.system.disk import Disk, FileKind
from capsule_manifest.digest import ObjectId, blake3_text
from capsule_manifest.errors import Failed, Refused
from capsule_manifest.pack import Frame, decode_frame
from capsule_manifest.tree import Tree, content_order

__all__ = ["FramePlan", "FrameSink", "OpenFrame", "Spot", "part_path", "plan_frames"]

_HEAD_BYTES: Final = 36
_ROOT_BYTES: Final = 32
_PART_MODE: Final = 0o600
_CHUNK_BYTES: Final = 1024 * 1024
_LARGE_BYTES: Final = 64 * 1024
"""From here on hashing takes longer than asking another thread to do it."""
_SYNC_BYTES: Final = 16 * 1024 * 1024
"""After so much content the disk begins to write it, so that little is left for the last sync, and
little memory waits for the disk."""


class Spot(NamedTuple):
    """Where an object lies in the content stream of its tree. A tuple: there is one a file."""

    object: ObjectId
    start: int
    size_bytes: int
    executable: bool

    @property
    def end(self) -> int:
        """Return where the next one begins."""
        return self.start + self.size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FramePlan:
    """Which frames of one tree are wanted and how many bytes of objects they complete.

    `missing` are the objects that the store lacks; `kept` the bytes of each that came before.
    """

    frames: tuple[Frame, ...]
    starts: tuple[int, ...]
    spots: tuple[Spot, ...]
    wanted: tuple[int, ...]
    missing: Mapping[ObjectId, int]
    kept: Mapping[ObjectId, int]

    @property
    def stored_bytes(self) -> int:
        """Return how many bytes will come."""
        return sum(self.frames[index].stored_bytes for index in self.wanted)


def plan_frames(
    disk: Disk, layout: Layout, store: ObjectStore, listing: Listing, planned: set[ObjectId]
) -> FramePlan:
    """Return what is wanted of one tree. `planned` grows by what an earlier tree will bring.

    Raises: `disk-*`.
    """
    spots = tuple(_spots(listing.tree))
    starts: list[int] = []
    position = 0
    for frame in listing.frames:
        starts.append(position)
        position += frame.content_bytes
    missing: dict[ObjectId, int] = {}
    kept: dict[ObjectId, int] = {}
    parts = set(disk.list(layout.incoming))
    for spot in spots:
        if spot.object in planned or store.find(spot.object, spot.size_bytes) is not None:
            continue
        missing[spot.object] = spot.size_bytes
        if f"{spot.object.hex()}.part" not in parts:
            continue
        kept_bytes = _kept_bytes(disk, layout, spot, starts, listing.frames)
        if kept_bytes:
            kept[spot.object] = kept_bytes
    planned.update(missing)
    return FramePlan(
        frames=listing.frames,
        starts=tuple(starts),
        spots=spots,
        wanted=tuple(_wanted(spots, starts, listing.frames, missing, kept)),
        missing=missing,
        kept=kept,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenFrame:
    """A frame that was checked and decoded. `root` and `index` say where it belongs.

    `digests` are those of its large whole objects, by the names that they should have.
    """

    root: ObjectId
    index: int
    stored_bytes: int
    content: memoryview
    digests: Mapping[ObjectId, ObjectId]


class FrameSink:
    """Take the wanted frames, tree by tree and in order, and fill the store with their objects."""

    def __init__(
        self,
        disk: Disk,
        layout: Layout,
        store: ObjectStore,
        plans: Mapping[ObjectId, FramePlan],
    ) -> None:
        self._disk = disk
        self._layout = layout
        self._store = store
        self._plans = plans
        self._waiting = {root: list(plan.wanted) for root, plan in plans.items() if plan.wanted}
        self._tree: ObjectId | None = None
        self._part: _Part | None = None
        self._unwritten_bytes = 0
        self.frames = 0
        self.stored_bytes = 0

    def open(self, body: bytes) -> "Ahead[OpenFrame]":
        """Begin to decode the body of a FRAME message, which must be the next one wanted.

        Raises:
            Refused: `wire-malformed` for a frame that was not asked for or is out of order.
        """
        root = ObjectId(body[:_ROOT_BYTES])
        index = int.from_bytes(body[_ROOT_BYTES:_HEAD_BYTES], "big")
        self._check_order(root, index, len(body))
        plan = self._plans[root]
        frame = plan.frames[index]
        stored = body[_HEAD_BYTES:]

        def decode() -> OpenFrame:
            content = memoryview(decode_frame(stored, frame))
            return OpenFrame(
                root=root,
                index=index,
                stored_bytes=frame.stored_bytes,
                content=content,
                digests={
                    spot.object: ObjectId(blake3(piece).digest())
                    for spot, _, piece in _pieces(plan, index, content)
                    if len(piece) == spot.size_bytes >= _LARGE_BYTES
                },
            )

        return Ahead(decode)

    def take(self, opened: OpenFrame) -> None:
        """Take the content of the frame that was opened after the last one taken.

        Raises:
            Refused: `object-malformed`.
            Failed: `partial-damaged`, `disk-*`.
        """
        plan = self._plans[opened.root]
        for spot, offset, piece in _pieces(plan, opened.index, opened.content):
            self._take_piece(plan, spot, offset, piece, opened.digests.get(spot.object))
        self._begin_sync(len(opened.content), at_bytes=_SYNC_BYTES)
        self.frames += 1
        self.stored_bytes += opened.stored_bytes

    def finish(self) -> None:
        """Say that no more frames come.

        Raises:
            Refused: `wire-malformed` when a wanted frame has not come.
        """
        if self._waiting:
            root, indexes = next(iter(self._waiting.items()))
            raise Refused(
                "wire-malformed",
                "the stream ended before every wanted frame came",
                expected=f"{len(indexes)} more frames of {blake3_text(root)}",
            )
        assert self._part is None, "every wanted frame came, so no object is open"
        self._begin_sync(0, at_bytes=_CHUNK_BYTES)

    def close(self) -> None:
        """Close what is open; what has come of it stays for the next run."""
        if self._part is not None:
            self._part.close()
            self._part = None

    def _begin_sync(self, more_bytes: int, *, at_bytes: int) -> None:
        self._unwritten_bytes += more_bytes
        if self._unwritten_bytes >= at_bytes:
            self._unwritten_bytes = 0
            self._disk.begin_sync(self._layout.store)

    def _check_order(self, root: ObjectId, index: int, size_bytes: int) -> None:
        indexes = self._waiting.get(root)
        # One tree after the other: an object that two trees share must not arrive in both at once.
        other_tree = self._tree is not None and self._tree != root and self._tree in self._waiting
        if size_bytes < _HEAD_BYTES or not indexes or indexes[0] != index or other_tree:
            raise Refused(
                "wire-malformed",
                "a frame came that is not the next one wanted",
                got=f"frame {index} of {blake3_text(root)}",
            )
        self._tree = root
        indexes.pop(0)
        if not indexes:
            del self._waiting[root]

    def _take_piece(
        self,
        plan: FramePlan,
        spot: Spot,
        offset: int,
        piece: memoryview,
        digest: ObjectId | None,
    ) -> None:
        if len(piece) == spot.size_bytes:
            digest = digest or ObjectId(blake3(piece).digest())
            if digest != spot.object:
                raise _wrong_object(spot, digest)
            self._store.put(spot.object, piece, executable=spot.executable)
            return
        kept_bytes = plan.kept.get(spot.object, 0)
        if offset + len(piece) <= kept_bytes:
            # A frame that was asked for because of its other objects.
            return
        if self._part is None:
            self._part = _Part(self._disk, part_path(self._layout, spot.object), kept_bytes)
        assert self._part.size_bytes == offset, "frames come in order and kept ones are not asked"
        self._part.write(piece)
        if self._part.size_bytes == spot.size_bytes:
            part, self._part = self._part, None
            self._finish_part(part, spot, was_kept=bool(kept_bytes))

    def _finish_part(self, part: "_Part", spot: Spot, *, was_kept: bool) -> None:
        part.close()
        digest = part.digest()
        if digest == spot.object:
            self._store.adopt(part.path, digest, executable=spot.executable)
            return
        self._disk.unlink(part.path)
        if was_kept:
            raise Failed(
                "partial-damaged",
                "what was kept of an interrupted transfer is damaged and was removed",
                where=part.path,
                retryable=True,
            )
        raise _wrong_object(spot, digest)


class _Part:
    """A large object that is growing."""

    def __init__(self, disk: Disk, path: str, kept_bytes: int) -> None:
        self.path = path
        self.size_bytes = kept_bytes
        self._hasher = blake3()
        if kept_bytes:
            with disk.open_read(path) as file:
                for chunk in _chunks(file.read, kept_bytes):
                    self._hasher.update(chunk)
            self._writer = disk.grow(path, kept_bytes)
            return
        if disk.stat(path) is not None:
            disk.unlink(path)
        self._writer = disk.create(path, _PART_MODE)

    def write(self, piece: memoryview) -> None:
        self._writer.write(piece)
        self._hasher.update(piece)
        self.size_bytes += len(piece)

    def digest(self) -> ObjectId:
        return ObjectId(self._hasher.digest())

    def close(self) -> None:
        self._writer.close()


def part_path(layout: Layout, digest: ObjectId) -> str:
    """Return where an object grows."""
    return f"{layout.incoming}/{digest.hex()}.part"


def _pieces(
    plan: FramePlan, index: int, content: memoryview
) -> Iterator[tuple[Spot, int, memoryview]]:
    """Yield the missing objects of a frame: each with where in it the piece begins, and the piece.

    Reads nothing that changes, so that two threads may look at two frames.
    """
    start = plan.starts[index]
    end = start + len(content)
    position = bisect_right(plan.spots, start, key=attrgetter("end"))
    for spot in islice(plan.spots, position, None):
        if spot.start >= end:
            break
        if spot.object in plan.missing:
            piece = content[max(0, spot.start - start) : spot.end - start]
            yield spot, max(spot.start, start) - spot.start, piece


def _spots(tree: Tree) -> Iterator[Spot]:
    executable = {
        entry.object for entry in tree.entries if entry.object is not None and entry.mode & 0o100
    }
    start = 0
    for digest, size_bytes in content_order(tree):
        yield Spot(
            object=digest, start=start, size_bytes=size_bytes, executable=digest in executable
        )
        start += size_bytes


def _wanted(
    spots: tuple[Spot, ...],
    starts: list[int],
    frames: tuple[Frame, ...],
    missing: Mapping[ObjectId, int],
    kept: Mapping[ObjectId, int],
) -> Iterator[int]:
    needed = [
        (spot.start + kept.get(spot.object, 0), spot.end)
        for spot in spots
        if spot.object in missing
    ]
    position = 0
    for index, frame in enumerate(frames):
        start, end = starts[index], starts[index] + frame.content_bytes
        while position < len(needed) and needed[position][1] <= start:
            position += 1
        if position < len(needed) and needed[position][0] < end:
            yield index


def _kept_bytes(
    disk: Disk, layout: Layout, spot: Spot, starts: list[int], frames: tuple[Frame, ...]
) -> int:
    """Return how much of a part file can be kept: whole frames whose digest is right.

    The piece in its first frame may have no digest of its own, because that frame began with other
    objects; it is kept unchecked, and the digest of the whole object decides in the end.
    """
    found = disk.stat(part_path(layout, spot.object))
    if found is None or found.kind is not FileKind.FILE:
        return 0
    kept = 0
    with disk.open_read(part_path(layout, spot.object)) as file:
        for start, frame in zip(starts, frames, strict=True):
            end = start + frame.content_bytes
            if end <= spot.start:
                continue
            if end >= spot.end or end - spot.start > found.size_bytes:
                break
            piece = file.read(end - max(start, spot.start))
            if start >= spot.start and blake3(piece).digest() != frame.content_digest:
                break
            kept = end - spot.start
    return kept


def _chunks(read: Callable[[int], bytes], size_bytes: int) -> Iterator[bytes]:
    while size_bytes:
        chunk = read(min(_CHUNK_BYTES, size_bytes))
        if not chunk:
            return
        size_bytes -= len(chunk)
        yield chunk


def _wrong_object(spot: Spot, digest: ObjectId) -> Refused:
    return Refused(
        "object-malformed",
        "an object is not what its listing names",
        expected=blake3_text(spot.object),
        got=blake3_text(digest),
    )
