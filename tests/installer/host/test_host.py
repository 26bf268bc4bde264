"""Folders of a host: there, its own, durable, and looked at without waiting for a disk again."""

import pytest

from capsule_manifest.errors import ExitCode
from support.deliveries import Receiver
from support.failures import fails_with
from support.model_disk import ModelDisk

FOUND, NEW = "found name", "new folder's name"


@pytest.fixture
def receiver():
    return Receiver("/host", disk=ModelDisk())


@pytest.fixture
def prepared(receiver):
    receiver.disk.mkdir("/host", 0o755)
    receiver.host.prepare()
    receiver.disk.labels.clear()
    return receiver


def test_folders_are_made_durable_when_they_are_first_seen_in_a_boot_and_then_no_more(prepared):
    prepared.host.prepare()
    assert prepared.disk.labels == set()
    prepared.host.clock.boot += "-next"
    prepared.host.prepare()
    assert prepared.disk.labels == {FOUND}
    prepared.disk.labels.clear()
    prepared.host.prepare()
    assert prepared.disk.labels == set()


@pytest.mark.parametrize("name", ["staged", "receipts", "incoming"])
def test_a_folder_that_went_away_is_made_and_nothing_is_taken_for_durable(prepared, name):
    prepared.disk.rmdir(getattr(prepared.layout, name))
    prepared.host.prepare()
    assert {FOUND, NEW} == prepared.disk.labels


def test_what_was_not_written_whole_says_nothing(prepared):
    prepared.disk.unlink(prepared.layout.kept)
    with prepared.disk.create(prepared.layout.kept, 0o600):
        pass
    prepared.host.prepare()
    assert prepared.disk.labels == {FOUND}


def test_a_folder_that_others_can_write_is_refused_also_when_it_is_known(prepared):
    prepared.disk.chmod(prepared.layout.staged, 0o777)
    with fails_with("host-folder-unsafe") as failure:
        prepared.host.prepare()
    assert failure.value.exit_code is not ExitCode.DONE
