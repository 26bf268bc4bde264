"""Tests of tree listings: one spelling, strict reading, Merkle digests, differences."""

import dataclasses
import struct

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from capsule_manifest.digest import ObjectId, object_id
from capsule_manifest.errors import CapsuleError, Refused
from capsule_manifest.tree import (
    EMPTY_OBJECT,
    TREE_HEADER,
    Entry,
    EntryKind,
    Tree,
    TreeDiff,
    TreeLimits,
    build_tree,
    content_order,
    decode_tree,
    diff_trees,
    encode_tree,
)
from support.formats import directory, file, link, refused, sample_tree

NAMES = st.sampled_from(["a", "b", "a-b", "a.b", "c", "ä", "~", "z z"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
CONTENTS = st.sampled_from([b"", b"x", b"y", b"long" * 9])


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Draw a legal tree; a path below a file or link is left out."""
    chosen: dict[str, Entry] = {}
    for path in draw(st.lists(PATHS, max_size=12)):
        parents = [path[:i] for i, c in enumerate(path) if c == "/"]
        if any(p in chosen and chosen[p].kind is not EntryKind.DIRECTORY for p in parents):
            continue
        if path in chosen or any(other.startswith(path + "/") for other in chosen):
            continue
        chosen[path] = draw(
            st.one_of(
                st.builds(file, st.just(path), CONTENTS, st.sampled_from([0o644, 0o755, 0o640])),
                st.builds(directory, st.just(path), st.sampled_from([0o755, 0o700, 0o750])),
                st.builds(link, st.just(path), st.sampled_from(["x", "./y/z", "q//r"])),
            )
        )
    return build_tree(chosen.values())


def record(*entries: bytes, count: int | None = None) -> bytes:
    """Return a directory record of raw entries."""
    return struct.pack(">I", len(entries) if count is None else count) + b"".join(entries)


def raw_entry(kind: int, mode: int, name: bytes, payload: bytes) -> bytes:
    """Return a raw entry with right lengths and anything else."""
    return (
        struct.pack(">HBHB", 4 + len(name) + len(payload), kind, mode, len(name)) + name + payload
    )


def raw_file(name: bytes, content: bytes = b"x", mode: int = 0o644) -> bytes:
    """Return a raw file entry."""
    return raw_entry(1, mode, name, struct.pack(">Q32s", len(content), object_id(content)))


def raw_directory(name: bytes, child: bytes, mode: int = 0o755) -> bytes:
    """Return a raw directory entry that names the record `child`."""
    context = "capsule tree 1 directory record"
    return raw_entry(2, mode, name, blake3(child, derive_key_context=context).digest())


# --- building ----------------------------------------------------------------------------------


def test_entries_come_in_path_order_with_directories_before_their_content() -> None:
    tree = build_tree([file("a/b"), file("a-b"), file("a.b"), file("b")])
    assert [entry.path for entry in tree.entries] == ["a", "a/b", "a-b", "a.b", "b"]


def test_missing_parent_directories_are_added_with_mode_0755() -> None:
    tree = build_tree([file("a/b/c"), directory("a", 0o700)])
    assert [(e.path, e.mode) for e in tree.entries] == [
        ("a", 0o700),
        ("a/b", 0o755),
        ("a/b/c", 0o644),
    ]


def test_the_order_of_input_does_not_matter() -> None:
    tree = sample_tree()
    assert build_tree(reversed(tree.entries)) == tree


def test_a_duplicate_entry_is_refused() -> None:
    with refused("tree-entry-invalid"):
        build_tree([file("a"), file("a")])


@pytest.mark.parametrize("parent", [file("a"), link("a", "b")])
def test_a_file_or_link_used_as_a_directory_is_refused(parent: Entry) -> None:
    for entries in ([parent, file("a/x/y")], [file("a/x/y"), parent]):
        with refused("tree-entry-invalid"):
            build_tree(entries)


@pytest.mark.parametrize("path", ["../a", "/a", "a//b", "", "bad\udcff", "a\0"])
def test_a_surrogate_name_or_an_escaping_path_is_refused(path: str) -> None:
    with refused("path-invalid"):
        build_tree([file(path)])


def test_every_mode_outside_the_short_lists_is_refused() -> None:
    accepted: dict[str, list[int]] = {"file": [], "directory": [], "link": []}
    for mode in range(0o10000):
        for entry in (file("a"), directory("a"), link("a", "b")):
            try:
                build_tree([dataclasses.replace(entry, mode=mode)])
            except Refused:
                continue
            accepted[entry.kind].append(mode)
    assert accepted == {
        "file": [0o600, 0o640, 0o644, 0o700, 0o750, 0o755],
        "directory": [0o700, 0o750, 0o755],
        "link": [0o777],
    }


@pytest.mark.parametrize(
    "entry",
    [
        dataclasses.replace(file("a"), object=None),
        dataclasses.replace(file("a"), object=ObjectId(b"short")),
        dataclasses.replace(file("a"), size_bytes=-1),
        dataclasses.replace(file("a"), size_bytes=2**53),
        dataclasses.replace(file("a"), size_bytes=0),
        dataclasses.replace(file("a"), object=EMPTY_OBJECT),
        dataclasses.replace(file("a"), target="b"),
        dataclasses.replace(directory("a"), object=EMPTY_OBJECT),
        dataclasses.replace(directory("a"), size_bytes=1),
        dataclasses.replace(directory("a"), target="b"),
        dataclasses.replace(link("a", "b"), target=None),
        dataclasses.replace(link("a", "b"), size_bytes=1),
    ],
)
def test_fields_that_do_not_fit_the_kind_are_refused(entry: Entry) -> None:
    with refused("tree-entry-invalid"):
        build_tree([entry])


def test_one_object_with_two_sizes_is_refused() -> None:
    with refused("tree-entry-invalid"):
        build_tree([file("a"), dataclasses.replace(file("b"), size_bytes=8)])


def test_content_of_more_than_2_to_the_53_bytes_is_refused() -> None:
    huge = dataclasses.replace(file("a", b"x"), size_bytes=2**53 - 1)
    build_tree([huge])
    with refused("tree-too-large"):
        build_tree([huge, file("b", b"y")])


def test_a_tree_may_be_empty() -> None:
    tree = build_tree([])
    assert decode_tree(encode_tree(tree), root=tree.root) == tree
    assert content_order(tree) == ()


def test_a_tree_nests_64_levels_and_reads_back() -> None:
    tree = build_tree([file("/".join(["d"] * 64)), directory("/".join(["e"] * 64))])
    assert decode_tree(encode_tree(tree), root=tree.root) == tree


# --- round trip and digests --------------------------------------------------------------------


@given(trees())
def test_a_tree_reads_back_as_it_was_written(tree: Tree) -> None:
    raw = encode_tree(tree)
    again = decode_tree(raw, root=tree.root)
    assert again == tree
    assert again.directories == tree.directories
    assert encode_tree(again) == raw


@settings(max_examples=300)
@given(trees(), st.data())
def test_no_other_bytes_than_those_written_are_read(tree: Tree, data: st.DataObject) -> None:
    """Without a root to compare with, a changed tree may decode, but only to its own bytes."""
    raw = bytearray(encode_tree(tree))
    position = data.draw(st.integers(0, len(raw) - 1))
    raw[position] ^= data.draw(st.integers(1, 255))
    try:
        again = decode_tree(bytes(raw), root=None)
    except CapsuleError:
        return
    assert encode_tree(again) == bytes(raw)
    assert again.root != tree.root


def test_a_directory_digest_covers_everything_below_it() -> None:
    before = sample_tree()
    entries = [
        dataclasses.replace(e, mode=0o755) if e.path == "lib/a/b.py" else e for e in before.entries
    ]
    after = build_tree(entries)
    differing = {p for p in before.directories if before.directories[p] != after.directories[p]}
    assert differing == {"", "lib", "lib/a"}


def test_equal_directories_have_one_digest_wherever_they_lie() -> None:
    tree = build_tree([file("a/x"), file("b/c/x")])
    assert tree.directories["a"] == tree.directories["b/c"]


def test_the_digest_of_a_record_is_not_the_digest_of_a_file_with_its_bytes() -> None:
    tree = build_tree([file("a")])
    assert tree.root != object_id(encode_tree(tree)[len(TREE_HEADER) :])


def test_an_encoder_refuses_a_tree_with_a_foreign_root() -> None:
    tree = dataclasses.replace(sample_tree(), root=EMPTY_OBJECT)
    with pytest.raises(AssertionError):
        encode_tree(tree)


# --- strict reading ----------------------------------------------------------------------------


def test_another_root_is_refused() -> None:
    with refused("tree-digest-mismatch"):
        decode_tree(encode_tree(sample_tree()), root=EMPTY_OBJECT)


def test_every_truncation_is_refused() -> None:
    raw = encode_tree(sample_tree())
    for length in range(len(raw)):
        with pytest.raises(Refused):
            decode_tree(raw[:length], root=None)


def test_trailing_bytes_are_refused() -> None:
    with refused("tree-malformed"):
        decode_tree(encode_tree(sample_tree()) + b"\0", root=None)


def test_a_foreign_file_and_a_newer_version_are_told_apart() -> None:
    raw = encode_tree(sample_tree())
    with refused("tree-malformed"):
        decode_tree(b"X" + raw[1:], root=None)
    with refused("document-version"):
        decode_tree(raw[:8] + (2).to_bytes(4, "big") + raw[12:], root=None)


@pytest.mark.parametrize(
    ("entries", "error_id"),
    [
        ([raw_file(b"b"), raw_file(b"a")], "tree-malformed"),
        ([raw_file(b"a"), raw_file(b"a")], "tree-malformed"),
        ([raw_file(b"")], "tree-malformed"),
        ([raw_file(b"..")], "path-invalid"),
        ([raw_file(b"a/b")], "path-invalid"),
        ([raw_file(b"a\0")], "path-invalid"),
        ([raw_file(b"\xff")], "path-invalid"),
        ([raw_file(b"\xed\xb3\xbf")], "path-invalid"),
        ([raw_file(b"a", mode=0o4755)], "tree-entry-invalid"),
        ([raw_entry(0, 0o644, b"a", b"")], "tree-malformed"),
        ([raw_entry(4, 0o644, b"a", bytes(40))], "tree-malformed"),
        ([raw_entry(1, 0o644, b"a", bytes(39))], "tree-malformed"),
        ([raw_entry(1, 0o644, b"a", bytes(41))], "tree-malformed"),
        ([raw_entry(1, 0o644, b"a", bytes(40))], "tree-entry-invalid"),
        ([raw_entry(2, 0o755, b"a", bytes(31))], "tree-malformed"),
        ([raw_entry(3, 0o777, b"a", b"")], "path-invalid"),
        ([raw_entry(3, 0o777, b"a", b"\xff")], "path-invalid"),
        ([raw_entry(3, 0o777, b"a", b"/etc")], "link-escapes"),
        ([raw_entry(3, 0o777, b"a", b"../b")], "link-escapes"),
        ([raw_entry(3, 0o755, b"a", b"b")], "tree-entry-invalid"),
    ],
)
def test_an_entry_that_no_writer_makes_is_refused(entries: list[bytes], error_id: str) -> None:
    with refused(error_id):
        decode_tree(TREE_HEADER + record(*entries), root=None)


def test_lengths_that_disagree_are_refused() -> None:
    entry = bytearray(raw_file(b"abc"))
    entry[5] = 200  # the name's length, past the end of the entry
    with refused("tree-malformed"):
        decode_tree(TREE_HEADER + record(bytes(entry)), root=None)


def test_a_child_record_other_than_the_named_one_is_refused() -> None:
    child, other = record(raw_file(b"x")), record(raw_file(b"y"))
    good = TREE_HEADER + record(raw_directory(b"d", child))
    assert decode_tree(good + child, root=None).entries[-1].path == "d/x"
    with refused("tree-digest-mismatch"):
        decode_tree(good + other, root=None)


def test_nesting_deeper_than_64_levels_is_refused() -> None:
    records = [record(raw_file(b"x"))]
    for _ in range(64):
        records.append(record(raw_directory(b"d", records[-1])))
    with refused("tree-malformed"):
        decode_tree(TREE_HEADER + b"".join(reversed(records)), root=None)


def test_a_path_longer_than_4096_bytes_is_refused() -> None:
    name = b"n" * 255
    records = [record(raw_file(b"x" * 16))]
    for _ in range(16):
        records.append(record(raw_directory(name, records[-1])))
    with refused("tree-malformed"):
        decode_tree(TREE_HEADER + b"".join(reversed(records)), root=None)


def test_a_count_is_refused_before_its_entries_are_read() -> None:
    with refused("tree-too-large"):
        decode_tree(TREE_HEADER + record(count=2**32 - 1), root=None)


def test_limits_of_size_entries_and_path_bytes_hold() -> None:
    tree = sample_tree()
    raw = encode_tree(tree)
    exact = TreeLimits(size_bytes_max=len(raw), entries_max=len(tree.entries))
    assert decode_tree(raw, root=tree.root, limits=exact) == tree
    for limits in (
        TreeLimits(size_bytes_max=len(raw) - 1),
        TreeLimits(entries_max=len(tree.entries) - 1),
        TreeLimits(path_bytes_max=10),
    ):
        with refused("tree-too-large"):
            decode_tree(raw, root=tree.root, limits=limits)


# --- differences and content -------------------------------------------------------------------


@given(trees(), trees())
def test_a_difference_says_what_two_listings_say(old: Tree, new: Tree) -> None:
    before = {entry.path: entry for entry in old.entries}
    after = {entry.path: entry for entry in new.entries}
    assert diff_trees(old, new) == TreeDiff(
        added=tuple(e for e in new.entries if e.path not in before),
        removed=tuple(e for e in old.entries if e.path not in after),
        changed=tuple(
            (before[e.path], e) for e in new.entries if e.path in before and before[e.path] != e
        ),
    )


def test_equal_directories_are_skipped_without_a_look_inside() -> None:
    """The entries below are swapped for others under an unchanged digest: nobody notices."""
    tree = build_tree([file("a/x"), file("a/y"), file("b")])
    entries = tuple(
        dataclasses.replace(e, mode=0o755) if e.path.startswith("a/") else e for e in tree.entries
    )
    other = Tree(entries=entries, root=EMPTY_OBJECT, directories=tree.directories)
    assert diff_trees(tree, other) == TreeDiff(added=(), removed=(), changed=())


def test_content_order_names_each_non_empty_object_once_in_path_order() -> None:
    tree = build_tree(
        [file("b", b"bb"), file("a/z", b"zzz"), file("a-", b"bb"), file("0", b""), link("l", "b")]
    )
    assert content_order(tree) == ((object_id(b"zzz"), 3), (object_id(b"bb"), 2))
