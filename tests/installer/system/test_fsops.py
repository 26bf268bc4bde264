"""Durable operations on the model disk: old or new after any stop, new after the call."""

import pytest

from capsule_installer.system.disk import FileKind
from capsule_installer.system.fsops import (
    make_dirs,
    publish_once,
    remove_tree,
    replace_file,
    switch_link,
)
from support.crashing_disk import CrashingDisk, Moment, Stopped
from support.model_disk import ModelDisk, survivors

OLD, NEW = b"the old content", b"the new and longer content"


def fresh() -> ModelDisk:
    disk = ModelDisk()
    disk.mkdir("/d", 0o755)
    disk.sync_filesystem("/", "test")
    return disk


def with_old() -> ModelDisk:
    disk = fresh()
    replace_file(disk, "/d/f", OLD, 0o644)
    disk.sync_filesystem("/", "test")
    return disk


def content(disk: ModelDisk, path: str = "/d/f") -> bytes | None:
    return None if disk.stat(path) is None else disk.read(path, 1000)


CALLS = {
    "replace": (with_old, lambda disk: replace_file(disk, "/d/f", NEW, 0o644), {OLD, NEW}, NEW),
    "create": (fresh, lambda disk: replace_file(disk, "/d/f", NEW, 0o644), {None, NEW}, NEW),
    "publish": (fresh, lambda disk: publish_once(disk, "/d/f", NEW, 0o644), {None, NEW}, NEW),
    "publish over": (with_old, lambda disk: publish_once(disk, "/d/f", NEW, 0o644), {OLD}, OLD),
}


@pytest.mark.parametrize(("start", "call", "allowed", "after"), CALLS.values(), ids=CALLS)
def test_a_stop_anywhere_leaves_the_old_or_the_new_content(start, call, allowed, after):
    count = CrashingDisk(start())
    call(count)
    for number in range(1, count.count + 1):
        for moment in Moment:
            disk = start()
            with pytest.raises(Stopped):
                call(CrashingDisk(disk, stop_at=number, moment=moment))
            for _, left in survivors(disk):
                assert content(left) in allowed
                call(left)
                assert content(left) == after


@pytest.mark.parametrize(("start", "call", "allowed", "after"), CALLS.values(), ids=CALLS)
def test_what_was_done_survives_a_power_loss(start, call, allowed, after):
    del allowed
    disk = start()
    call(disk)
    assert {content(left) for _, left in survivors(disk)} == {after}


@pytest.mark.parametrize("call", ["replace", "create", "publish"])
def test_each_fsync_of_a_call_is_needed(call):
    start, act, _, after = CALLS[call]
    probe = start()
    probe.labels = set()
    act(probe)
    for label in probe.labels:
        disk = start()
        disk.skip = frozenset({label})
        act(disk)
        assert {content(left) for _, left in survivors(disk)} != {after}, label


def test_only_the_first_of_several_publishers_wins():
    disk = fresh()
    assert publish_once(disk, "/d/f", OLD, 0o644)
    assert not publish_once(disk, "/d/f", NEW, 0o644)
    assert content(disk) == OLD
    assert disk.list("/d") == ["f"]


def test_missing_folders_are_made_and_survive():
    disk = fresh()
    make_dirs(disk, "/d/a/b/c", 0o700)
    for _, left in survivors(disk):
        assert left.stat("/d/a/b/c").mode == 0o700
    make_dirs(disk, "/d/a", 0o755)
    assert disk.stat("/d/a").mode == 0o700


def test_a_folder_that_somebody_else_made_at_the_same_moment_is_durable_too():
    class Raced(ModelDisk):
        def mkdir(self, path, mode):
            super().mkdir(path, mode)
            if path == "/d/a":
                raise FileExistsError(path)

    disk = Raced()
    disk.mkdir("/d", 0o755)
    disk.sync_filesystem("/", "test")
    make_dirs(disk, "/d/a", 0o700)
    assert all(left.stat("/d/a") is not None for _, left in survivors(disk))


def test_a_link_leads_to_the_old_or_the_new_target():
    disk = fresh()
    switch_link(disk, "/d/current", "one")
    disk.sync_filesystem("/", "test")
    switch_link(disk, "/d/current", "two")
    assert {left.read_link("/d/current") for _, left in survivors(disk)} == {"two"}


def test_a_tree_is_removed_with_closed_folders_and_links_inside():
    disk = fresh()
    make_dirs(disk, "/d/t/sub", 0o755)
    replace_file(disk, "/d/kept", OLD, 0o644)
    disk.symlink("/d/kept", "/d/t/sub/link")
    disk.chmod("/d/t/sub", 0o500)
    remove_tree(disk, "/d/t")
    remove_tree(disk, "/d/t")
    assert disk.list("/d") == ["kept"]
    assert disk.stat("/d/kept").kind is FileKind.FILE
