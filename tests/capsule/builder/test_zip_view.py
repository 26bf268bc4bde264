"""Zip files: one view, or none. Each hostile file is a right one with one thing changed."""

import io
import random
import struct
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule.builder.zip_view import ZipLimits, ZipView
from capsule_manifest.errors import Refused
from support.wheels import write_zip, zip_bytes

MEMBERS = {"a.txt": b"hello " * 100, "dir/b.bin": bytes(range(256)), "empty": b""}
END = struct.Struct("<4s4H2IH")


def view_of(tmp_path, raw, **options):
    path = tmp_path / "x.whl"
    path.write_bytes(raw)
    return ZipView(path, **options)


def read_all(view):
    contents = {}
    for name in view.members:
        with view.open(name) as stream:
            contents[name] = stream.read()
    return contents


def refusal(tmp_path, raw, **options):
    with pytest.raises(Refused) as caught:
        read_all(view_of(tmp_path, raw, **options))
    return caught.value


def end_of(raw):
    return END.unpack(raw[-END.size :])


def with_end(raw, **changes):
    names = ("magic", "disk", "first", "here", "count", "size", "offset", "comment")
    fields = dict(zip(names, end_of(raw), strict=True)) | changes
    return raw[: -END.size] + END.pack(*fields.values())


def test_members_are_read_as_they_were_written(tmp_path):
    assert read_all(view_of(tmp_path, zip_bytes(MEMBERS))) == MEMBERS


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_an_archive_written_to_a_pipe_is_read(tmp_path, compression):
    class Pipe(io.RawIOBase):
        """A stream without a position: writers then put sizes after the data."""

        def __init__(self):
            self.raw = b""

        def writable(self):
            return True

        def write(self, data):
            self.raw += bytes(data)
            return len(data)

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", compression) as archive:
        for name, data in MEMBERS.items():
            archive.writestr(name, data)
    assert read_all(view_of(tmp_path, pipe.raw)) == MEMBERS


def test_64_bit_fields_are_read(tmp_path):
    stream = io.BytesIO()
    with (
        zipfile.ZipFile(stream, "w") as archive,
        archive.open("a", "w", force_zip64=True) as member,
    ):
        member.write(b"x" * 10)
    assert read_all(view_of(tmp_path, stream.getvalue())) == {"a": b"x" * 10}


def test_folders_are_no_members(tmp_path):
    raw = zip_bytes({"dir/": b"", "dir/a": b"x"}, {"dir/": 0o040755})
    assert list(view_of(tmp_path, raw).members) == ["dir/a"]


def test_the_executable_bit_is_kept(tmp_path):
    view = view_of(tmp_path, zip_bytes({"a": b"", "b": b""}, {"b": 0o100755}))
    assert {name: member.is_executable for name, member in view.members.items()} == {
        "a": False,
        "b": True,
    }


def test_duplicate_names_are_refused(tmp_path):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a", b"one")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("a", b"two")
    assert "twice" in refusal(tmp_path, stream.getvalue()).what


@pytest.mark.parametrize(
    "name",
    ["../a", "/a", "a/../b", "a//b", "./a", "a/.", "c:\\x", "a\\b", "a\nb", "", "x" * 256],
)
def test_a_name_that_escapes_or_is_no_path_is_refused(tmp_path, name):
    assert refusal(tmp_path, zip_bytes({name: b"x"})).error_id in {"path-invalid", "zip-refused"}


def test_a_name_with_a_nul_is_refused_and_not_cut_off_there(tmp_path):
    raw = zip_bytes({"aXb": b"x"}).replace(b"aXb", b"a\0b")
    assert refusal(tmp_path, raw).error_id == "path-invalid"


def test_a_name_that_is_not_marked_as_utf8_is_refused(tmp_path):
    raw = zip_bytes({"aXb": b"x"}).replace(b"aXb", b"a\xe9b")
    assert "UTF-8" in refusal(tmp_path, raw).what


def test_a_name_marked_as_utf8_is_read_as_such(tmp_path):
    assert list(view_of(tmp_path, zip_bytes({"é": b"x"})).members) == ["é"]


@pytest.mark.parametrize("mode", [0o120777, 0o020644, 0o010644, 0o140644, 0o040755])
def test_a_link_or_special_file_is_refused(tmp_path, mode):
    assert "special" in refusal(tmp_path, zip_bytes({"a": b"x"}, {"a": mode})).what


def test_a_file_that_is_also_a_folder_is_refused(tmp_path):
    assert "folder" in refusal(tmp_path, zip_bytes({"a": b"x", "a/b": b"y"})).what


def test_a_local_header_that_names_another_file_is_refused(tmp_path):
    raw = bytearray(zip_bytes({"aXb": b"x"}))
    at = raw.index(b"aXb")
    raw[at : at + 3] = b"evl"
    assert "differs" in refusal(tmp_path, bytes(raw)).what


@pytest.mark.parametrize("offset", [6, 8, 14, 18, 22], ids=["flags", "method", "crc", "st", "size"])
def test_a_local_header_that_differs_from_the_directory_is_refused(tmp_path, offset):
    raw = bytearray(zip_bytes(MEMBERS))
    raw[offset] ^= 0x01
    assert refusal(tmp_path, bytes(raw)).error_id == "zip-refused"


def test_a_member_that_only_a_streaming_reader_sees_is_refused(tmp_path):
    # Bytes before the directory that are a member of their own, in no directory.
    hidden = zip_bytes({"hidden": b"evil"})
    local = hidden[: end_of(hidden)[6]]
    raw = zip_bytes(MEMBERS)
    offset = end_of(raw)[6]
    forged = with_end(raw[:offset] + local + raw[offset:], offset=offset + len(local))
    assert "belong to no member" in refusal(tmp_path, forged).what


def test_bytes_before_the_first_member_are_refused(tmp_path):
    raw = zip_bytes({"a": b"x"})
    assert refusal(tmp_path, b"#!/bin/sh\n" + raw).error_id == "zip-refused"


def test_bytes_after_the_end_are_refused(tmp_path):
    assert refusal(tmp_path, zip_bytes(MEMBERS) + b"\0").error_id == "zip-refused"


def test_a_comment_that_could_hold_a_second_end_is_refused(tmp_path):
    stream = io.BytesIO(zip_bytes(MEMBERS))
    with zipfile.ZipFile(stream, "a") as archive:
        archive.comment = zip_bytes({"other": b"view"})
    assert refusal(tmp_path, stream.getvalue()).error_id == "zip-refused"


def test_two_entries_for_the_same_bytes_are_refused(tmp_path):
    raw = zip_bytes({"a": b"x"})
    _, _, _, _, count, size, offset, _ = end_of(raw)
    entry = raw[offset : offset + size]
    forged = raw[:offset] + entry + entry.replace(b"a", b"b") + raw[offset + size :]
    assert refusal(tmp_path, with_end(forged, here=2, count=2, size=2 * size)).error_id == (
        "zip-refused"
    )
    assert count == 1


@pytest.mark.parametrize("field", ["disk", "here", "count", "size", "offset"])
def test_an_end_record_that_is_wrong_is_refused(tmp_path, field):
    raw = zip_bytes(MEMBERS)
    assert refusal(tmp_path, with_end(raw, **{field: 77})).error_id == "zip-refused"


def test_encryption_and_other_methods_are_refused(tmp_path):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a", b"x")
    assert "stored in a way" in refusal(tmp_path, stream.getvalue()).what
    raw = bytearray(zip_bytes({"a": b"x"}))
    raw[6] |= 1
    raw[end_of(raw)[6] + 8] |= 1
    assert "encrypted" in refusal(tmp_path, bytes(raw)).expected


def test_a_second_name_in_an_extra_field_is_refused(tmp_path):
    stream = io.BytesIO()
    info = zipfile.ZipInfo("a")
    info.extra = struct.pack("<2HB", 0x7075, 6, 1) + b"\0\0\0\0b"
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(info, b"x")
    assert "second name" in refusal(tmp_path, stream.getvalue()).what


def test_a_bomb_is_refused_before_it_is_decompressed(tmp_path):
    raw = zip_bytes({"zeros": bytes(80 * 1024 * 1024)})
    error = refusal(tmp_path, raw)
    assert "much larger" in error.what


def test_a_member_that_lies_about_its_size_ends_at_the_size_it_told(tmp_path):
    content = bytes(1000)
    raw = bytearray(zip_bytes({"zeros": content}))
    for at in (22, end_of(raw)[6] + 24):
        raw[at : at + 4] = (10).to_bytes(4, "little")
    assert "more content" in refusal(tmp_path, bytes(raw)).what


@pytest.mark.parametrize(
    "limits",
    [
        ZipLimits(members_max=2),
        ZipLimits(member_bytes_max=100),
        ZipLimits(content_bytes_max=500),
        ZipLimits(directory_bytes_max=50),
        ZipLimits(ratio_free_bytes=0, ratio_max=1),
    ],
)
def test_every_limit_is_checked(tmp_path, limits):
    assert refusal(tmp_path, zip_bytes(MEMBERS), limits=limits).error_id == "zip-refused"


def test_every_truncation_is_refused(tmp_path):
    raw = zip_bytes(MEMBERS)
    for length in range(len(raw)):
        assert refusal(tmp_path, raw[:length]).error_id in {"zip-refused", "path-invalid"}


def test_no_flipped_bit_changes_content_silently(tmp_path):
    """Whatever bit is flipped: an error, or the same names and bytes."""
    raw = zip_bytes(MEMBERS)
    for at in range(len(raw)):
        damaged = bytearray(raw)
        damaged[at] ^= 1 << (at % 8)
        try:
            contents = read_all(view_of(tmp_path, bytes(damaged)))
        except Refused:
            continue
        assert contents == MEMBERS, f"byte {at}"


@given(
    members=st.dictionaries(
        st.text("abc", min_size=1, max_size=3), st.binary(max_size=300), max_size=5
    ),
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=5),
)
def test_reading_in_any_pieces_gives_what_zipfile_gives(tmp_path_factory, members, sizes):
    path = write_zip(tmp_path_factory.mktemp("zip") / "x.zip", members)
    view = ZipView(path)
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == list(view.members)
        for name in members:
            pieces = []
            with view.open(name) as stream:
                index = 0
                while piece := stream.read(sizes[index % len(sizes)]):
                    pieces.append(piece)
                    index += 1
            assert b"".join(pieces) == archive.read(name)


def test_a_large_member_is_read_in_pieces_of_bounded_size(tmp_path):
    content = random.Random(1).randbytes(3_000_000)
    view = view_of(tmp_path, zip_bytes({"big": content}))
    with view.open("big") as stream:
        assert stream.read(1) == content[:1]
        assert stream.read() == content[1:]
