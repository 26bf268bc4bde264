"""One output folder, several builds: nothing is overwritten, nothing half is seen."""

import os
from pathlib import Path

import pytest

from capsule.builder.assemble import assemble, draft_release
from capsule.builder.config import load_release
from capsule.builder.git_source import open_work_tree, source_input
from capsule.builder.model import ComponentInput
from capsule.builder.opened import open_capsule
from capsule.builder.resolve import Resolved
from capsule_manifest.errors import CapsuleError, Refused
from support.repositories import Repository

_TOML = """\
format = 1
product = "acme/web"
version = "1.0.{counter}"
release_counter = {counter}
[installer]
min_version = "0.1.0"
reason = "the first release"
[platforms.bookworm]
machine = "x86_64"
glibc = "2.36"
python = "3.11"
[components.app]
kind = "source"
path = "."
include = ["app"]
[components.data]
kind = "source"
path = "."
include = ["data"]
[roles.web]
components = ["app", "data"]
"""


def silent(_text):
    pass


@pytest.fixture
def repository(tmp_path):
    return Repository(tmp_path / "work")


def draft(repository, counter=1, app=b"print(1)\n"):
    repository.commit(
        {
            "release.toml": _TOML.format(counter=counter).encode(),
            "app/main.py": app,
            "data/table": b"row\n" * 50_000,
        }
    )
    source = load_release(repository.folder / "release.toml")
    inputs: list[ComponentInput] = [
        source_input(item.name, repository.folder, include=item.include)[0]
        for item in source.components
    ]
    commit = open_work_tree(repository.folder).source
    return draft_release(source, Resolved(source=commit, components=tuple(inputs)), report=silent)


def listing(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_a_second_build_of_the_same_leaves_the_first_as_it_is(repository, tmp_path):
    made = draft(repository)
    first = assemble(made, tmp_path / "dist", report=silent)
    (first.folder / "signatures/release-01234567.sigstore.json").write_bytes(b"{}")
    before = listing(tmp_path / "dist")
    second = assemble(made, tmp_path / "dist", report=silent)
    assert second.folder == first.folder
    assert listing(tmp_path / "dist") == before


def test_a_folder_of_the_right_name_with_other_content_is_refused(repository, tmp_path):
    made = draft(repository)
    built = assemble(made, tmp_path / "dist", report=silent)
    (built.folder / "capsule.json").write_bytes(b"{}")
    with pytest.raises(Refused) as caught:
        assemble(made, tmp_path / "dist", report=silent)
    assert caught.value.error_id == "output-differs"


@pytest.mark.parametrize("counter", [1, 2])
def test_a_counter_that_is_not_higher_is_refused_and_nothing_is_left(repository, tmp_path, counter):
    assemble(draft(repository, counter=2), tmp_path / "dist", report=silent)
    before = sorted(path.name for path in (tmp_path / "dist").iterdir())
    other = draft(repository, counter=counter, app=b"print(2)\n")
    with pytest.raises(Refused) as caught:
        assemble(other, tmp_path / "dist", report=silent)
    assert caught.value.error_id == "counter-not-higher"
    assert sorted(path.name for path in (tmp_path / "dist").iterdir()) == before


def test_packs_of_unchanged_components_are_reused_byte_by_byte(repository, tmp_path):
    first = assemble(draft(repository, counter=1), tmp_path / "dist", report=silent)
    second = assemble(
        draft(repository, counter=2, app=b"print(2)\n"), tmp_path / "dist", report=silent
    )
    assert second.reused == 1
    shared = set(listing(first.folder / "packs")) & set(listing(second.folder / "packs"))
    assert len(shared) == 1


def test_a_damaged_pack_of_an_earlier_capsule_is_not_reused(repository, tmp_path):
    first = assemble(draft(repository, counter=1), tmp_path / "dist", report=silent)
    intact = listing(first.folder / "packs")
    for path in (first.folder / "packs").iterdir():
        raw = bytearray(path.read_bytes())
        raw[5] ^= 1
        path.write_bytes(raw)
    second = assemble(draft(repository, counter=2), tmp_path / "dist", report=silent)
    assert second.reused == 0
    assert listing(second.folder / "packs") == intact


def test_a_build_that_fails_leaves_nothing_behind(repository, tmp_path):
    made = draft(repository)
    # The object store of git is the input: without it the second pass can't read.
    changed = next(iter(made.listings.values()))
    for digest, entry in list(changed.sources.items()):
        path = tmp_path / "other"
        path.write_bytes(b"x" * entry.size_bytes)
        object.__setattr__(entry, "open", lambda path=path: path.open("rb"))
        changed.sources[digest] = entry
    with pytest.raises(CapsuleError) as caught:
        assemble(made, tmp_path / "dist", report=silent)
    assert caught.value.error_id == "input-changed"
    assert list((tmp_path / "dist").iterdir()) == []


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_modes_do_not_depend_on_the_umask(repository, tmp_path, umask):
    made = draft(repository)
    before = os.umask(umask)
    try:
        built = assemble(made, tmp_path / "dist", report=silent)
    finally:
        os.umask(before)
    modes = {path.is_dir(): set() for path in built.folder.rglob("*")}
    for path in (built.folder, *built.folder.rglob("*")):
        modes[path.is_dir()].add(path.stat().st_mode & 0o7777)
    assert modes == {True: {0o755}, False: {0o644}}


def test_a_link_to_a_folder_in_a_capsule_is_refused(repository, tmp_path):
    built = assemble(draft(repository), tmp_path / "dist", report=silent)
    (built.folder / "deltas").symlink_to(Path("/"))
    with pytest.raises(Refused) as caught:
        open_capsule(built.folder)
    assert caught.value.error_id == "container-member-refused"
