"""pip as the client: the real one, with a folder for an index and no network."""

import hashlib
import sys

import pytest

from capsule.builder.pip_fetch import PipFetcher
from capsule.builder.wheels import Wanted
from capsule_manifest.errors import CapsuleError, Failed
from support.indexes import pip_environment
from support.wheels import WheelFile, target


@pytest.fixture
def index(tmp_path):
    folder = tmp_path / "index"
    folder.mkdir()
    return folder


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "fetched"
    place.mkdir()
    return place


def wanted(*paths, name="demo"):
    digests = frozenset(hashlib.sha256(path.read_bytes()).hexdigest() for path in paths)
    return Wanted(name=name, version="1.0", sha256=digests, where="requirements.lock:1")


def fetch(index, folder, items, tmp_path, *, environment=None, **changes):
    settings = pip_environment(index, tmp_path) | (environment or {})
    PipFetcher(settings).fetch(items, target(**changes), folder)
    return sorted(path.name for path in folder.glob("*.whl"))


def refusal(*arguments, **options):
    with pytest.raises(CapsuleError) as caught:
        fetch(*arguments, **options)
    return caught.value


def test_the_newest_matching_wheel_for_the_target_is_fetched(index, folder, tmp_path):
    made = [
        WheelFile(tag=tag).write(index)
        for tag in (
            "py3-none-any",
            "cp313-cp313-manylinux_2_17_aarch64",
            "cp313-cp313-manylinux_2_28_aarch64",
            "cp313-cp313-manylinux_2_40_aarch64",
            "cp313-cp313-manylinux_2_28_x86_64",
        )
    ]
    changes = {"machine": "aarch64", "python": "3.13", "glibc": "2.36"}
    assert fetch(index, folder, [wanted(*made)], tmp_path, **changes) == [
        "demo-1.0-cp313-cp313-manylinux_2_28_aarch64.whl"
    ]


def test_only_a_wheel_with_a_locked_digest_is_fetched(index, folder, tmp_path):
    pure = WheelFile(tag="py3-none-any").write(index)
    WheelFile(tag="cp311-cp311-manylinux_2_28_x86_64").write(index)
    error = refusal(index, folder, [wanted(pure)], tmp_path)
    # pip can't know the digests of a folder beforehand, and takes the best tag.
    assert error.error_id == "wheel-digest-mismatch"
    assert "example" not in str(error)


def test_a_wheelhouse_that_has_only_an_sdist_is_refused_by_name(index, folder, tmp_path):
    sdist = index / "demo-1.0.tar.gz"
    sdist.write_bytes(b"no archive: it must not even be opened")
    error = refusal(index, folder, [wanted(sdist)], tmp_path)
    assert (error.error_id, error.got) == ("wheel-is-sdist", "demo-1.0.tar.gz")


def test_a_wheel_newer_than_the_platforms_glibc_is_refused_with_both(index, folder, tmp_path):
    wheel = WheelFile(tag="cp311-cp311-manylinux_2_40_x86_64").write(index)
    error = refusal(index, folder, [wanted(wheel)], tmp_path)
    assert error.error_id == "wheel-unfit"
    assert "2.36" in error.expected
    assert "2.40" in error.got


def test_a_wheel_for_another_platform_is_refused(index, folder, tmp_path):
    wheel = WheelFile(tag="cp311-cp311-win_amd64").write(index)
    error = refusal(index, folder, [wanted(wheel)], tmp_path)
    assert error.error_id == "wheel-unfit"
    assert "win_amd64" in error.got


def test_a_distribution_that_is_nowhere_is_refused_by_name(index, folder, tmp_path):
    item = Wanted(name="demo", version="1.0", sha256=frozenset({"a" * 64}), where="x")
    error = refusal(index, folder, [item], tmp_path)
    assert error.error_id == "wheel-not-found"
    assert "demo 1.0" in error.what


def test_the_first_of_many_that_is_missing_is_named(index, folder, tmp_path):
    there = wanted(WheelFile().write(index))
    missing = Wanted(name="other-one", version="1.0", sha256=frozenset({"a" * 64}), where="x")
    error = refusal(index, folder, [there, missing], tmp_path)
    assert "other-one 1.0" in error.what


def test_dependencies_are_not_followed_and_no_code_runs(index, folder, tmp_path):
    wheel = WheelFile(metadata="Requires-Dist: missing\nRequires-Python: >=3.99\n").write(index)
    assert fetch(index, folder, [wanted(wheel)], tmp_path) == [wheel.name]


def test_a_tools_wheel_without_a_digest_is_fetched_beside_locked_ones(index, folder, tmp_path):
    locked = wanted(WheelFile().write(index))
    WheelFile(name="tool", files={"tool.py": b""}).write(index)
    tool = Wanted(name="tool", version="1.0", sha256=frozenset(), where="release.toml")
    assert fetch(index, folder, [locked, tool], tmp_path) == [
        "demo-1.0-py3-none-any.whl",
        "tool-1.0-py3-none-any.whl",
    ]


def test_a_hostile_environment_changes_nothing(index, folder, tmp_path):
    wheel = WheelFile().write(index)
    elsewhere = tmp_path / "elsewhere"
    environment = {
        "PIP_TARGET": str(elsewhere),
        "PIP_DEST": str(elsewhere),
        "PIP_REQUIREMENT": "/nowhere/requirements.txt",
        "PIP_CONSTRAINT": "/nowhere/constraints.txt",
        "PIP_NO_BINARY": ":all:",
        "PIP_PRE": "1",
        "PIP_PYTHON": "/nowhere/python",
        "PIP_REQUIRE_VIRTUALENV": "1",
        "PIP_LOG": str(elsewhere / "log"),
        "PYTHONPATH": "/nowhere",
        "PYTHONHOME": "/nowhere",
        "PYTHONSTARTUP": "/nowhere",
        "LD_PRELOAD": "/nowhere.so",
    }
    assert fetch(index, folder, [wanted(wheel)], tmp_path, environment=environment) == [wheel.name]
    assert not elsewhere.exists()


def test_an_address_in_pips_words_is_not_repeated(folder, tmp_path):
    environment = {
        "PIP_NO_INDEX": "",
        "PIP_FIND_LINKS": "",
        "PIP_INDEX_URL": "http://user:secret@127.0.0.1:9/simple",
        "PIP_RETRIES": "0",
    }
    item = Wanted(name="demo", version="1.0", sha256=frozenset({"a" * 64}), where="x")
    error = refusal(tmp_path, folder, [item], tmp_path, environment=environment)
    assert "secret" not in str(error)
    assert "127.0.0.1" not in str(error)


def test_a_python_without_pip_is_said(folder, tmp_path):
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\necho "{sys.executable}: No module named pip" >&2\nexit 1\n')
    program.chmod(0o755)
    fetcher = PipFetcher(pip_environment(tmp_path, tmp_path), python=str(program))
    item = Wanted(name="demo", version="1.0", sha256=frozenset({"a" * 64}), where="x")
    with pytest.raises(Failed) as caught:
        fetcher.fetch([item], target(), folder)
    assert "No module named pip" in caught.value.got
