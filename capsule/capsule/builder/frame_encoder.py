"""Read and compress the frames of a content stream on several threads, and give them in order."""

import os
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Lock
from typing import Final

from capsule.builder.frame_plan import Piece
from capsule.builder.object_reader import ObjectReader
from capsule_manifest.digest import ObjectId, object_id
from capsule_manifest.pack import Codec, encode_frame

__all__ = ["EncodedFrame", "encode_frames"]

_WORKERS: Final = min(4, os.cpu_count() or 1)
"""So many frames are compressed at a time."""

_DONE_AHEAD: Final = 1
"""So many more may be done or asked for, so that nobody waits while one is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedFrame:
    """One frame as it is stored, and what it holds."""

    stored: bytes
    codec: Codec
    content_bytes: int
    content_digest: ObjectId


def encode_frames(
    frames: Sequence[Sequence[Piece]], objects: ObjectReader, *, workers: int = _WORKERS
) -> Generator[EncodedFrame, None, None]:
    """Yield frames that hold these pieces, in order. Memory holds a few, however many there are.

    What a frame is does not depend on `workers`, the number of threads.

    Raises:
        Failed: `input-changed`.
    """
    encoder = _Encoder(frames, objects, workers)
    done: dict[int, EncodedFrame] = {}
    pending: deque[Future[tuple[int, EncodedFrame]]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="pack") as pool:
        asked = 0
        for number in range(len(frames)):
            while asked < min(len(frames), number + workers + _DONE_AHEAD):
                pending.append(pool.submit(encoder.encode_next))
                asked += 1
            # Two workers that begin together may take their frames in either order.
            while number not in done:
                taken, frame = pending.popleft().result()
                done[taken] = frame
            yield done.pop(number)


class _Encoder:
    """Whoever is free reads the next frame, and compresses it while another one reads."""

    def __init__(
        self, frames: Sequence[Sequence[Piece]], objects: ObjectReader, buffers: int
    ) -> None:
        self._frames = enumerate(frames)
        self._objects = objects
        self._reading = Lock()
        # Used again and again: to clear new memory for each frame costs as much as to read it.
        self._buffers: SimpleQueue[bytearray] = SimpleQueue()
        for _ in range(buffers):
            self._buffers.put(bytearray())

    def encode_next(self) -> tuple[int, EncodedFrame]:
        """Return the next frame and its number."""
        buffer = self._buffers.get()
        try:
            # An object may go on in the next frame, so frames are read one after another.
            with self._reading:
                number, pieces = next(self._frames)
                size_bytes = sum(piece.size_bytes for piece in pieces)
                if len(buffer) < size_bytes:
                    buffer = bytearray(size_bytes)
                content = memoryview(buffer)[:size_bytes]
                self._objects.read(pieces, content)
            return number, _encode(content)
        finally:
            self._buffers.put(buffer)


def _encode(content: memoryview) -> EncodedFrame:
    stored, codec = encode_frame(content)
    return EncodedFrame(
        stored=stored,
        codec=codec,
        content_bytes=len(content),
        content_digest=object_id(content),
    )
