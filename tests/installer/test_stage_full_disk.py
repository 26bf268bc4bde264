"""No space, no inodes, read-only: a typed error, nothing half-trusted, and it goes on after."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from capsule_installer.care.verify_host import HostVerifier
from capsule_manifest.errors import ExitCode
from capsule_manifest.release import ComponentKind
from capsule_manifest.wire import MessageType
from support.deliveries import Receiver, make_capsule, part
from support.failures import fails_with

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root"),
]

SIZE = 64 * 1024 * 1024
INODES = 2_000


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "host"
    folder.mkdir()
    options = f"size={SIZE},nr_inodes={INODES},mode=755"
    command = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
    if subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("this machine doesn't let us mount")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def receiver(small: Path) -> Receiver:
    made = Receiver(str(small))
    made.enrol()
    return made


def capsule_of(*, files: int, size: int):
    contents = {f"f{index}": os.urandom(size) + index.to_bytes(4, "big") for index in range(files)}
    return make_capsule((part("app", ComponentKind.SOURCE, contents),))


def filling(messages, fill):
    """Fill the disk when the first frame comes, after the space check has passed."""
    filled = False
    for message in messages:
        if message.type is MessageType.FRAME and not filled:
            fill()
            filled = True
        yield message


def fill_bytes(root: Path) -> Path:
    path = root / "filler"
    with pytest.raises(OSError, match="No space"), path.open("wb") as file:
        while True:
            file.write(bytes(65536))
            file.flush()
    return path


def fill_inodes(root: Path) -> Path:
    folder = root / "fillers"
    folder.mkdir()
    with pytest.raises(OSError, match="No space"):
        for index in range(INODES + 1):
            (folder / str(index)).touch()
    return folder


def test_too_little_space_is_refused_before_content(receiver):
    with fails_with("space-short") as caught:
        receiver.receive(capsule_of(files=10, size=6_000_000))
    assert caught.value.exit_code is ExitCode.SPACE
    assert receiver.records("want") == []


def test_too_few_inodes_are_refused_before_content(receiver):
    with fails_with("space-short") as caught:
        receiver.receive(capsule_of(files=INODES, size=10))
    assert "inodes" in str(caught.value)


@pytest.mark.parametrize("fill", [fill_bytes, fill_inodes])
def test_a_disk_that_fills_while_staging_is_survived(receiver, small, fill):
    capsule = capsule_of(files=20, size=1_000_000)
    fillers = []
    with fails_with("disk-full") as caught:
        receiver.take(filling(receiver.messages(capsule), lambda: fillers.append(fill(small))))
    assert caught.value.exit_code is ExitCode.SPACE
    assert receiver.marker(capsule) is None
    subprocess.run(["rm", "-r", str(fillers[0])], check=True)
    receiver.receive(capsule)
    assert HostVerifier(receiver.host).run() == []


def test_a_read_only_disk_is_a_typed_error(receiver, small):
    capsule = capsule_of(files=1, size=10)
    subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
    with fails_with("disk-read-only") as caught:
        receiver.receive(capsule)
    assert caught.value.exit_code is ExitCode.SPACE
    subprocess.run(["mount", "-o", "remount,rw", str(small)], check=True)
    assert receiver.receive(capsule)["generation"] == capsule.generation
