"""Units, managed files and recovery material come from the commit, never from the disk."""

from pathlib import PurePosixPath

import pytest

from capsule.builder.committed import committed_files
from capsule.builder.config import (
    FilesSource,
    ManagedFileSource,
    RecoverySource,
    ServiceSource,
    UnitSource,
)
from capsule.builder.git_source import open_work_tree
from capsule.builder.managed_files import recovery_input
from capsule_manifest.errors import Refused
from support.repositories import Repository


@pytest.fixture
def repository(tmp_path):
    made = Repository(tmp_path / "work")
    made.commit(
        {
            ".gitignore": b"*.local\n",
            "deploy/units/web.service": b"[Service]\nExecStart=/bin/true\n",
            "deploy/web.toml": b"port = 1\n",
            "docs/run/a.md": b"a\n",
            "docs/run/b/c.sh": b"#!/bin/sh\n",
            "top.md": b"top\n",
        }
    )
    return made


def units(*names):
    return ServiceSource(
        name="web",
        platforms=(),
        units=tuple(UnitSource(file=name, soak_ms=0, probe=None) for name in names),
        guarded_steps=(),
    )


def managed(name):
    item = ManagedFileSource(
        source=name, target="/etc/a", owner="root", group="root", mode=0o644, template=False
    )
    return FilesSource(name="config", platforms=(), files=(item,))


def recovery(*names):
    return RecoverySource(name="help", platforms=(), paths=names)


def files_of(repository, *components, folder="deploy"):
    return committed_files(open_work_tree(repository.folder / folder), components)


def content(entry):
    with entry.open() as stream:
        return stream.read()


def test_a_file_has_the_bytes_of_the_commit_under_a_new_path(repository):
    files = files_of(repository, units("units/web.service"))
    entry = files.file("units/web.service", "web.service", mode=0o644)
    assert (entry.path, entry.mode) == ("web.service", 0o644)
    assert content(entry) == b"[Service]\nExecStart=/bin/true\n"
    assert files.text("units/web.service").startswith("[Service]")


def test_a_converted_checkout_does_not_change_what_is_built(repository):
    repository.commit({".gitattributes": b"*.toml text eol=crlf\n"})
    (repository.folder / "deploy/web.toml").unlink()
    repository.git("checkout", "--", "deploy/web.toml")
    assert (repository.folder / "deploy/web.toml").read_bytes() == b"port = 1\r\n"
    files = files_of(repository, managed("web.toml"))
    assert content(files.file("web.toml", "a", mode=0o644)) == b"port = 1\n"


@pytest.mark.parametrize("make", [units, managed, recovery])
@pytest.mark.parametrize(
    "name", ["web.local", "missing.service", "../../outside", "units/../../no"]
)
def test_a_file_that_git_ignores_or_lacks_is_refused_by_name(repository, make, name):
    repository.write({"deploy/web.local": b"secret\n"})
    (repository.folder.parent / "outside").write_bytes(b"outside\n")
    with pytest.raises(Refused) as caught:
        files_of(repository, make(name))
    assert caught.value.error_id == "input-missing"
    assert caught.value.got == name


def test_a_file_above_the_folder_of_the_release_is_taken_from_the_commit(repository):
    (entry,) = files_of(repository, recovery("../top.md")).below("../top.md")
    assert (entry.path, content(entry)) == ("top.md", b"top\n")


def test_a_folder_comes_whole_below_its_own_name(repository):
    source = recovery("../docs/run")
    component = recovery_input(source, files_of(repository, source))
    assert [entry.path for entry in component.entries] == ["run/a.md", "run/b/c.sh"]


def test_an_ignored_file_in_a_folder_is_left_out(repository):
    repository.write({"docs/run/notes.local": b"mine\n"})
    entries = files_of(repository, recovery("../docs")).below("../docs")
    assert "notes.local" not in {PurePosixPath(entry.path).name for entry in entries}
    assert len(entries) == 2


def test_a_folder_where_a_file_is_wanted_is_refused(repository):
    files = files_of(repository, units("units"))
    with pytest.raises(Refused) as caught:
        files.file("units", "units", mode=0o644)
    assert (caught.value.error_id, caught.value.got) == ("input-missing", "a folder")


def test_a_link_where_a_file_is_wanted_is_refused(repository):
    (repository.folder / "deploy/link.service").symlink_to("units/web.service")
    repository.commit()
    files = files_of(repository, units("link.service"))
    with pytest.raises(Refused) as caught:
        files.text("link.service")
    assert (caught.value.error_id, caught.value.got) == ("input-missing", "a link")


def test_a_text_that_is_not_utf8_is_refused(repository):
    repository.commit({"deploy/odd.service": b"\xff\xfe"})
    with pytest.raises(Refused) as caught:
        files_of(repository, units("odd.service")).text("odd.service")
    assert caught.value.error_id == "input-missing"
