"""A host whose disk has no byte and no inode left can still go back."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.staged_host import Build, StagedHost, await_true, free_port
from support.supervising import doom

pytestmark = [pytest.mark.root, pytest.mark.network]

FIRST, SECOND, THIRD = "1" * 32, "2" * 32, "3" * 32
CONFIG = "/etc/hello/hello.toml"


@pytest.fixture
def small_host(tmp_path: Path) -> Iterator[StagedHost]:
    """A host on a file system of its own, of 24 MiB and 1200 inodes."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m,nr_inodes=1200,mode=755", "none", tmp_path]
    subprocess.run(mount, check=True)
    try:
        host = StagedHost(str(tmp_path), port=free_port())
        yield host
        host.stop_services()
    finally:
        subprocess.run(["umount", "--lazy", tmp_path], check=True)


def fill(host: StagedHost) -> None:
    """Take every byte and every inode."""
    root = Path(host.root)
    with (root / "filler").open("wb") as file:
        try:
            while True:
                file.write(bytes(65536))
                file.flush()
        except OSError:
            pass
    number = 0
    try:
        while True:
            (root / f"filler{number}").touch()
            number += 1
    except OSError:
        pass
    assert host.disk.free(host.root) == (0, 0)


def test_rescue_restores_without_a_free_byte_or_inode(small_host):
    host = small_host
    first = host.stage(Build(counter=1, files={CONFIG: b"one\n"}))
    second = host.stage(Build(counter=2, files={CONFIG: b"two\n"}))
    assert host.install(first, op_id=FIRST)[0] == 0
    doom(host, second, "prove", op_id=SECOND)
    await_true(lambda: host.get() == "2")
    fill(host)
    assert host.rescue(SECOND, "now") == 0
    assert host.get() == "1"
    assert host.current() == first.generation
    assert Path(host.root + CONFIG).read_bytes() == b"one\n"
    assert not Path(host.layout.hold).exists()


def test_the_program_itself_restores_without_a_free_byte_or_inode(small_host):
    host = small_host
    first = host.stage(Build(counter=1, files={CONFIG: b"one\n"}))
    root = host.root
    filling = f"cp /dev/zero {root}/filler; i=0; while : > {root}/f$i; do i=$((i+1)); done; exit 1"
    second = host.stage(Build(counter=2, guarded_steps=(("/bin/sh", "-c", filling),)))
    assert host.install(first, op_id=FIRST)[0] == 0
    host.begin(second, op_id=SECOND)
    code, _ = host.run("follow", SECOND, "--timeout", "30")
    assert code == 60
    assert Path(root, "f1").exists(), "it did fill the disk"
    assert host.get() == "1"
    assert host.current() == first.generation


def test_a_rollback_needs_no_free_byte_or_inode(small_host):
    host = small_host
    first = host.stage(Build(counter=1, files={CONFIG: b"one\n"}))
    second = host.stage(Build(counter=2, files={CONFIG: b"two\n"}))
    assert host.install(first, op_id=FIRST)[0] == 0
    assert host.install(second, op_id=SECOND)[0] == 0
    fill(host)
    code, records = host.run("rollback", "--json")
    assert code == 0, records[-3:]
    assert host.get() == "1"
    assert Path(host.root + CONFIG).read_bytes() == b"one\n"
