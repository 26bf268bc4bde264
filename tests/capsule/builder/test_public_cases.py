"""What went wrong for users of other tools while something was built, each by its symptom."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from capsule.builder.archive import archive_entries, path_entries, path_pin
from capsule.builder.model import ComponentInput, InputEntry
from capsule.builder.packer import list_component
from capsule.builder.solid import EMPTY_BYTES_MAX, solid_chunks
from capsule_manifest.tree_entry import EntryKind
from support.failures import fails_with

MIB = 1024 * 1024
TIB = 1024**4


class Zeros(io.RawIOBase):
    """So many zeros, and a count of how many were asked for."""

    def __init__(self, size_bytes):
        self.left = self.size_bytes = size_bytes

    def readable(self):
        return True

    def readinto(self, buffer):
        count = min(len(buffer), self.left)
        buffer[:count] = bytes(count)
        self.left -= count
        return count

    @property
    def read_bytes(self):
        return self.size_bytes - self.left


def sparse(path: Path, size_bytes: int) -> Path:
    with path.open("wb") as file:
        file.write(b"\x7fELF")
        file.truncate(size_bytes)
    return path


# --- 8: a small archive or file that becomes hundreds of gigabytes --------------------------------
def test_a_sparse_file_of_a_terabyte_is_refused_and_hardly_read(tmp_path):
    (tmp_path / "tool").mkdir()
    sparse(tmp_path / "tool/disk.img", 8 * 1024**3)
    entries = path_entries(tmp_path / "tool")
    with fails_with("input-hollow") as caught:
        path_pin(entries)
    assert "disk.img" in str(caught.value)
    component = ComponentInput(
        name="tool", kind="helper", platforms=(), entries=entries, external=()
    )
    with fails_with("input-hollow") as caught:
        list_component(component)
    assert "tool: disk.img" in str(caught.value)


def test_a_terabyte_of_zeros_is_given_up_after_the_bound():
    stream = Zeros(TIB)
    with fails_with("input-hollow"):
        for _ in solid_chunks(stream, "x"):
            pass
    assert stream.read_bytes == EMPTY_BYTES_MAX + MIB


def test_a_file_with_as_many_zeros_as_allowed_is_read_whole():
    assert sum(map(len, solid_chunks(Zeros(EMPTY_BYTES_MAX), "x"))) == EMPTY_BYTES_MAX


def test_zeros_between_content_are_content():
    # A database or a debug section: many zeros, no empty mebibyte.
    page = bytes(MIB - 1) + b"x"
    entry = InputEntry(
        path="data",
        kind=EntryKind.FILE,
        mode=0o644,
        size_bytes=300 * MIB,
        open=lambda: io.BufferedReader(Pages(page, 300)),
    )
    component = ComponentInput(
        name="app", kind="source", platforms=(), entries=(entry,), external=()
    )
    assert list_component(component).content_bytes == 300 * MIB


class Pages(io.RawIOBase):
    """One page, so many times."""

    def __init__(self, page, count):
        self.page, self.left = page, count

    def readable(self):
        return True

    def readinto(self, buffer):
        if not self.left:
            return 0
        assert len(buffer) >= len(self.page)
        self.left -= 1
        buffer[: len(self.page)] = self.page
        return len(self.page)


def test_a_sparse_member_of_an_archive_is_refused(tmp_path):
    member = tarfile.TarInfo("disk.img")
    member.type = tarfile.GNUTYPE_SPARSE
    archive = tmp_path / "content"
    with tarfile.open(archive, "w", format=tarfile.GNU_FORMAT) as writer:
        writer.addfile(member)
    with fails_with("archive-refused"):
        archive_entries(archive, "tool.tar", None)


# --- 4: a security fix broke archives with ordinary hard links ------------------------------------
def test_a_hard_link_in_an_archive_becomes_a_file_of_its_own(tmp_path):
    archive = tmp_path / "content"
    first, second = tarfile.TarInfo("bin/git"), tarfile.TarInfo("libexec/git")
    first.size, first.mode = 3, 0o755
    second.type, second.linkname = tarfile.LNKTYPE, "bin/git"
    with tarfile.open(archive, "w") as writer:
        writer.addfile(first, io.BytesIO(b"git"))
        writer.addfile(second)
    entries = archive_entries(archive, "tool.tar", None)
    assert [(entry.path, entry.kind, entry.mode) for entry in entries] == [
        ("bin/git", EntryKind.FILE, 0o755),
        ("libexec/git", EntryKind.FILE, 0o755),
    ]
    assert [entry.open().read() for entry in entries] == [b"git", b"git"]


# --- 9: extended attributes are lost on the way ---------------------------------------------------
def test_a_file_capability_in_an_archive_is_not_lost_but_refused(tmp_path):
    member = tarfile.TarInfo("bin/ping")
    member.pax_headers = {"SCHILY.xattr.security.capability": "\x01"}
    archive = tmp_path / "content"
    with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as writer:
        writer.addfile(member)
    with fails_with("capability-refused") as caught:
        archive_entries(archive, "tool.tar", None)
    assert "bin/ping" in str(caught.value)
    assert "AmbientCapabilities=" in str(caught.value)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives capabilities to files")
@pytest.mark.parametrize("inside", ["", "bin"])
def test_a_file_capability_in_a_folder_is_not_lost_but_refused(tmp_path, inside):
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/ping"
    program.write_bytes(b"\x7fELF")
    # Version 2, effective, CAP_NET_RAW.
    os.setxattr(program, "security.capability", bytes.fromhex("01000002" + "00200000" + "00" * 12))
    with fails_with("capability-refused"):
        path_entries(tmp_path / inside if inside else program)


def test_labels_of_the_builders_machine_are_no_content(tmp_path):
    program = tmp_path / "tool"
    program.write_bytes(b"\x7fELF")
    plain = path_pin(path_entries(program))
    try:
        os.setxattr(program, "user.comment", b"made on a laptop")
    except OSError:
        pytest.skip("this file system has no attributes")
    assert path_pin(path_entries(program)) == plain
