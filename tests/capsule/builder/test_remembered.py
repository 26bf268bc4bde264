"""What is remembered holds for one boot, one program and files that nobody touched."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from capsule.builder.remembered import Memory, boot_name, program_digest
from capsule.builder.spool import Spool


def memory(folder, boot="boot-1", program="program-1"):
    return Memory(folder, boot=boot, program=program)


def proved(folder, path, **changes):
    made = memory(folder)
    made.prove(path, "ab" * 32, made.state(path))
    return memory(folder, **changes).is_proved(path, "ab" * 32)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"content")
    return path


def test_a_proof_is_remembered_by_the_next_process(tmp_path, file):
    assert proved(tmp_path / "memory", file)


def test_a_proof_ends_with_the_boot(tmp_path, file):
    """A power cut may take back pages that were read and proved but never on the disk."""
    assert not proved(tmp_path / "memory", file, boot="boot-2")


def test_a_proof_ends_with_the_program(tmp_path, file):
    assert not proved(tmp_path / "memory", file, program="program-2")


def test_without_the_name_of_the_boot_nothing_outlives_the_process(tmp_path, file):
    made = memory(tmp_path / "memory", boot="")
    made.prove(file, "ab" * 32, made.state(file))
    assert made.is_proved(file, "ab" * 32)
    assert not memory(tmp_path / "memory", boot="").is_proved(file, "ab" * 32)


@pytest.mark.parametrize("how", ["write", "same size and time", "replace", "remove"])
def test_a_file_that_was_touched_is_not_proved(tmp_path, file, how):
    made = memory(tmp_path / "memory")
    made.prove(file, "ab" * 32, made.state(file))
    before = file.stat()
    match how:
        case "write":
            file.write_bytes(b"content, and more")
        case "same size and time":
            file.write_bytes(b"CONTENT")
            # The times that a program can set; the kernel's own it can't.
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        case "replace":
            other = file.with_name("other")
            other.write_bytes(b"CONTENT")
            os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
            other.replace(file)
        case _:
            file.unlink()
    assert not made.is_proved(file, "ab" * 32)
    assert not memory(tmp_path / "memory").is_proved(file, "ab" * 32)


def test_a_file_that_changed_while_it_was_read_is_not_proved(tmp_path, file):
    made = memory(tmp_path / "memory")
    state = made.state(file)
    file.write_bytes(b"something else")
    made.prove(file, "ab" * 32, state)
    assert not made.is_proved(file, "ab" * 32)


def test_every_damage_of_a_remembered_fact_is_the_same_as_none(tmp_path):
    made = memory(tmp_path)
    made.keep("topic", "key", b"value")
    assert made.recall("topic", "key") == b"value"
    [path] = [path for path in tmp_path.rglob("*") if path.is_file()]
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(bytes([*whole[:position], whole[position] ^ 1, *whole[position + 1 :]]))
        assert made.recall("topic", "key") is None
        path.write_bytes(whole[:position])
        assert made.recall("topic", "key") is None


def test_what_other_boots_remembered_is_removed(tmp_path):
    memory(tmp_path, boot="boot-1").keep("topic", "key", b"value")
    memory(tmp_path, boot="boot-2").keep("topic", "key", b"value")
    assert [path.name for path in tmp_path.iterdir()] == ["boot-2"]


def test_a_disk_that_can_not_be_written_is_no_error(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    made = memory(tmp_path / "file")
    made.keep("topic", "key", b"value")
    assert made.recall("topic", "key") is None


def test_this_machine_and_this_program_have_names():
    assert boot_name()
    assert program_digest() == program_digest()


def test_a_file_more_where_a_command_is_started_makes_no_other_program(tmp_path):
    """The first build makes `dist/`, and `python -m` looks for modules where it is started."""
    found = []
    code = "from capsule.builder.remembered import program_digest; print(program_digest())"
    for name in ("one", "two"):
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        found.append(done.stdout)
        (tmp_path / name).mkdir()
    assert found[0] == found[1]


def test_a_spool_gives_back_what_was_put_however_it_is_asked(tmp_path):
    spool = Spool.on_disk_of(tmp_path)
    contents = [b"", b"short", bytes(range(256)) * 8192]
    places = []
    for content in contents:
        writer = spool.writer(len(content))
        places.append(writer.offset)
        for start in range(0, len(content), 100_000):
            writer.put(content[start : start + 100_000])
        writer.flush()
        assert writer.written == writer.offset == places[-1] + len(content)
    for content, offset in reversed(list(zip(contents, places, strict=True))):
        with spool.open(offset, len(content)) as stream:
            assert stream.read() == content
    assert list(tmp_path.iterdir()) == [], "the file has no name"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_spool_on_a_full_disk_says_how_far_it_came():
    writer = Spool(Path("/dev/full").open("wb")).writer(2)  # noqa: SIM115  # the spool closes it
    for _ in range(2):
        writer.put(b"x")
        writer.flush()
    assert (writer.written, writer.offset) == (0, 2)
