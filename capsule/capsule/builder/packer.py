"""From the entries of a component to its tree and its packs.

Two passes: the first hashes every file and gives the tree; the second, only for what no earlier
capsule has in a frame of its own, reads an object once more and packs it. Memory holds a few
frames, never a component.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

from capsule.builder.examine import Examined, examine
from capsule.builder.frame_encoder import EncodedFrame, encode_frames
from capsule.builder.frame_plan import (
    KnownFrame,
    KnownPack,
    PlannedFrame,
    plan_frames,
    steps,
)
from capsule.builder.model import ComponentInput, InputEntry
from capsule.builder.object_reader import ObjectReader
from capsule.durable import link_file
from capsule_manifest.digest import ObjectId, object_id
from capsule_manifest.errors import Failed
from capsule_manifest.pack import PackWriter
from capsule_manifest.packing import Content, Pack
from capsule_manifest.paths import escape
from capsule_manifest.tree import Entry, EntryKind, Tree, build_tree, content_order

__all__ = ["Listing", "list_component", "pack_content", "pack_name"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A component's tree, and for each object one entry that its bytes can be read from.

    `secrets` has rule and line of what looks like one, by object; `content_bytes` is the length of
    the content stream.
    """

    tree: Tree
    sources: dict[ObjectId, InputEntry]
    secrets: dict[ObjectId, tuple[tuple[str, int], ...]]
    content_bytes: int


def list_component(component: ComponentInput) -> Listing:
    """Hash every file of a component and build its tree.

    Raises:
        Refused: what `build_tree` raises; `input-hollow`.
        Failed: `input-changed` when a file's size is not what its entry says.
    """
    sources: dict[ObjectId, InputEntry] = {}
    secrets: dict[ObjectId, tuple[tuple[str, int], ...]] = {}
    entries = []
    for item in component.entries:
        digest = None
        if item.kind is EntryKind.FILE:
            examined = _examined(item, component.name)
            digest = examined.object
            sources.setdefault(digest, item)
            if examined.secrets:
                secrets[digest] = examined.secrets
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
    tree = build_tree(entries)
    return Listing(
        tree=tree,
        sources=sources,
        secrets=secrets,
        content_bytes=sum(size for _, size in content_order(tree)),
    )


def pack_content(listing: Listing, folder: Path, known: Sequence[KnownPack] = ()) -> Content:
    """Write the content stream of a tree as packs into `folder`, named by their digests.

    Frames of `known` packs that hold what is wanted are copied, and whole packs of them linked;
    these packs were proved to be what their names say.

    Raises:
        Failed: `input-changed` when a file is not what it was in the first pass.
    """
    plan = steps(plan_frames(content_order(listing.tree), known))
    objects = ObjectReader(listing.sources)
    wanted = [item.pieces for item in plan if isinstance(item, PlannedFrame) and item.known is None]
    encoded = encode_frames(wanted, objects)
    with _Packs(folder) as packs, closing(objects), closing(encoded):
        for item in plan:
            if isinstance(item, KnownPack):
                packs.link(item)
            elif item.known is not None:
                packs.copy(item.known)
            else:
                packs.add(next(encoded))
        objects.finish()
        return Content(stream_bytes=listing.content_bytes, packs=packs.finish())


def pack_name(pack: ObjectId) -> str:
    """Return the file name of a pack."""
    return f"{pack.hex()}.pack"


def _examined(item: InputEntry, component: str) -> Examined:
    if item.examined is not None:
        return item.examined
    assert item.open is not None, "a file has content"
    with item.open() as stream:
        examined = examine(stream, f"{component}: {escape(item.path)}")
    if examined.size_bytes != item.size_bytes:
        raise _changed(
            f"{component}: {item.path}", f"{item.size_bytes} bytes", str(examined.size_bytes)
        )
    return examined


class _Packs:
    """The packs of one stream, one open at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._temporary = folder / ".open.pack"
        self._file: BinaryIO | None = None
        self._writer: PackWriter | None = None
        self._packs: list[Pack] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, frame: EncodedFrame) -> None:
        """Write a frame."""
        if self._writer is None:
            self._file = self._temporary.open("xb")
            self._writer = PackWriter(_sink(self._file.write))
        self._writer.add_proved(
            frame.stored,
            frame.codec,
            content_bytes=frame.content_bytes,
            content_digest=frame.content_digest,
        )
        if self._writer.is_full:
            self._close()

    def copy(self, known: KnownFrame) -> None:
        """Write a frame of an earlier pack again, as it is stored there."""
        frame = known.pack.pack.frames[known.index]
        with known.pack.path.open("rb") as stream:
            stream.seek(frame.offset)
            stored = stream.read(frame.stored_bytes)
        if object_id(stored) != frame.stored_digest:
            raise _changed(str(known.pack.path), frame.stored_digest.hex(), "other bytes")
        self.add(
            EncodedFrame(
                stored=stored,
                codec=frame.codec,
                content_bytes=frame.content_bytes,
                content_digest=frame.content_digest,
            )
        )

    def link(self, known: KnownPack) -> None:
        """Take a whole earlier pack."""
        self._close()
        link_file(known.path, self._folder / pack_name(known.pack.id))
        self._packs.append(known.pack)

    def finish(self) -> tuple[Pack, ...]:
        """Return the packs in order."""
        self._close()
        return tuple(self._packs)

    def _close(self) -> None:
        if self._writer is None or self._file is None:
            return
        pack = self._writer.finish()
        self._file.close()
        # Durable with the folder, which is published whole: syncing here would only keep waiting
        # those that compress.
        link_file(self._temporary, self._folder / pack_name(pack.id))
        self._temporary.unlink()
        self._packs.append(pack)
        self._writer = self._file = None


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
