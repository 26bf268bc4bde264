"""Tools from archives, files and folders: read as streams, never unpacked by their own paths."""

import gzip
import io
import lzma
import os
import tarfile

import pytest

from capsule.builder.archive import archive_entries, path_entries, path_pin
from capsule_manifest.errors import Refused
from capsule_manifest.tree_entry import EntryKind
from support.wheels import write_zip


def member(name, data=b"x", **fields):
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def tar(*members, compress=gzip.compress, **options):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", **options) as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data) if info.isreg() else None)
    return compress(stream.getvalue())


def entries_of(tmp_path, raw, name="tool.tar.gz", pattern=None):
    path = tmp_path / "content"
    path.write_bytes(raw)
    return archive_entries(path, name, pattern)


def content(entry):
    with entry.open() as stream:
        return stream.read()


def refusal(*arguments, **options):
    with pytest.raises(Refused) as caught:
        entries_of(*arguments, **options)
    return caught.value


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [("tar.gz", gzip.compress), ("tgz", gzip.compress), ("tar.xz", lzma.compress), ("tar", bytes)],
)
def test_an_archive_becomes_a_tree(tmp_path, suffix, compress):
    raw = tar(
        member("./t-1/", b"", type=tarfile.DIRTYPE),
        member("./t-1/bin/tool", b"\x7fELF", mode=0o755, uid=7, mtime=9),
        member("./t-1/README", b"hello", mode=0o600),
        member("t-1/link", b"", type=tarfile.SYMTYPE, linkname="bin/tool"),
        member("t-1/hard", b"", type=tarfile.LNKTYPE, linkname="./t-1/bin/tool"),
        compress=compress,
    )
    found = {e.path: e for e in entries_of(tmp_path, raw, f"tool.{suffix}")}
    assert {path: (e.kind, e.mode) for path, e in found.items()} == {
        "t-1": (EntryKind.DIRECTORY, 0o755),
        "t-1/bin/tool": (EntryKind.FILE, 0o755),
        "t-1/README": (EntryKind.FILE, 0o644),
        "t-1/link": (EntryKind.LINK, 0o777),
        "t-1/hard": (EntryKind.FILE, 0o755),
    }
    assert content(found["t-1/bin/tool"]) == content(found["t-1/hard"]) == b"\x7fELF"
    assert content(found["t-1/README"]) == b"hello"


def test_members_are_picked_by_a_pattern(tmp_path):
    raw = tar(member("t-1/bin/tool", b"\x7fELF"), member("t-1/README"))
    (entry,) = entries_of(tmp_path, raw, pattern="t-*/bin/*")
    assert (entry.path, entry.mode, content(entry)) == ("bin/tool", 0o755, b"\x7fELF")
    assert refusal(tmp_path, raw, pattern="bin/*").error_id == "tool-member-missing"
    both = tar(member("a/tool"), member("b/tool"))
    assert refusal(tmp_path, both, pattern="*/tool").error_id == "archive-refused"


def test_a_zip_becomes_a_tree(tmp_path):
    path = write_zip(tmp_path / "x", {"bin/tool": b"x"}, {"bin/tool": 0o100755})
    (entry,) = archive_entries(path, "tool.zip", None)
    assert (entry.path, entry.mode, content(entry)) == ("bin/tool", 0o755, b"x")


def test_any_other_file_is_a_program(tmp_path):
    (entry,) = entries_of(tmp_path, b"\x7fELF", "tool-linux-amd64")
    assert (entry.path, entry.mode, content(entry)) == ("bin/tool-linux-amd64", 0o755, b"\x7fELF")
    assert refusal(tmp_path, b"x", "tool", pattern="x").error_id == "archive-refused"


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil", "a\nb", "b\udcffd"])
def test_a_name_that_escapes_or_is_not_utf8_is_refused(tmp_path, name):
    raw = tar(member(name), encoding="utf-8", errors="surrogateescape")
    assert refusal(tmp_path, raw).error_id == "path-invalid"


@pytest.mark.parametrize("target", ["/etc/passwd", "../../x", "a/../../../x"])
def test_a_planted_symlink_that_escapes_is_refused(tmp_path, target):
    raw = tar(member("a/link", b"", type=tarfile.SYMTYPE, linkname=target), member("a/link/x"))
    assert refusal(tmp_path, raw).error_id == "link-escapes"


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, b"9"])
def test_a_special_file_is_refused(tmp_path, kind):
    assert refusal(tmp_path, tar(member("dev", b"", type=kind))).error_id == "archive-refused"


@pytest.mark.parametrize("target", ["later", "nowhere", "../x", "link"])
def test_a_hard_link_to_no_earlier_file_is_refused(tmp_path, target):
    raw = tar(
        member("link", b"", type=tarfile.SYMTYPE, linkname="x"),
        member("hard", b"", type=tarfile.LNKTYPE, linkname=target),
        member("later"),
    )
    assert refusal(tmp_path, raw).error_id == "archive-refused"


def test_a_duplicate_member_is_refused(tmp_path):
    assert refusal(tmp_path, tar(member("a"), member("./a"))).error_id == "archive-refused"


def test_a_damaged_header_does_not_end_the_archive_silently(tmp_path):
    """tarfile itself reports the members before the damage and no error."""
    raw = bytearray(tar(member("a"), member("b"), member("c"), compress=bytes))
    raw[1024 + 10] ^= 1
    assert refusal(tmp_path, bytes(raw), "x.tar").error_id == "archive-refused"


def test_every_truncation_is_refused(tmp_path):
    raw = tar(member("a"), member("b"))
    for length in range(len(raw)):
        assert refusal(tmp_path, raw[:length]).error_id == "archive-refused"
    plain = gzip.decompress(raw)
    for length in range(0, 2049, 128):
        assert refusal(tmp_path, plain[:length], "x.tar").error_id == "archive-refused"


def test_a_bomb_is_refused_while_it_is_decompressed(tmp_path):
    raw = gzip.compress(bytes(100 * 1024 * 1024))
    error = refusal(tmp_path, raw)
    assert error.error_id == "archive-refused"
    assert "too large" in error.what


def test_a_folder_becomes_a_tree_and_a_file_a_program(tmp_path):
    folder = tmp_path / "tool"
    (folder / "lib").mkdir(parents=True)
    (folder / "run").write_bytes(b"#!/bin/sh\n")
    (folder / "run").chmod(0o777)
    (folder / "lib" / "x.txt").write_bytes(b"x")
    (folder / "link").symlink_to("lib")
    found = {e.path: (e.kind.value, e.mode) for e in path_entries(folder)}
    assert found == {
        "lib/x.txt": ("file", 0o644),
        "link": ("link", 0o777),
        "run": ("file", 0o755),
    }
    (entry,) = path_entries(folder / "run")
    assert (entry.path, content(entry)) == ("bin/run", b"#!/bin/sh\n")


def test_a_folder_that_can_not_be_shipped_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Refused) as caught:
        path_entries(tmp_path)
    assert caught.value.error_id == "archive-refused"
    with pytest.raises(Refused) as caught:
        path_entries(tmp_path / "missing")
    assert caught.value.error_id == "tool-path-missing"


@pytest.mark.parametrize("change", ["content", "name", "mode", "target"])
def test_the_pin_of_a_folder_notices_every_change(tmp_path, change):
    (tmp_path / "a").write_bytes(b"x")
    (tmp_path / "link").symlink_to("a")
    before = path_pin(path_entries(tmp_path))
    assert path_pin(path_entries(tmp_path)) == before
    match change:
        case "content":
            (tmp_path / "a").write_bytes(b"y")
        case "name":
            (tmp_path / "a").rename(tmp_path / "b")
        case "mode":
            (tmp_path / "a").chmod(0o755)
        case _:
            (tmp_path / "link").unlink()
            (tmp_path / "link").symlink_to("b")
    assert path_pin(path_entries(tmp_path)).sha256 != before.sha256
