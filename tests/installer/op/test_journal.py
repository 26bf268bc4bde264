"""An op that can't record what it does is undone; undoing needs no record."""

from typing import Self

import pytest

from capsule_installer.op.journal import Journal
from capsule_installer.op.op_folder import OpFile, Result
from capsule_installer.system.disk import Disk, Writer
from capsule_manifest.errors import Failed
from capsule_manifest.records import Step
from support.failures import fails_with
from support.install_world import World
from support.ops import carry_out
from support.staged_host import Build

OP = "2" * 32
CONFIG = "/etc/hello/hello.toml"


class FullWriter:
    """A file that takes no line once `disk` has counted to its end."""

    def __init__(self, writer: Writer, disk: "FullDisk") -> None:
        self._writer = writer
        self._disk = disk

    def write(self, data: bytes) -> None:
        if self._disk.left == 0:
            raise Failed("disk-full", "no space", where="journal")
        self._disk.left -= 1
        self._writer.write(data)

    def fsync(self, why: str) -> None:
        self._writer.fsync(why)

    def close(self) -> None:
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FullDisk:
    """A disk that has space for so many lines of a journal, and for everything else."""

    def __init__(self, disk: Disk, left: int) -> None:
        self._disk = disk
        self.left = left

    def __getattr__(self, name: str) -> object:
        return getattr(self._disk, name)

    def create(self, path: str, mode: int) -> Writer:
        writer = self._disk.create(path, mode)
        return FullWriter(writer, self) if path.endswith(f"/{OpFile.STEPS}") else writer


def install(left: int) -> tuple[World, FullDisk, Result, str]:
    world = World.fresh()
    first = world.stage(Build(counter=1, files={CONFIG: b"one\n"}))
    second = world.stage(Build(counter=2, files={CONFIG: b"two\n"}))
    carry_out(world, first, "1" * 32)
    disk = FullDisk(world.host.disk, left)
    on_full = world.on(disk, world.machine)
    result = carry_out(on_full, second, OP)
    return on_full, disk, result, first.generation


def line_count() -> int:
    """Return how many lines the journal of a whole install has."""
    _, disk, result, _ = install(1000)
    assert result is Result.COMMITTED
    return 1000 - disk.left


LINES = line_count()


@pytest.mark.parametrize("left", range(LINES))
def test_an_op_whose_line_cannot_be_written_is_refused_or_undone(left):
    world, _, result, before = install(left)
    # Only the line after the commit comes too late to decide anything.
    if left == LINES - 1:
        assert result is Result.COMMITTED
        return
    assert result in {Result.REFUSED, Result.RESTORED}
    assert world.is_whole(before, strict=True)
    assert set(world.machine.running.values()) == {before}
    assert "disk-full" in world.host.op(OP).reason()
    assert world.machine.violations == []


def test_a_journal_that_is_not_required_is_only_shorter():
    world = World.fresh()
    world.stage(Build(counter=1))
    op = world.host.op(OP)
    world.host.disk.mkdir(op.path, 0o700)
    disk = FullDisk(world.host.disk, 1)
    step = Step(name="stop", took_ms=1, limit_ms=2)
    for required in (False, True):
        disk.left = 1
        journal = Journal(disk=disk, op=op, name=OpFile.STEPS, required=required)
        journal.started("stop", 2)
        if required:
            with fails_with("disk-full"):
                journal.done(step)
        else:
            journal.done(step)
        journal.failed("stop", 1, "why")
        journal.close()
