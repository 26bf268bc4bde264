"""The real disk: exact modes, no links followed, failures by their ids."""

import os
from pathlib import Path

import pytest

from capsule_installer.system.disk import FileKind, RealDisk
from capsule_installer.system.disk_errors import disk_error
from support.failures import fails_with


@pytest.fixture
def disk() -> RealDisk:
    return RealDisk()


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_modes_are_exact_whatever_the_umask(tmp_path, disk, umask):
    before = os.umask(umask)
    try:
        disk.create(f"{tmp_path}/file", 0o640).close()
        disk.mkdir(f"{tmp_path}/folder", 0o755)
    finally:
        os.umask(before)
    assert disk.stat(f"{tmp_path}/file").mode == 0o640
    assert disk.stat(f"{tmp_path}/folder").mode == 0o755


def test_a_file_is_created_only_where_nothing_is(tmp_path, disk):
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "dangling").symlink_to("nowhere")
    for name in ("file", "dangling"):
        with pytest.raises(FileExistsError):
            disk.create(f"{tmp_path}/{name}", 0o600)
    assert not (tmp_path / "nowhere").exists()


def test_links_are_never_followed(tmp_path, disk):
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "link").symlink_to("secret")
    path = f"{tmp_path}/link"
    for call in (
        lambda: disk.read(path, 100),
        lambda: disk.open_read(path),
        lambda: disk.grow(path, 0),
        lambda: disk.chmod(path, 0o777),
        lambda: disk.fsync_dir(path, "test"),
    ):
        with fails_with("disk-failed"):
            call()
    assert disk.stat(path).kind is FileKind.LINK
    assert (tmp_path / "secret").read_bytes() == b"secret"


def test_a_pipe_is_no_file_and_does_not_block(tmp_path, disk):
    os.mkfifo(tmp_path / "pipe")
    with fails_with("disk-failed"):
        disk.read(f"{tmp_path}/pipe", 100)
    assert disk.stat(f"{tmp_path}/pipe").kind is FileKind.OTHER


def test_a_file_larger_than_its_bound_is_refused(tmp_path, disk):
    (tmp_path / "file").write_bytes(b"12345")
    assert disk.read(f"{tmp_path}/file", 5) == b"12345"
    with fails_with("disk-file-too-large"):
        disk.read(f"{tmp_path}/file", 4)


def test_growing_cuts_first(tmp_path, disk):
    (tmp_path / "file").write_bytes(b"123456")
    with disk.grow(f"{tmp_path}/file", 3) as writer:
        writer.write(b"xy")
    assert (tmp_path / "file").read_bytes() == b"123xy"


def test_a_lock_is_for_one_at_a_time_and_ends_when_released(tmp_path, disk):
    lock = disk.lock(f"{tmp_path}/lock")
    with fails_with("host-busy"):
        disk.lock(f"{tmp_path}/lock")
    lock.release()
    disk.lock(f"{tmp_path}/lock").release()


@pytest.mark.parametrize(
    ("number", "error_id"),
    [
        ("ENOSPC", "disk-full"),
        ("EDQUOT", "disk-full"),
        ("EROFS", "disk-read-only"),
        ("EACCES", "disk-denied"),
        ("EPERM", "disk-denied"),
        ("EIO", "disk-failed"),
        ("ELOOP", "disk-failed"),
    ],
)
def test_what_the_kernel_says_has_a_stable_id(number, error_id):
    import errno

    assert disk_error(OSError(getattr(errno, number), "text"), "/x").error_id == error_id


def test_a_missing_file_is_told_apart(tmp_path, disk):
    assert disk.stat(f"{tmp_path}/no") is None
    with pytest.raises(FileNotFoundError):
        disk.read(f"{tmp_path}/no", 1)
    with pytest.raises(FileNotFoundError):
        disk.unlink(f"{tmp_path}/no")


def test_syncs_and_free_space_work_on_a_real_folder(tmp_path: Path, disk):
    disk.fsync_dir(str(tmp_path), "test")
    disk.sync_filesystem(str(tmp_path), "test")
    free_bytes, free_inodes = disk.free(str(tmp_path))
    assert free_bytes > 0
    assert free_inodes > 0


def test_a_list_with_inodes_has_every_name_and_the_inode_that_a_look_at_it_has(tmp_path, disk):
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "second").hardlink_to(tmp_path / "file")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "folder").mkdir()
    found = disk.list_inodes(str(tmp_path))
    assert sorted(found) == disk.list(str(tmp_path))
    assert found == {name: disk.stat(f"{tmp_path}/{name}").inode for name in found}
    assert found["file"] == found["second"] != found["link"]
    with pytest.raises(FileNotFoundError):
        disk.list_inodes(f"{tmp_path}/gone")
