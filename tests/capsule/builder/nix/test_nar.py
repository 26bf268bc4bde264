"""The reader of Nix archives: what it finds, and that an archive has one spelling only."""

import hashlib
import io
import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule.builder.nix.nar import read_nar
from capsule_manifest.errors import Refused
from support.failures import fails_with
from support.nars import Link, Program, folder_words, nar, node_of, node_words, word

MAGIC = word(b"nix-archive-1")
SMALL = nar({"bin": {"hello": Program(b"#!/bin/sh\n"), "again": Link("hello")}, "empty": b""})

# Made by Nix 2.8.0: `nix-store --dump` of bin/{hello,again} and empty, as SMALL has them.
SMALL_SHA256 = "1e646b576d2c08c4ebc581ef91a5f651762dd7dd01f846df95286b7be6ffdd30"


def read(raw):
    return read_nar(io.BytesIO(raw), len(raw), where="test")


def test_entries_are_what_the_archive_holds():
    found = read(SMALL)
    assert [(entry.path, entry.kind.value) for entry in found] == [
        ("", "directory"),
        ("bin", "directory"),
        ("bin/again", "link"),
        ("bin/hello", "file"),
        ("empty", "file"),
    ]
    hello = found[3]
    assert hello.is_executable
    assert not found[4].is_executable
    assert SMALL[hello.offset : hello.offset + hello.size_bytes] == b"#!/bin/sh\n"


def test_the_bytes_are_those_that_nix_writes():
    assert hashlib.sha256(SMALL).hexdigest() == SMALL_SHA256


def test_a_store_path_may_be_a_file_or_a_link():
    assert node_of(nar(b"text")) == b"text"
    assert node_of(nar(Link("/nix/store/x"))) == Link("/nix/store/x")


_NAMES = st.text(
    st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=40
).filter(lambda name: name not in {".", ".."} and len(name.encode()) <= 255)
_LEAVES = (
    st.binary(max_size=40) | st.builds(Program, st.binary(max_size=40)) | st.builds(Link, _NAMES)
)
_NODES = st.recursive(_LEAVES, lambda inner: st.dictionaries(_NAMES, inner, max_size=4))


@given(_NODES)
def test_an_archive_and_its_entries_stand_for_each_other(node):
    assert node_of(nar(node)) == node


def swapped(raw, before, after):
    assert raw.count(before) == 1
    return raw.replace(before, after)


FILE = node_words(b"x")
HOSTILE = {
    "nothing": b"",
    "no archive": word(b"nix-archive-2") + FILE,
    "trailing bytes": nar(b"x") + bytes(8),
    "a second node": nar(b"x") + FILE,
    "no content": MAGIC + b"".join(map(word, [b"(", b"type", b"regular", b")"])),
    "unknown type": MAGIC + b"".join(map(word, [b"(", b"type", b"fifo", b")"])),
    "type twice": MAGIC + b"".join(map(word, [b"(", b"type", b"regular", b"type", b"symlink"])),
    "executable with a value": swapped(
        nar(Program(b"p")), word(b"executable") + word(b""), word(b"executable") + word(b"1")
    ),
    "executable after content": MAGIC
    + b"".join(map(word, [b"(", b"type", b"regular", b"contents", b"x", b"executable", b"", b")"])),
    "names out of order": MAGIC + folder_words([(b"b", FILE), (b"a", FILE)]),
    "a name twice": MAGIC + folder_words([(b"a", FILE), (b"a", FILE)]),
    "a link, then a folder of its name": MAGIC
    + folder_words([(b"a", node_words(Link("/etc"))), (b"a", node_words({"passwd": b"x"}))]),
    "empty name": MAGIC + folder_words([(b"", FILE)]),
    "dot": MAGIC + folder_words([(b".", FILE)]),
    "dot dot": MAGIC + folder_words([(b"..", FILE)]),
    "slash": MAGIC + folder_words([(b"a/b", FILE)]),
    "NUL in a name": MAGIC + folder_words([(b"a\0b", FILE)]),
    "a name that is not UTF-8": MAGIC + folder_words([(b"\xff", FILE)]),
    "a name too long": MAGIC + folder_words([(b"n" * 256, FILE)]),
    "an entry without a node": MAGIC
    + b"".join(map(word, [b"(", b"type", b"directory", b"entry", b"(", b"name", b"a", b")"])),
    "an empty target": MAGIC + node_words(Link("")),
    "a target too long": MAGIC + node_words(Link("t" * 4096)),
    "NUL in a target": MAGIC + node_words(Link("a\0b")),
    "padding that is not zero": nar(b"x").replace(b"x" + bytes(7), b"x" + bytes(6) + b"\1"),
    "a size beyond the end": swapped(
        nar(b"xyz"), struct.pack("<Q", 3) + b"xyz", struct.pack("<Q", 2**63) + b"xyz"
    ),
    "a size beyond any number": swapped(
        nar(b"xyz"), struct.pack("<Q", 3) + b"xyz", struct.pack("<Q", 2**64 - 1) + b"xyz"
    ),
}


@pytest.mark.parametrize("raw", HOSTILE.values(), ids=HOSTILE)
def test_an_archive_with_one_defect_is_refused(raw):
    with fails_with("nar-malformed"):
        read(raw)


def test_an_archive_that_nests_too_deep_is_refused_before_python_does():
    node = b""
    for _ in range(2000):
        node = b"".join(
            [
                *map(word, [b"(", b"type", b"directory", b"entry", b"(", b"name", b"d", b"node"]),
                node,
            ]
        )
    with fails_with("nar-malformed"):
        read(MAGIC + node)


@pytest.mark.parametrize("size_bytes", range(len(SMALL)))
def test_an_archive_that_is_cut_off_anywhere_is_refused(size_bytes):
    with fails_with("nar-malformed"):
        read(SMALL[:size_bytes])


def test_every_flipped_bit_is_refused_or_changes_what_is_read():
    before = node_of(SMALL)
    for place in range(len(SMALL)):
        for bit in range(8):
            raw = bytearray(SMALL)
            raw[place] ^= 1 << bit
            # Refused by its own id, or legal and then other entries: nothing in an archive is idle.
            with suppress(Refused):
                assert node_of(bytes(raw)) != before, (place, bit)
