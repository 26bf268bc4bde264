"""`capsule lock` as a person and as a program uses it."""

import json

import click
import pytest
from click.testing import CliRunner

from capsule.builder.lockfile import load_lock
from capsule.cli.lock import command
from capsule_manifest.errors import Refused
from support.indexes import pip_environment
from support.releases import ReleaseFolder
from support.runtimes import runtime_index
from support.wheels import WheelFile


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
        return runner.invoke(command, ["--release", release, *arguments], standalone_mode=False)

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


def test_the_help_has_an_example(run):
    done = run("--help")
    assert "Example: capsule lock" in done.stdout


# --- what would change ----------------------------------------------------------------------------
def test_a_check_of_a_lock_that_is_right_says_so_and_writes_nothing(run, folder):
    run()
    lock = folder.work / "release.lock"
    before = (lock.read_bytes(), lock.stat().st_mtime_ns)
    done = run("--check")
    assert done.exception is None, done.output
    assert done.return_value == 0
    assert "up to date" in done.stdout
    assert (lock.read_bytes(), lock.stat().st_mtime_ns) == before


def test_a_check_names_each_pin_that_would_change_and_ends_with_a_code(run, folder):
    run()
    lock = folder.work / "release.lock"
    before = lock.read_bytes()
    folder.put(WheelFile(name="more", files={"more.py": b""}))
    folder.require("pure", "native", "more")
    done = run("--check", "--json")
    told = json.loads(done.stdout)
    assert done.return_value == 2
    assert told["changed"] is True
    added = [item for item in told["changes"] if item["where"].endswith(": more")]
    assert {item["where"] for item in added} == {
        "wheels.deps.bookworm: more", "wheels.deps.trixie: more",
    }  # fmt: skip
    assert all(item["old"] == "nothing" and "more-1.0" in item["new"] for item in added)
    assert lock.read_bytes() == before


def test_a_check_without_a_lock_says_all_that_would_be_pinned(run, folder):
    done = run("--check", "--json")
    assert done.return_value == 2
    assert len(json.loads(done.stdout)["changes"]) > 9
    assert not (folder.work / "release.lock").exists()


def test_one_component_is_chosen_again_and_all_others_keep_their_pins(run, folder):
    run()
    old = load_lock(folder.work / "release.lock")
    for name in ("linter", "pure"):
        tag = "py3-none-manylinux_2_28_x86_64" if name == "linter" else "py2.py3-none-any"
        script = {"linter-1.0.data/scripts/linter": b"\x7fELF newer"}
        files = script if name == "linter" else {"pure.py": b"# newer\n"}
        folder.put(WheelFile(name=name, tag=tag, files=files))
    assert run("--check").return_value == 0
    done = run("--upgrade", "linter")
    assert done.exception is None, done.output
    new = load_lock(folder.work / "release.lock")
    assert new.wheels["linter", "bookworm"] != old.wheels["linter", "bookworm"]
    assert {**new.wheels, ("linter", "bookworm"): 0, ("linter", "trixie"): 0} == {
        **old.wheels, ("linter", "bookworm"): 0, ("linter", "trixie"): 0,
    }  # fmt: skip
    assert (new.runtime, new.tools) == (old.runtime, old.tools)


def test_one_distribution_is_chosen_again_and_those_beside_it_keep_their_pins(run, folder):
    for name in ("pure", "beside"):
        folder.put(WheelFile(name=name, files={f"{name}.py": b""}))
        folder.put(WheelFile(name=name, tag="py311-none-any", files={f"{name}.py": b"# 311\n"}))
    folder.require("pure", "native", "beside")
    for wheel in folder.index.glob("*-1.0-py311-none-any.whl"):
        wheel.rename(wheel.with_suffix(".later"))
    run()
    for wheel in folder.index.glob("*.later"):
        wheel.rename(wheel.with_suffix(".whl"))
    done = run("--upgrade", "pure")
    assert done.exception is None, done.output
    files = {
        pin.name: pin.file
        for pin in load_lock(folder.work / "release.lock").wheels["deps", "bookworm"].wheels
    }
    assert files["pure"] == "pure-1.0-py311-none-any.whl"
    assert files["beside"] == "beside-1.0-py3-none-any.whl"


def test_an_upgrade_of_what_the_lock_does_not_know_is_a_wrong_use(run):
    run()
    done = run("--upgrade", "nobody")
    assert isinstance(done.exception, click.UsageError)
    assert "the lock pins nothing for nobody" in done.exception.message


def test_choices_that_contradict_each_other_are_a_wrong_use(run):
    for words in (
        ("--fetch", "--refresh"),
        ("--fetch", "--upgrade", "deps"),
        ("--refresh", "--upgrade", "deps"),
        ("--fetch", "--check"),
    ):
        assert isinstance(run(*words).exception, click.UsageError)
