"""From the entries of a component to its tree and its packs.

Two passes: the first hashes every file and gives the tree; the second, only when no earlier capsule
has the same tree, reads each object once more and packs it. Memory holds a few frames, never a
component.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from blake3 import blake3

from capsule.builder.model import ComponentInput, InputEntry
from capsule.builder.solid import solid_chunks
from capsule.durable import publish_path
from capsule_manifest.digest import ObjectId
from capsule_manifest.errors import Failed
from capsule_manifest.pack import Codec, PackWriter, cut_frames, encode_frame
from capsule_manifest.packing import Content, Pack
from capsule_manifest.paths import escape
from capsule_manifest.tree import Entry, EntryKind, Tree, build_tree, content_order

__all__ = ["Listing", "list_component", "pack_content", "pack_name"]

_CHUNK_BYTES: Final = 1024 * 1024
_WORKERS_MAX: Final = 2
_FRAMES_AHEAD: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A component's tree, and for each object one entry that its bytes can be read from."""

    tree: Tree
    sources: dict[ObjectId, InputEntry]

    @property
    def content_bytes(self) -> int:
        """Return the length of the content stream."""
        return sum(size for _, size in content_order(self.tree))


def list_component(component: ComponentInput) -> Listing:
    """Hash every file of a component and build its tree.

    Raises:
        Refused: what `build_tree` raises; `input-hollow`.
        Failed: `input-changed` when a file's size is not what its entry says.
    """
    sources: dict[ObjectId, InputEntry] = {}
    entries = []
    for item in component.entries:
        digest = None
        if item.kind is EntryKind.FILE:
            digest = _hash(item, component.name)
            sources.setdefault(digest, item)
        entries.append(
            Entry(
                path=item.path,
                kind=item.kind,
                mode=item.mode,
                size_bytes=item.size_bytes,
                object=digest,
                target=item.target,
            )
        )
    return Listing(tree=build_tree(entries), sources=sources)


def pack_content(listing: Listing, folder: Path) -> Content:
    """Write the content stream of a tree as packs into `folder`, named by their digests.

    Raises:
        Failed: `input-changed` when a file is not what it was in the first pass.
    """
    packs: list[Pack] = []
    stream = cut_frames(
        _object(listing.sources[digest], digest, size)
        for digest, size in content_order(listing.tree)
    )
    encoded = _encode_ahead(stream)
    following = next(encoded, None)
    while following is not None:
        temporary = folder / f".{len(packs)}.pack"
        with temporary.open("xb") as file:
            writer = PackWriter(_sink(file.write))
            while following is not None and not writer.is_full:
                content, stored, codec = following
                writer.add_encoded(content, stored, codec)
                following = next(encoded, None)
            pack = writer.finish()
        publish_path(temporary, folder / pack_name(pack.id))
        packs.append(pack)
    return Content(stream_bytes=listing.content_bytes, packs=tuple(packs))


def pack_name(pack: ObjectId) -> str:
    """Return the file name of a pack."""
    return f"{pack.hex()}.pack"


def _hash(item: InputEntry, component: str) -> ObjectId:
    assert item.open is not None, "a file has content"
    hasher = blake3()
    size_bytes = 0
    with item.open() as stream:
        for chunk in solid_chunks(stream, f"{component}: {escape(item.path)}"):
            hasher.update(chunk)
            size_bytes += len(chunk)
    if size_bytes != item.size_bytes:
        raise _changed(f"{component}: {item.path}", f"{item.size_bytes} bytes", str(size_bytes))
    return ObjectId(hasher.digest())


def _object(item: InputEntry, digest: ObjectId, size_bytes: int) -> Iterator[bytes]:
    assert item.open is not None, "a file has content"
    hasher = blake3()
    left = size_bytes
    with item.open() as stream:
        # One byte more than expected is asked for at the end, so growth is noticed too.
        while chunk := stream.read(min(_CHUNK_BYTES, left + 1)):
            hasher.update(chunk)
            left -= len(chunk)
            if left < 0:
                break
            yield chunk
    # Frames with the wrong bytes are already written, but nothing will ever name them.
    if left or hasher.digest() != digest:
        raise _changed(item.path, digest.hex(), hasher.digest().hex())


def _encode_ahead(contents: Iterator[bytes]) -> Iterator[tuple[bytes, bytes, Codec]]:
    """Compress on other threads, a few frames ahead, and yield in order."""
    workers = min(_WORKERS_MAX, os.cpu_count() or 1)
    pending: deque[tuple[bytes, Future[tuple[bytes, Codec]]]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="pack") as pool:
        for content in contents:
            pending.append((content, pool.submit(encode_frame, content)))
            if len(pending) > _FRAMES_AHEAD:
                yield _result(*pending.popleft())
        while pending:
            yield _result(*pending.popleft())


def _result(content: bytes, future: Future[tuple[bytes, Codec]]) -> tuple[bytes, bytes, Codec]:
    stored, codec = future.result()
    return content, stored, codec


def _sink(write: Callable[[bytes], int]) -> Callable[[bytes], None]:
    def sink(data: bytes) -> None:
        write(data)

    return sink


def _changed(where: str, expected: str, got: str) -> Failed:
    return Failed(
        "input-changed",
        "an input changed while it was being built",
        expected=expected,
        got=got,
        where=where,
        retryable=True,
    )
