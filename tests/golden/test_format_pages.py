"""The examples on the reference pages are real: they read, and give the digests the page names."""

import re
from pathlib import Path

import pytest

from capsule_manifest.container import check_member_name, member_header
from capsule_manifest.digest import object_id
from capsule_manifest.errors import Refused
from capsule_manifest.pack import decode_frame_table, frame_table_bytes
from capsule_manifest.packing import decode_packing
from capsule_manifest.tree import decode_tree

PAGES = Path(__file__).parent.parent.parent / "docs" / "reference"


def example(page: str, language: str) -> tuple[str, str]:
    """Return the page and its one example in `language`."""
    text = (PAGES / page).read_text()
    blocks = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 1
    return text, blocks[0].strip()


def test_the_tree_on_its_page_has_the_root_that_the_page_names() -> None:
    text, block = example("tree.md", "hex")
    tree = decode_tree(bytes.fromhex(block), root=None)
    assert f"The root is `{tree.root.hex()}`" in text
    assert [entry.path for entry in tree.entries] == ["bin", "bin/tool", "run"]


def test_the_pack_on_its_page_has_the_id_that_the_page_names() -> None:
    text, block = example("pack.md", "hex")
    raw = bytes.fromhex(block)
    assert f"Its id is `{object_id(raw).hex()}`" in text
    assert len(decode_frame_table(raw[-frame_table_bytes(1) :])) == 1


def test_the_packing_on_its_page_reads_and_names_the_pack_of_the_other_page() -> None:
    packing = decode_packing(example("packing.md", "json")[1].encode())
    (content,) = packing.contents.values()
    assert content.packs[0].id == object_id(bytes.fromhex(example("pack.md", "hex")[1]))


def test_the_container_page_gives_the_real_limits() -> None:
    text = (PAGES / "container.md").read_text()
    rows = re.findall(r"^\| `([a-z./*]+)`.*? \| (\d+) (KiB|MiB) \|", text, re.MULTILINE)
    assert len(rows) == 9
    for member, number, unit in rows:
        name = member.replace("*", "a")
        check_member_name(name)
        size = int(number) * {"KiB": 1024, "MiB": 1024**2}[unit]
        member_header(name, size)
        with pytest.raises(Refused):
            member_header(name, size + 1)


def test_the_container_page_lays_out_the_real_header() -> None:
    text = (PAGES / "container.md").read_text()
    rows = [(int(o), int(n)) for o, n in re.findall(r"^\| (\d+) \| (\d+) \|", text, re.MULTILINE)]
    assert [offset for offset, _ in rows] == [sum(n for _, n in rows[:i]) for i in range(len(rows))]
    assert sum(n for _, n in rows) == len(member_header("capsule.json", 0))
