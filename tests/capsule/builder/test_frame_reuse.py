"""Another version of one file: what earlier capsules packed is used again, the rest unread."""

import os
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path

import pytest

from capsule.builder.assemble import Draft, assemble
from capsule.builder.model import ComponentInput, InputEntry
from capsule.builder.opened import open_capsule
from capsule.builder.packer import list_component
from capsule.builder.remembered import Memory
from capsule.builder.signing import sign_directory
from capsule.builder.verify import verify_capsule
from capsule_manifest.release import Component, ComponentKind, Role, capsule_id, encode_release
from capsule_manifest.tree import EntryKind
from support import documents

MIB = 1024 * 1024
FILES = {f"{index:02}": os.urandom(4 * MIB) for index in range(21)}  # a pack of 64 MiB and one more


class Counted:
    """Contents whose readers are counted."""

    def __init__(self):
        self.opened = []

    def entry(self, path, data):
        return InputEntry(
            path=path, kind=EntryKind.FILE, mode=0o644, size_bytes=len(data),
            open=partial(self.open, path, data),
        )  # fmt: skip

    def open(self, path, data):
        self.opened.append(path)
        return BytesIO(data)


def draft(files, counter):
    """A release of one component with these files, and who reads them after they were hashed."""
    counted = Counted()
    component = ComponentInput(
        name="app", kind="source", platforms=(), external=(),
        entries=tuple(counted.entry(path, data) for path, data in files.items()),
    )  # fmt: skip
    listing = list_component(component)
    counted.opened.clear()
    release = replace(
        documents.make_release(),
        release_counter=counter,
        roles={"web": Role(components=("app",), case_collisions="warn")},
        components=(
            Component(
                name="app", kind=ComponentKind.SOURCE, platforms=(), tree=listing.tree.root,
                entries=len(listing.tree.entries), content_bytes=listing.content_bytes,
                external=(), units=(), files=(), guarded_steps=(),
            ),
        ),
    )  # fmt: skip
    manifest = encode_release(release)
    made = Draft(
        release=release, manifest=manifest, capsule=capsule_id(manifest),
        listings={listing.tree.root: listing}, warnings=(),
    )  # fmt: skip
    return made, counted


def build(files, counter, output, memory=None):
    made, counted = draft(files, counter)
    folder = assemble(made, output, report=lambda _: None, memory=memory).folder
    return folder, counted.opened


def check(folder):
    sign_directory(folder, documents.RELEASE_KEY)
    policy = documents.make_policy()
    verify_capsule(open_capsule(folder), policy, report=lambda _: None)


@pytest.mark.parametrize("changed", ["00", "10", "20"])
def test_only_the_changed_file_is_read_and_the_capsule_is_whole(tmp_path, changed):
    first, _ = build(FILES, 1, tmp_path / "dist")
    files = {**FILES, changed: os.urandom(3 * MIB)}
    second, opened = build(files, 2, tmp_path / "dist")
    assert set(opened) <= {changed, f"{int(changed) + 1:02}"}
    assert changed in opened
    check(second)
    check(first)


def test_a_pack_without_a_change_is_the_same_file_under_two_names(tmp_path):
    first, _ = build(FILES, 1, tmp_path / "dist")
    second, _ = build({**FILES, "00": os.urandom(4 * MIB)}, 2, tmp_path / "dist")
    packs = [{path.name: path.stat().st_ino for path in (folder / "packs").iterdir()}
             for folder in (first, second)]  # fmt: skip
    shared = packs[0].keys() & packs[1].keys()
    assert len(shared) == 1
    assert all(packs[0][name] == packs[1][name] for name in shared)


def test_a_file_more_and_a_file_less_move_no_other_frame(tmp_path):
    build(FILES, 1, tmp_path / "dist")
    files = {path: data for path, data in FILES.items() if path != "05"} | {"12b": b"new" * 1000}
    second, opened = build(files, 2, tmp_path / "dist")
    assert opened == ["12b"]
    check(second)


def test_frames_of_a_damaged_pack_are_made_anew(tmp_path):
    first, _ = build(FILES, 1, tmp_path / "dist")
    for path in (first / "packs").iterdir():
        raw = bytearray(path.read_bytes())
        raw[len(raw) // 2] ^= 1
        path.write_bytes(raw)
    second, opened = build({**FILES, "00": b"other" * 1000}, 2, tmp_path / "dist")
    assert set(opened) == set(FILES)
    check(second)


def test_a_damaged_listing_or_packing_of_an_earlier_capsule_is_no_help_and_no_harm(tmp_path):
    first, _ = build(FILES, 1, tmp_path / "dist")
    [tree] = (first / "trees").iterdir()
    tree.write_bytes(tree.read_bytes()[:-1])
    second, opened = build({**FILES, "00": b"other" * 1000}, 2, tmp_path / "dist")
    assert set(opened) == set(FILES)
    check(second)


def test_a_proved_pack_is_not_read_again_and_a_touched_one_is(tmp_path):
    memory = Memory(tmp_path / "memory", boot="boot", program="program")
    first, _ = build(FILES, 1, tmp_path / "dist", memory)
    packs = sorted((first / "packs").iterdir())
    assert all(memory.is_proved(path, path.stem) for path in packs)
    raw = packs[0].read_bytes()
    packs[0].write_bytes(raw)
    assert not memory.is_proved(packs[0], packs[0].stem)
    second, _ = build(FILES, 2, tmp_path / "dist", memory)
    assert all(memory.is_proved(path, path.stem) for path in (second / "packs").iterdir())


def test_a_folder_on_another_disk_gets_copies(tmp_path):
    """Where no second name can be, the bytes are copied."""
    other = Path("/dev/shm")
    if not other.is_dir() or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs a second file system")
    from tempfile import TemporaryDirectory

    from capsule.durable import link_file

    with TemporaryDirectory(dir=other) as folder:
        source = tmp_path / "pack"
        source.write_bytes(b"pack")
        link_file(source, Path(folder, "pack"))
        assert Path(folder, "pack").read_bytes() == b"pack"
