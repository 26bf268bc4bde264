"""Golden bytes of the content formats: a change of bytes needs a change of version.

Rewrite them with `pytest tests/golden --update-goldens`, after the version was raised.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from capsule_manifest.container import ContainerReader, End
from capsule_manifest.digest import object_id
from capsule_manifest.pack import (
    FRAME_TABLE_FOOTER_BYTES,
    decode_frame,
    decode_frame_table,
    frame_table_bytes_of,
)
from capsule_manifest.packing import decode_packing, encode_packing
from capsule_manifest.tree import decode_tree, encode_tree
from support.formats import sample_container, sample_packing, sample_tree

VECTORS = Path(__file__).parent / "vectors"
TREE_ROOT = "2bd44c358abe83e858004f83d21eb5e6c101d7f6fb1f11e8a0088fa419ecc470"

FORMATS: dict[str, Callable[[], bytes]] = {
    "container.capsule": sample_container,
    "pack-raw.pack": lambda: sample_packing()[1],
    "pack-zstd.pack": lambda: sample_packing()[2],
    "packing.json": lambda: encode_packing(sample_packing()[0]),
    "sample.tree": lambda: encode_tree(sample_tree()),
}


@pytest.mark.parametrize("name", FORMATS)
def test_the_bytes_of_a_format_change_only_with_its_version(
    name: str, request: pytest.FixtureRequest
) -> None:
    if request.config.getoption("--update-goldens"):
        (VECTORS / name).write_bytes(FORMATS[name]())
    assert FORMATS[name]() == (VECTORS / name).read_bytes()


def test_the_committed_tree_reads_to_its_known_root() -> None:
    raw = (VECTORS / "sample.tree").read_bytes()
    assert decode_tree(raw, root=None).root.hex() == TREE_ROOT


@pytest.mark.parametrize("name", ["pack-raw.pack", "pack-zstd.pack"])
def test_every_frame_of_a_committed_pack_decodes(name: str) -> None:
    raw = (VECTORS / name).read_bytes()
    table_bytes = frame_table_bytes_of(raw[-FRAME_TABLE_FOOTER_BYTES:])
    frames = decode_frame_table(raw[-table_bytes:])
    content = b"".join(decode_frame(raw[f.offset : f.offset + f.stored_bytes], f) for f in frames)
    assert content in {b"firstsecond", b"a" * 64}
    packing = decode_packing((VECTORS / "packing.json").read_bytes())
    packs = {pack.id: pack for c in packing.contents.values() for pack in c.packs}
    assert packs[object_id(raw)].frames == frames


def test_the_committed_container_reads_to_its_end() -> None:
    reader = ContainerReader()
    assert reader.feed((VECTORS / "container.capsule").read_bytes())[-1] == End()
    reader.close()
