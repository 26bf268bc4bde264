"""`capsule verify` finds every kind of damage, and a staging repairs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from capsule_installer.care.verify_host import HostVerifier
from support.deliveries import Capsule, Receiver, make_capsule


@pytest.fixture
def staged(tmp_path: Path) -> tuple[Receiver, Capsule]:
    receiver = Receiver(str(tmp_path))
    receiver.enrol()
    capsule = make_capsule()
    receiver.receive(capsule)
    return receiver, capsule


def overwrite(path: Path, data: bytes) -> None:
    mode = path.stat().st_mode
    path.chmod(0o600)
    path.write_bytes(data)
    path.chmod(mode)


def grow(path):
    overwrite(path, path.read_bytes() + b"x")


def flip(path):
    raw = bytearray(path.read_bytes())
    raw[0] ^= 1
    overwrite(path, bytes(raw))


def relink(path):
    path.unlink()
    path.symlink_to("/etc/passwd")


DAMAGES = [
    ("app/main.py", Path.unlink, "missing"),
    ("app/main.py", grow, "size-mismatch"),
    ("app/main.py", flip, "digest-mismatch"),
    ("app/secret.txt", flip, "digest-mismatch"),
    ("app/latest", relink, "digest-mismatch"),
    ("app/run", lambda path: path.chmod(0o755), "mode-mismatch"),
    ("app/main.py", relink, "unexpected"),
    ("app/new.py", lambda path: path.write_bytes(b"x"), "unexpected"),
    ("app/__pycache__/main.cpython-311.pyc", flip, "digest-mismatch"),
    ("app/__pycache__/other.pyc", lambda path: path.write_bytes(b"x"), "unexpected"),
    ("libs/bin/python", relink, "digest-mismatch"),
    ("libs/pyvenv.cfg", flip, "digest-mismatch"),
    ("units/hello.service", flip, "digest-mismatch"),
    ("units/other.service", lambda path: path.write_bytes(b"x"), "unexpected"),
    ("files/etc/hello/hello.toml", flip, "digest-mismatch"),
    ("capsule.json", flip, "unreadable"),
]


def test_a_host_as_it_was_staged_has_no_problem(staged):
    receiver, capsule = staged
    verifier = HostVerifier(receiver.host)
    assert verifier.run() == []
    assert set(verifier.counts) == {capsule.generation, "store"}
    assert verifier.counts[capsule.generation]["ok"] >= 10


@pytest.mark.parametrize(("path", "damage", "what"), DAMAGES)
def test_every_damage_of_a_generation_is_found(staged, path, damage, what):
    receiver, capsule = staged
    damage(Path(receiver.path(capsule, path)))
    found = HostVerifier(receiver.host).run()
    assert what in {problem.what for problem in found}


@pytest.mark.parametrize(
    ("path", "damage"),
    [row[:2] for row in DAMAGES if row[0] != "app/new.py" and "other" not in row[0]],
)
def test_staging_again_repairs_every_damage(staged, path, damage):
    receiver, capsule = staged
    damage(Path(receiver.path(capsule, path)))
    verifier = HostVerifier(receiver.host)
    verifier.quarantine(verifier.run())
    receiver.receive(capsule)
    assert HostVerifier(receiver.host).run() == []


def test_a_damaged_marker_is_no_marker(staged):
    receiver, capsule = staged
    flip(Path(receiver.layout.marker(capsule.generation)))
    assert {p.what for p in HostVerifier(receiver.host).run()} == {"unreadable"}


def test_a_lost_listing_is_found(staged):
    receiver, _ = staged
    for path in Path(receiver.layout.trees).iterdir():
        path.unlink()
    assert {p.what for p in HostVerifier(receiver.host).run()} >= {"missing"}


def test_a_stray_file_in_the_store_is_found(staged):
    receiver, _ = staged
    stray = Path(receiver.layout.store) / "ab"
    stray.mkdir(exist_ok=True)
    (stray / "note.txt").write_text("x")
    assert [p.what for p in HostVerifier(receiver.host).run()] == ["unexpected"]


def test_one_inode_is_hashed_once_for_all_generations(staged):
    receiver, capsule = staged
    verifier = HostVerifier(receiver.host)
    verifier.run()
    once = verifier.hashed_bytes
    receiver.receive(make_capsule(counter=8))
    again = HostVerifier(receiver.host)
    again.run()
    # Rendered files and bytecode are each generation's own, content is not.
    assert once < again.hashed_bytes < 2 * once
    shared = os.lstat(receiver.path(capsule, "app/main.py"))
    assert shared.st_nlink == 3


def test_a_collection_leaves_a_staged_generation_whole(staged, tmp_path):
    receiver, capsule = staged
    done = subprocess.run(
        [sys.executable, "-m", "capsule_installer", "--root", str(tmp_path), "gc", "--json"],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert HostVerifier(receiver.host).run() == []
    receiver.receive(capsule)
    assert receiver.wanted() == {}
