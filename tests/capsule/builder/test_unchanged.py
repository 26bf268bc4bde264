"""A build that would change nothing is not done, and every build that would is."""

import shutil
from dataclasses import asdict, replace
from datetime import date

import pytest

from capsule.builder.build import build_release
from capsule.builder.build_twice import check_reproducible, first_difference
from capsule.builder.lock_changes import lock_changes, without_pins_of
from capsule.builder.lockfile import SourcePin, decode_lock, encode_lock, load_lock
from capsule.builder.remembered import Memory
from capsule.builder.unchanged import KnownBuilds
from support.failures import fails_with
from support.indexes import cache_of
from support.locked_release import silent
from support.repositories import Repository
from support.runtimes import runtime_index

_TODAY = date(2026, 5, 1)
_TOML = """\
format = 1
product = "acme/hello"
version = "1.0.0"
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
{more}
[roles.web]
components = ["app"]
"""


class Builder:
    def __init__(self, folder, monkeypatch):
        self.folder = folder
        self.repository = Repository(folder / "work")
        self.path = self.repository.folder / "release.toml"
        self.output = folder / "dist"
        self.index = folder / "index"
        self.index.mkdir()
        runtime_index(self.index, monkeypatch)
        self.write(1)

    def write(self, counter, more="", files=None):
        text = _TOML.format(counter=counter, more=more)
        self.repository.commit(
            {"release.toml": text.encode(), "app/main.py": b"x = 1\n", **(files or {}),
             ".gitignore": b"release.lock\nsecret-waivers.toml\nlocal\n"}
        )  # fmt: skip
        self.lock()

    def lock(self):
        from datetime import UTC, datetime

        from capsule.builder.config import load_release
        from capsule.builder.lock import lock_release

        lock = lock_release(
            load_release(self.path), self.cache(), previous=None,
            now=datetime(2026, 1, 2, tzinfo=UTC), locked_by="test", report=silent,
        )  # fmt: skip
        self.path.with_name("release.lock").write_bytes(encode_lock(lock))

    @property
    def memory(self):
        return Memory(self.folder / "memory", boot="boot", program="program")

    def cache(self):
        made = cache_of(self.folder / "cache", self.index)
        made.memory = self.memory
        return made

    def build(self):
        return build_release(self.path, self.output, self.cache(), today=_TODAY, report=silent)

    def recall(self, today=_TODAY):
        return KnownBuilds(self.memory, self.path, today=today).recall(self.output)


@pytest.fixture
def builder(tmp_path, monkeypatch):
    return Builder(tmp_path, monkeypatch)


def test_what_was_built_is_known(builder):
    assert builder.recall() is None
    build = builder.build()
    known = builder.recall()
    assert asdict(known) == asdict(build.answer) | {"reused": known.components}
    assert builder.output / known.name == build.folder


def changed_file(builder):
    builder.repository.commit({"app/main.py": b"x = 2\n"})


def dirty_tree(builder):
    (builder.repository.folder / "app/main.py").write_bytes(b"x = 2\n")


def untracked_file(builder):
    (builder.repository.folder / "app/more.py").write_bytes(b"")


def changed_lock(builder):
    path = builder.path.with_name("release.lock")
    path.write_bytes(path.read_bytes() + b"# ignored by git, and read by a build\n")


def new_waivers(builder):
    builder.path.with_name("secret-waivers.toml").write_text("waivers = []\n")


def no_capsule(builder):
    shutil.rmtree(builder.output)


def changed_capsule(builder):
    [folder] = builder.output.iterdir()
    (folder / "capsule.json").write_bytes(b"{}")


def missing_pack(builder):
    pack_of(builder).unlink()


def shortened_pack(builder):
    pack = pack_of(builder)
    pack.write_bytes(pack.read_bytes()[:-1])


def pack_of(builder):
    return next(builder.output.glob("*/packs/*.pack"))


def higher_counter(builder):
    (builder.output / "hello-2-01234567.capsule").mkdir()


def same_counter(builder):
    (builder.output / "hello-1-01234567.capsule").mkdir()


CHANGES = (
    changed_file, dirty_tree, untracked_file, changed_lock, new_waivers, no_capsule,
    changed_capsule, missing_pack, shortened_pack, higher_counter, same_counter,
)  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_whatever_could_make_another_build_makes_one(builder, change):
    builder.build()
    assert builder.recall() is not None
    change(builder)
    assert builder.recall() is None


@pytest.mark.parametrize("damage", [missing_pack, shortened_pack])
def test_a_capsule_that_lost_a_pack_is_not_said_to_be_built(builder, damage):
    builder.build()
    damage(builder)
    with fails_with("output-differs") as caught:
        builder.build()
    assert "packs/" in caught.value.got


def test_a_signature_that_came_later_is_no_change(builder):
    folder = builder.build().folder
    (folder / "signatures/release-01234567.sigstore.json").write_bytes(b"{}")
    assert builder.recall() is not None


def test_a_capsule_of_another_product_beside_it_is_no_change(builder):
    builder.build()
    (builder.output / "other-9-01234567.capsule").mkdir()
    assert builder.recall() is not None


def test_a_waiver_ends_with_its_day(builder):
    builder.build()
    assert builder.recall(date(2026, 5, 2)) is None


def test_another_boot_or_program_knows_nothing(builder):
    builder.build()
    for other in ({"boot": "b", "program": "program"}, {"boot": "boot", "program": "p"}):
        memory = Memory(builder.folder / "memory", **other)
        assert KnownBuilds(memory, builder.path, today=_TODAY).recall(builder.output) is None


def test_a_tool_from_a_path_is_read_every_time(builder):
    """git may ignore it, so no commit says what it is."""
    (builder.repository.folder / "local").mkdir()
    tool = builder.repository.folder / "local/tool"
    tool.write_bytes(b"#!/bin/sh\n")
    builder.write(1, '[components.tool]\nkind = "helper"\npath = "local/tool"\n')
    builder.build()
    assert builder.recall() is None


@pytest.fixture
def other(builder):
    """A source in a work tree beside that of the release."""
    made = Repository(builder.folder / "other")
    made.commit({"lib.py": b"y = 1\n"})
    builder.write(1, '[components.lib]\nkind = "source"\npath = "../other"\n')
    return made


@pytest.mark.usefixtures("other")
def test_a_source_in_another_work_tree_is_read_every_time(builder):
    builder.build()
    assert builder.recall() is None


def test_a_source_in_another_work_tree_is_pinned_at_its_commit(builder, other):
    lock = load_lock(builder.path.with_name("release.lock"))
    commit, tree = other.git("rev-parse", "HEAD", "HEAD^{tree}").split()
    assert lock.sources == {"lib": SourcePin(commit=commit, tree=tree)}
    assert decode_lock(encode_lock(lock)) == lock
    first = builder.build().answer.capsule
    shutil.rmtree(builder.output)
    other.commit({"lib.py": b"y = 2\n"})
    with fails_with("lock-stale") as caught:
        builder.build()
    assert commit in str(caught.value)
    builder.lock()
    assert builder.build().answer.capsule != first


def test_a_source_in_another_work_tree_without_a_pin_is_an_open_input(builder, other):
    path = builder.path.with_name("release.lock")
    lock = load_lock(path)
    path.write_bytes(encode_lock(replace(lock, sources={})))
    with fails_with("manifest-incomplete") as caught:
        builder.build()
    assert "lib for all platforms: commit" in str(caught.value)
    assert [change.where for change in lock_changes(replace(lock, sources={}), lock)] == [
        "sources.lib"
    ]
    assert without_pins_of(lock, ["lib"])[0].sources == {}
    assert other.folder.is_dir()


def test_a_release_is_locked_before_its_first_commit(builder):
    shutil.rmtree(builder.repository.folder / ".git")
    builder.lock()
    builder.repository.git("init", "--quiet")
    builder.lock()
    assert load_lock(builder.path.with_name("release.lock")).sources == {}


def test_a_work_tree_inside_the_release_is_another(builder):
    inner = Repository(builder.repository.folder / "local" / "inner")
    inner.commit({"lib.py": b"y = 1\n"})
    builder.write(1, '[components.lib]\nkind = "source"\npath = "local/inner"\n')
    lock = load_lock(builder.path.with_name("release.lock"))
    assert lock.sources["lib"].commit == inner.git("rev-parse", "HEAD")


# --- a second build elsewhere ---------------------------------------------------------------------
def test_the_first_object_that_differs_is_named_with_both_digests(builder, tmp_path):
    builder.write(1, files={"app/a": b"same", "app/b": b"one", "app/c": b"one"})
    first = builder.build()
    other = Builder.__new__(Builder)
    other.__dict__ = {**builder.__dict__, "output": tmp_path / "dist2"}
    other.write(1, files={"app/a": b"same", "app/b": b"two", "app/c": b"two"})
    second = other.build()
    where, expected, got = first_difference(first.draft, second.folder)
    assert where == "app: app/b"
    assert expected != got
    assert "blake3:" in expected
    assert "blake3:" in got
    assert first_difference(second.draft, second.folder) is None


def test_a_mode_that_differs_is_a_difference(builder, tmp_path):
    first = builder.build()
    (builder.repository.folder / "app/main.py").chmod(0o755)
    builder.repository.commit()
    other = Builder.__new__(Builder)
    other.__dict__ = {**builder.__dict__, "output": tmp_path / "dist2"}
    where, expected, got = first_difference(first.draft, other.build().folder)
    assert where == "app: app/main.py"
    assert "mode 0644" in expected
    assert "mode 0755" in got


def test_what_only_this_folder_has_can_not_be_built_elsewhere(builder):
    """A tool that git ignores is in no clone, so nobody else could build this commit."""
    (builder.repository.folder / "local").mkdir()
    (builder.repository.folder / "local/tool").write_bytes(b"#!/bin/sh\n")
    builder.write(1, '[components.tool]\nkind = "helper"\npath = "local/tool"\n')
    build = builder.build()
    import os

    with fails_with("not-reproducible") as caught:
        check_reproducible(builder.path, build.draft, dict(os.environ))
    assert "can't be built again elsewhere" in str(caught.value)
