"""A sync in the background promises nothing and hides nothing."""

from contextlib import suppress
from pathlib import Path

import pytest

from capsule_installer.staging import frames
from capsule_installer.system.disk import RealDisk
from capsule_manifest.errors import Failed
from support.deliveries import Receiver, make_capsule
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
    # Once it failed, nothing that this program did is known to be durable.
    with fails_with("disk-failed"):
        disk.sync_filesystem(str(tmp_path), "staged content")


class Unwritable(RealDisk):
    """A disk on which the sync in the background fails, of which the kernel tells once."""

    def begin_sync(self, path):
        super().begin_sync(f"{path}/none")
        with suppress(Failed):
            self.end_sync()


def test_what_the_disk_could_not_write_is_not_kept_for_the_next_staging(tmp_path, monkeypatch):
    receiver = Receiver(str(tmp_path), disk=Unwritable())
    receiver.enrol()
    capsule = make_capsule()
    # Every frame is followed by a sync in the background, however small it is.
    monkeypatch.setattr(frames, "_SYNC_BYTES", 1)
    with fails_with("disk-failed"):
        receiver.receive(capsule)
    store = Path(receiver.layout.store)
    assert [path for path in store.rglob("*") if path.is_file()] == []
    receiver = Receiver(str(tmp_path))
    receiver.receive(capsule)
    assert receiver.state.staged_generations() == [capsule.generation]
