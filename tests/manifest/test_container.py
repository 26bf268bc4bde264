"""Tests of the single-file form: one form only, trust before payload, truncation found."""

import io
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capsule_manifest.container import (
    ContainerEvent,
    ContainerReader,
    End,
    MemberData,
    MemberEnd,
    MemberStart,
    check_member_name,
    member_header,
    member_order,
    write_container,
)
from capsule_manifest.errors import Refused
from support.formats import refused, sample_container, sample_members

BLOCK = 512
Member = tuple[str, int, list[bytes]]


def read(raw: bytes, piece: int | None = None) -> list[ContainerEvent]:
    """Read `raw` in pieces of one size, and close."""
    reader = ContainerReader()
    events: list[ContainerEvent] = []
    step = piece or max(len(raw), 1)
    for start in range(0, len(raw), step):
        events += reader.feed(raw[start : start + step])
    reader.close()
    return events


def contents(events: list[ContainerEvent]) -> list[tuple[str, bytes]]:
    """Join what events say into (name, content), checking their grammar."""
    result: list[tuple[str, bytes]] = []
    current: tuple[str, int, bytes] | None = None
    for event in events[:-1]:
        match event:
            case MemberStart(name, size):
                assert current is None
                current = (name, size, b"")
            case MemberData(data):
                assert current is not None
                assert data
                current = (current[0], current[1], current[2] + data)
            case MemberEnd(name):
                assert current is not None
                assert (current[0], current[1]) == (name, len(current[2]))
                result.append((name, current[2]))
                current = None
            case End():
                pytest.fail("the end is not the last event")
    assert events[-1] == End()
    return result


def expected() -> list[tuple[str, bytes]]:
    """Return the names and contents of the sample."""
    return [(name, b"".join(chunks)) for name, _, chunks in sample_members()]


def rewritten(raw: bytes, position: int, value: bytes) -> bytes:
    """Return `raw` with `value` at `position` of its first header and a right checksum."""
    header = bytearray(raw[:BLOCK])
    header[position : position + len(value)] = value
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + raw[BLOCK:]


def test_a_container_reads_back() -> None:
    assert contents(read(sample_container())) == expected()


def test_a_container_is_deterministic() -> None:
    assert sample_container() == sample_container()


def test_another_tar_reader_sees_the_same_members() -> None:
    with tarfile.open(fileobj=io.BytesIO(sample_container()), mode="r:") as archive:
        seen = [(m.name, archive.extractfile(m).read()) for m in archive]  # type: ignore[union-attr]
    assert seen == expected()


@settings(deadline=None)
@given(st.integers(1, 3000))
def test_events_do_not_depend_on_how_bytes_are_fed(piece: int) -> None:
    assert contents(read(sample_container(), piece)) == expected()


def test_reading_byte_by_byte_gives_the_same() -> None:
    assert contents(read(sample_container(), 1)) == expected()


def test_trust_before_bytes_capsule_and_signatures_come_before_everything_else() -> None:
    names = [e.name for e in read(sample_container()) if isinstance(e, MemberStart)]
    tops = list(dict.fromkeys(name.partition("/")[0] for name in names))
    assert tops == [
        "capsule.json",
        "signatures",
        "packing.json",
        "sbom",
        "provenance",
        "trees",
        "packs",
    ]
    assert names == sorted(names, key=member_order)


def test_truncated_archive_is_refused_at_every_length() -> None:
    raw = sample_container()
    for length in range(len(raw)):
        reader = ContainerReader()
        reader.feed(raw[:length])
        with refused("container-truncated"):
            reader.close()


def test_every_changed_byte_outside_of_content_is_refused() -> None:
    """Enumerated: all bits of all headers, paddings and the trailer."""
    raw = sample_container()
    content: set[int] = set()
    position = 0
    for _, size, _ in sample_members():
        content.update(range(position + BLOCK, position + BLOCK + size))
        position += BLOCK + size + -size % BLOCK
    for place in range(len(raw)):
        if place in content:
            continue
        changed = bytearray(raw)
        changed[place] ^= 1 << place % 8
        with pytest.raises(Refused):
            read(bytes(changed))


@pytest.mark.parametrize(
    ("position", "value"),
    [
        (100, b"0000755\0"),  # mode
        (108, b"0001750\0"),  # owner
        (136, b"00000000001\0"),  # time
        (156, b"\0"),  # the old way to say a plain file
        (156, b"2"),  # a symbolic link
        (156, b"1"),  # a hard link
        (156, b"5"),  # a directory
        (156, b"x"),  # a pax header
        (156, b"L"),  # a GNU long name
        (157, b"/etc/passwd"),  # link target
        (257, b"ustar  \0"),  # GNU magic
        (265, b"root"),  # owner name
        (345, b"../.."),  # name prefix
        (0, b"../capsule.json"),
        (0, b"/capsule.json"),
        (0, b"capsule.json\0x"),  # bytes hidden behind the name
        (124, b"          2\0"),  # size with spaces
        (124, b"0000000002\0\0"),
        (124, b"\x80" + bytes(10) + b"\x02"),  # binary size
        (500, b"x"),
    ],
)
def test_a_header_that_capsule_does_not_write_is_refused(position: int, value: bytes) -> None:
    raw = sample_container()
    assert rewritten(raw, 0, b"") == raw
    with pytest.raises(Refused) as caught:
        read(rewritten(raw, position, value))
    assert caught.value.error_id in {"container-malformed", "container-member-refused"}


@pytest.mark.parametrize(
    "name",
    [
        "capsule.json",
        "packing.json",
        "signatures/operator-1.sigstore.json",
        "trees/" + "ab" * 32,
        "packs/" + "ab" * 32 + ".pack",
    ],
)
def test_a_member_of_a_capsule_is_accepted(name: str) -> None:
    check_member_name(name)
    assert len(member_header(name, 0)) == BLOCK


@pytest.mark.parametrize(
    "name",
    [
        "",
        "capsule.json/",
        "capsule.json/x",
        "packs",
        "packs/",
        "packs/.x",
        "packs/..",
        "packs/a/b",
        "packs//a",
        "/packs/a",
        "./packs/a",
        "packs/A",
        "packs/ä",
        "packs/a b",
        "packs/a\n",
        "packs/a\0",
        "other/a",
        "packs/" + "a" * 95,
    ],
)
def test_any_other_member_name_is_refused(name: str) -> None:
    with refused("container-member-refused"):
        check_member_name(name)


def test_a_member_above_the_size_of_its_folder_is_refused() -> None:
    member_header("packs/a", 256 * 1024 * 1024)
    for name, size in [
        ("packs/a", 256 * 1024 * 1024 + 1),
        ("capsule.json", 2**23 + 1),
        ("sbom/a", -1),
    ]:
        with refused("container-member-refused"):
            member_header(name, size)


def raw_members(names: list[str]) -> bytes:
    """Return headers of empty members in any order, and an end."""
    return b"".join(member_header(name, 0) for name in names) + bytes(2 * BLOCK)


@pytest.mark.parametrize(
    "names",
    [
        [],
        ["packing.json"],
        ["signatures/a", "capsule.json", "packing.json"],
        ["capsule.json"],
        ["capsule.json", "capsule.json", "packing.json"],
        ["capsule.json", "packing.json", "signatures/a"],
        ["capsule.json", "signatures/b", "signatures/a", "packing.json"],
        ["capsule.json", "signatures/a", "signatures/a", "packing.json"],
        ["capsule.json", "packing.json", "packs/a", "trees/a"],
    ],
)
def test_a_missing_repeated_or_misplaced_member_is_refused(names: list[str]) -> None:
    with refused("container-member-refused"):
        read(raw_members(names))
    with refused("container-member-refused"):
        list(write_container((name, 0, []) for name in names))


def test_a_folder_with_too_many_members_is_refused() -> None:
    names = ["capsule.json", *(f"signatures/{i:03}" for i in range(257)), "packing.json"]
    with refused("container-member-refused"):
        read(raw_members(names))
    read(raw_members([*names[:257], "packing.json"]))


@pytest.mark.parametrize("chunks", [[b"a"], [b"abc"], []])
def test_a_member_that_changed_while_it_was_written_is_refused(chunks: list[bytes]) -> None:
    with refused("container-malformed"):
        list(write_container([("capsule.json", 2, chunks)]))


def test_bytes_after_the_end_are_refused() -> None:
    with refused("container-malformed"):
        read(sample_container() + b"\0")


def test_a_reader_that_refused_stays_refused() -> None:
    reader = ContainerReader()
    for _ in range(2):
        with refused("container-malformed"):
            reader.feed(b"x" * BLOCK)
    with refused("container-malformed"):
        reader.close()


def test_a_reader_holds_no_content() -> None:
    reader = ContainerReader()
    raw = b"".join(
        write_container([("capsule.json", 0, []), ("packing.json", 5_000_000, [bytes(5_000_000)])])
    )
    largest = 0
    for start in range(0, len(raw), 10_000):
        for event in reader.feed(raw[start : start + 10_000]):
            if isinstance(event, MemberData):
                largest = max(largest, len(event.data))
    reader.close()
    assert largest == 10_000
