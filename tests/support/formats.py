"""Samples of the content formats, and one way to assert a refusal by its id."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
import zstandard

from capsule_manifest.container import write_container
from capsule_manifest.digest import CapsuleId, ObjectId, object_id
from capsule_manifest.error_table import ROWS
from capsule_manifest.errors import Refused
from capsule_manifest.pack import Frame, Pack, PackWriter
from capsule_manifest.packing import Content, Packing, encode_packing
from capsule_manifest.tree import Entry, EntryKind, Tree, build_tree, encode_tree

__all__ = [
    "CAPSULE_ID",
    "directory",
    "file",
    "link",
    "make_pack",
    "refused",
    "sample_container",
    "sample_members",
    "sample_packing",
    "sample_tree",
    "zstd_frame",
]

CAPSULE_ID = CapsuleId("sha256:" + "5a" * 32)


@contextmanager
def refused(error_id: str) -> Iterator[None]:
    """Assert that the block is refused with `error_id`, and that the table has a row for it."""
    with pytest.raises(Refused) as caught:
        yield
    assert caught.value.error_id == error_id, str(caught.value)
    assert caught.value.error_id in ROWS
    assert str(caught.value).isprintable()


def file(path: str, content: bytes = b"content", mode: int = 0o644) -> Entry:
    """Return a file entry that holds `content`."""
    return Entry(
        path=path,
        kind=EntryKind.FILE,
        mode=mode,
        size_bytes=len(content),
        object=object_id(content),
    )


def directory(path: str, mode: int = 0o755) -> Entry:
    """Return a directory entry."""
    return Entry(path=path, kind=EntryKind.DIRECTORY, mode=mode)


def link(path: str, target: str) -> Entry:
    """Return a link entry."""
    return Entry(path=path, kind=EntryKind.LINK, mode=0o777, target=target)


def sample_tree() -> Tree:
    """Return a tree with every kind of entry, nesting, a shared object and a non-ASCII name."""
    return build_tree(
        [
            file("bin/tool", b"#!/bin/sh\n", 0o755),
            file("lib/a.py", b"one"),
            file("lib/a/b.py", b"two"),
            file("lib/a/copy.py", b"one"),
            file("lib/a-b.py", b"three"),
            file("empty", b""),
            file("näme", b"four", 0o600),
            link("lib/latest", "a/b.py"),
            link("lib/a/up", "../a.py"),
            directory("var", 0o700),
        ]
    )


def make_pack(contents: Sequence[bytes]) -> tuple[bytes, Pack]:
    """Return a pack with one frame per content, and its description."""
    raw = bytearray()
    writer = PackWriter(raw.extend)
    for content in contents:
        writer.add(content)
    pack = writer.finish()
    return bytes(raw), pack


def zstd_frame(stored: bytes, content: bytes) -> Frame:
    """Return a frame description that fits `stored`, whatever is wrong with it."""
    return Frame(
        offset=0,
        stored_bytes=len(stored),
        content_bytes=len(content),
        codec="zstd",
        stored_digest=object_id(stored),
        content_digest=object_id(content),
    )


def sample_packing() -> tuple[Packing, bytes, bytes]:
    """Return a packing with its two packs, which don't depend on the version of zstd."""
    raw_pack = bytearray()
    writer = PackWriter(raw_pack.extend)
    writer.add_encoded(b"first", b"first", "raw")
    writer.add_encoded(b"second", b"second", "raw")
    first = writer.finish()
    zstd_pack = bytearray()
    writer = PackWriter(zstd_pack.extend)
    # A frame as it is stored, so that a new library can't change it: 64 times `a`.
    stored = bytes.fromhex("28b52ffd20403d000008610100447242")
    assert zstandard.ZstdDecompressor().decompress(stored) == b"a" * 64
    writer.add_encoded(b"a" * 64, stored, "zstd")
    second = writer.finish()
    packing = Packing(
        capsule=CAPSULE_ID,
        contents={
            object_id(b"tree one"): Content(stream_bytes=75, packs=(first, second)),
            object_id(b"tree two"): Content(stream_bytes=11, packs=(first,)),
            ObjectId(bytes(32)): Content(stream_bytes=0, packs=()),
        },
    )
    return packing, bytes(raw_pack), bytes(zstd_pack)


def sample_members() -> list[tuple[str, int, list[bytes]]]:
    """Return the members of a small container in order, each in two chunks."""
    packing, first, second = sample_packing()
    tree = sample_tree()
    contents = [
        ("capsule.json", b"{}"),
        ("signatures/a.sigstore.json", b"{}"),
        ("signatures/b.sigstore.json", bytes(512)),
        ("packing.json", encode_packing(packing)),
        ("sbom/cyclonedx.json", b""),
        ("provenance/build.json", b"{}"),
        (f"trees/{tree.root.hex()}", encode_tree(tree)),
    ]
    contents += sorted((f"packs/{object_id(raw).hex()}", raw) for raw in (first, second))
    return [(name, len(raw), [raw[:1], raw[1:]]) for name, raw in contents]


def sample_container() -> bytes:
    """Return the bytes of a small container with a member in most folders."""
    return b"".join(write_container(sample_members()))
