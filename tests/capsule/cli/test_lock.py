"""`capsule lock` as a person and as a program uses it."""

import json

import pytest
from click.testing import CliRunner

from capsule.builder.lockfile import load_lock
from capsule.cli.lock import command
from capsule_manifest.errors import Refused
from support.indexes import pip_environment
from support.releases import ReleaseFolder
from support.runtimes import runtime_index


@pytest.fixture
def folder(tmp_path, monkeypatch):
    made = ReleaseFolder(tmp_path / "release")
    runtime_index(made.index, monkeypatch)
    # A file from an address is another module's test; here pip is the real one.
    text = (made.work / "release.toml").read_text()
    start = text.index("[components.fetched]")
    made.edit(text[start : text.index("[components.script]")], "")
    made.edit('"fetched", ', "")
    return made


@pytest.fixture
def run(folder, tmp_path):
    environment = pip_environment(folder.index, tmp_path)
    environment["XDG_CACHE_HOME"] = str(tmp_path / "cache")

    def call(*arguments):
        release = str(folder.work / "release.toml")
        runner = CliRunner(env=environment)
        return runner.invoke(command, ["--release", release, *arguments])

    return call


def test_a_lock_is_written_and_a_second_run_says_that_nothing_changed(run, folder):
    first = run("--json")
    assert first.exception is None, first.output
    assert json.loads(first.stdout) == {
        "schema": 1,
        "lock": str(folder.work / "release.lock"),
        "pins": 9,
        "changed": True,
    }
    assert "lock: deps for bookworm" in first.stderr
    lock = load_lock(folder.work / "release.lock")
    assert {pin.name for pin in lock.wheels["deps", "trixie"].wheels} == {"native", "pure"}
    before = (folder.work / "release.lock").read_bytes()
    second = run()
    assert "9 pins, unchanged" in second.stdout
    assert (folder.work / "release.lock").read_bytes() == before


def test_fetch_fills_an_empty_cache_and_writes_nothing(run, folder, tmp_path):
    run()
    before = (folder.work / "release.lock").stat()
    for path in (tmp_path / "cache").rglob("*.whl"):
        path.unlink()
    done = run("--fetch", "--json")
    assert json.loads(done.stdout)["changed"] is False
    assert len(list((tmp_path / "cache").rglob("*.whl"))) == 5
    assert (folder.work / "release.lock").stat().st_mtime_ns == before.st_mtime_ns


def test_fetch_without_a_lock_is_refused(run):
    done = run("--fetch")
    assert isinstance(done.exception, Refused)
    assert done.exception.error_id == "lock-missing"


def test_contradicting_options_are_a_usage_error(run):
    done = run("--fetch", "--refresh")
    assert done.exit_code == 2
    assert "--refresh" in done.stderr


def test_the_help_has_an_example(run):
    done = run("--help")
    assert "Example: capsule lock" in done.stdout
