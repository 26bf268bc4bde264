"""Locking decides, building obeys: pins answer exactly what the release asks."""

from datetime import UTC, datetime

import pytest

from capsule.builder.lock import fetch_pins, lock_release
from capsule.builder.lockfile import decode_lock, encode_lock
from capsule.builder.resolve import resolve_release
from capsule_manifest.errors import Failed, Refused
from support.indexes import cache_of
from support.releases import FETCHED, ReleaseFolder
from support.runtimes import runtime_index
from support.wheels import WheelFile

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LATER = datetime(2027, 1, 2, 3, 4, 5, tzinfo=UTC)


class Builder:
    """One machine: a cache, and with or without network."""

    def __init__(self, folder, tmp_path, *, has_network=True):
        self.folder = folder
        index = folder.index if has_network else None
        files = folder.files if has_network else None
        self.cache = cache_of(tmp_path, index, files)
        self.reports = []

    def lock(self, previous=None, now=NOW):
        return lock_release(
            self.folder.release,
            self.cache,
            previous=previous,
            now=now,
            locked_by="capsule test",
            report=self.reports.append,
        )

    def resolve(self, lock):
        return resolve_release(self.folder.release, lock, self.cache, report=self.reports.append)

    def fetch(self, lock):
        return fetch_pins(self.folder.release, lock, self.cache, report=self.reports.append)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    made = ReleaseFolder(tmp_path / "release")
    runtime_index(made.index, monkeypatch)
    return made


@pytest.fixture
def builder(folder, tmp_path):
    return Builder(folder, tmp_path / "cache")


def contents(components):
    listing = {}
    for component in components:
        for entry in component.entries:
            with entry.open() as stream:
                listing[component.name, component.platforms, entry.path] = (
                    entry.mode,
                    stream.read(),
                )
    return listing


def refusal(call, *arguments):
    with pytest.raises(Refused) as caught:
        call(*arguments)
    return caught.value


def test_a_release_is_resolved_from_its_pins(builder, folder):
    resolved = builder.resolve(builder.lock())
    assert resolved.source.commit == folder.repository.git("rev-parse", "HEAD")
    assert [(item.name, item.kind, item.platforms) for item in resolved.components] == [
        ("app", "source", ()),
        ("deps", "wheels", ("bookworm",)),
        ("deps", "wheels", ("trixie",)),
        ("fetched", "helper", ()),
        ("linter", "helper", ()),
        ("runtime-bookworm", "runtime", ("bookworm",)),
        ("runtime-trixie", "runtime", ("trixie",)),
        ("script", "helper", ()),
    ]
    found = contents(resolved.components)
    library = "lib/python3.13/site-packages"
    assert found["deps", ("trixie",), f"{library}/native.so"] == (0o644, b"cp313-cp313")
    assert found["linter", (), "bin/linter"] == (0o755, b"\x7fELF linter")
    assert found["fetched", (), "bin/fetched"] == (0o755, FETCHED)
    assert found["script", (), "bin/script"] == (0o755, b"#!/bin/sh\n")


def test_externals_name_what_other_tools_know(builder):
    components = builder.resolve(builder.lock()).components
    found = {(c.name, e.type, e.name) for c in components for e in c.external}
    assert ("fetched", "url", "fetched") in found
    assert ("linter", "wheel", "linter-1.0-py3-none-manylinux_2_17_x86_64.whl") in found
    assert ("app", "git-commit", "app") in found


def test_two_machines_resolve_the_same_bytes_and_order(builder, folder, tmp_path):
    lock = builder.lock()
    other = Builder(folder, tmp_path / "other cache")
    mine = contents(builder.resolve(lock).components)
    theirs = contents(other.resolve(decode_lock(encode_lock(lock))).components)
    assert list(mine.items()) == list(theirs.items())


def test_platforms_with_the_same_pins_and_python_share_a_component(builder, folder):
    folder.edit('python = "3.13"', 'python = "3.11"')
    names = [(c.name, c.platforms) for c in builder.resolve(builder.lock()).components]
    assert ("deps", ()) in names
    folder.edit(
        'requirements = "requirements.lock"',
        'requirements = "requirements.lock"\nplatforms = ["trixie"]',
    )
    names = [(c.name, c.platforms) for c in builder.resolve(builder.lock()).components]
    assert ("deps", ("trixie",)) in names


def test_locking_twice_changes_nothing_not_even_the_time(builder):
    first = builder.lock()
    assert builder.lock(first, LATER) is first


def test_a_tools_wheel_does_not_move_by_itself(builder, folder):
    first = builder.lock()
    folder.put(
        WheelFile(
            name="linter",
            tag="py3-none-manylinux_2_28_x86_64",
            files={"linter-1.0.data/scripts/linter": b"newer build"},
        )
    )
    assert builder.lock(first) == first
    moved = builder.lock()
    assert moved.wheels["linter", "bookworm"] != first.wheels["linter", "bookworm"]


def test_a_changed_requirement_is_locked_again_and_the_rest_kept(builder, folder):
    first = builder.lock()
    folder.put(WheelFile(name="more", files={"more.py": b""}))
    folder.require("pure", "native", "more")
    second = builder.lock(first, LATER)
    names = [pin.name for pin in second.wheels["deps", "bookworm"].wheels]
    assert names == ["more", "native", "pure"]
    assert second.wheels["linter", "bookworm"] == first.wheels["linter", "bookworm"]
    assert second.locked_at.startswith("2027")


@pytest.mark.parametrize("change", ["requirements", "platform", "tool", "script", "component"])
def test_a_build_with_a_stale_lock_is_refused(builder, folder, change):
    lock = builder.lock()
    match change:
        case "requirements":
            folder.require("pure")
        case "platform":
            folder.edit('glibc = "2.41"', 'glibc = "2.40"')
        case "tool":
            folder.edit("linter==1.0", "linter==1.1")
        case "script":
            folder.repository.commit({"tools/script": b"#!/bin/sh\necho other\n"})
        case _:
            folder.edit("[components.deps]", "[components.dependencies]")
            # The role names the old one; that is another refusal, of another module.
            folder.edit('"app", "deps"', '"app", "dependencies"')
    error = refusal(builder.resolve, lock)
    assert error.error_id == "lock-stale"
    assert "capsule lock" in error.advice


def test_a_build_on_a_clean_machine_fetches_by_digest(builder, folder, tmp_path):
    lock = builder.lock()
    clean = Builder(folder, tmp_path / "clean")
    assert clean.fetch(lock) == len(
        [pin for item in (*lock.wheels.values(), *lock.runtime.values()) for pin in item.wheels]
    ) + len(lock.tools)
    offline = Builder(folder, tmp_path / "clean", has_network=False)
    assert offline.resolve(lock).components


def test_a_build_without_network_or_cache_fails_and_names_what_is_missing(
    builder, folder, tmp_path
):
    lock = builder.lock()
    offline = Builder(folder, tmp_path / "empty", has_network=False)
    with pytest.raises(Failed):
        offline.resolve(lock)


def test_an_index_that_serves_other_bytes_later_is_refused(builder, folder, tmp_path):
    lock = builder.lock()
    folder.put(WheelFile(name="pure", files={"pure.py": b"import backdoor\n"}))
    folder.files[folder.url] = b"\x7fELF other"
    clean = Builder(folder, tmp_path / "clean")
    assert refusal(clean.resolve, lock).error_id in {
        "wheel-digest-mismatch",
        "url-digest-mismatch",
    }


def test_a_conflict_between_wheels_is_found_when_locking(builder, folder):
    folder.put(WheelFile(name="clash", files={"pure.py": b"other\n"}))
    folder.require("pure", "native", "clash")
    assert refusal(builder.lock).error_id == "wheel-conflict"


def test_a_missing_dependency_is_found_when_locking(builder, folder):
    folder.require("native")
    assert refusal(builder.lock).error_id == "wheel-dependency-missing"


def test_a_dirty_work_tree_is_refused_when_building_and_not_when_locking(builder, folder):
    (folder.work / "app" / "main.py").write_text("print(2)\n")
    lock = builder.lock()
    assert refusal(builder.resolve, lock).error_id == "source-dirty"


def test_the_lock_names_no_place(builder):
    assert b"://" not in encode_lock(builder.lock())
