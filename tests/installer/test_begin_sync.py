"""A sync in the background promises nothing and hides nothing."""

import pytest

from capsule_installer.system.disk import RealDisk
from support.failures import fails_with


def test_a_sync_that_was_begun_is_waited_for(tmp_path):
    disk = RealDisk()
    disk.begin_sync(str(tmp_path))
    disk.begin_sync(str(tmp_path))
    disk.sync_filesystem(str(tmp_path), "staged content")


@pytest.mark.parametrize("more", [0, 1])
def test_what_failed_in_the_background_is_raised_by_the_real_sync(tmp_path, more):
    disk = RealDisk()
    (tmp_path / "file").write_bytes(b"")
    # What is no folder can't be synced, so the call in the background fails.
    disk.begin_sync(f"{tmp_path}/file")
    while not disk._syncing.is_done:
        pass
    for _ in range(more):
        disk.begin_sync(str(tmp_path))
    with fails_with("disk-failed"):
        disk.sync_filesystem(str(tmp_path), "staged content")
    disk.sync_filesystem(str(tmp_path), "staged content")
