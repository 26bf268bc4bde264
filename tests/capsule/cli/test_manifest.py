"""`capsule manifest`: every input with its digest; what has none can't be released."""

import json
import shutil

import pytest

from capsule.__main__ import main
from capsule.builder.lockfile import encode_lock
from capsule.schemas import SCHEMAS
from support.capsules import write_capsule
from support.indexes import cache_of, pip_environment
from support.locked_release import LockedRelease
from support.releases import ReleaseFolder
from support.runtimes import runtime_index


@pytest.fixture
def folder(tmp_path, monkeypatch):
    made = ReleaseFolder(tmp_path / "release")
    runtime_index(made.index, monkeypatch)
    lock = LockedRelease(made, cache_of(tmp_path / "cache", made.index, made.files)).lock()
    (made.work / "release.lock").write_bytes(encode_lock(lock))
    for name, value in pip_environment(made.index, tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home-cache"))
    monkeypatch.chdir(made.work)
    return made


def told(capsys, *words):
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_every_input_of_a_release_is_shown_with_its_digest(folder, capsys):
    found = told(capsys, "manifest", "show")
    assert found["complete"] is True
    assert found["locked_at"] == "2026-01-02T00:00:00Z"
    pins = {(pin["where"], pin["kind"]): pin for pin in found["pins"]}
    commit = folder.repository.git("rev-parse", "HEAD")
    tree = folder.repository.git("rev-parse", "HEAD^{tree}")
    assert pins["source", "git-commit"]["digest"] == f"sha1:{commit}"
    assert pins["source", "git-tree"]["digest"] == f"sha1:{tree}"
    assert {kind for _, kind in pins} == {"git-commit", "git-tree", "wheel", "url", "path"}
    assert all(pin["digest"] for pin in found["pins"])


def test_without_a_lock_everything_that_it_would_pin_is_open(folder, capsys):
    (folder.work / "release.lock").unlink()
    found = told(capsys, "manifest", "show")
    assert found["complete"] is False
    opened = [pin for pin in found["pins"] if pin["digest"] is None]
    assert {pin["kind"] for pin in opened} == {"wheel", "url", "path"}
    assert {pin["why"] for pin in opened} == {"the lock has no pin"}
    assert main(["manifest", "show"]) == 0
    assert "OPEN: the lock has no pin" in capsys.readouterr().out


def test_a_changed_work_tree_leaves_the_source_open(folder, capsys):
    (folder.work / "app/main.py").write_bytes(b"print(2)\n")
    found = told(capsys, "manifest", "show")
    opened = {pin["where"] for pin in found["pins"] if pin["digest"] is None}
    assert opened == {"source", "app for all platforms"}
    assert main(["manifest", "verify"]) == 2
    assert "manifest-incomplete" in capsys.readouterr().err


def test_an_open_pin_is_refused_by_verify_and_by_build_with_one_id(folder, capsys):
    """All that is open is named at once, before anything is fetched or built."""
    folder.edit(
        "[roles.web]\n",
        '[components.more]\nkind = "helper"\nwheel = "linter==1.0"\n'
        '[components.extra]\nkind = "helper"\npath = "tools/script"\n[roles.web]\n',
    )
    for words in (["manifest", "verify"], ["build", "--output", "../dist"]):
        assert main(words) == 2
        error = capsys.readouterr().err
        assert "error: manifest-incomplete: the release is not complete" in error
        assert "more for bookworm: linter 1.0 (the lock has no pin)" in error
        assert "more for trixie: linter 1.0" in error
        assert "extra for all platforms: extra" in error
        assert "capsule manifest show" in error, "what to do next"
    assert not (folder.work / "../dist").exists()


@pytest.mark.usefixtures("folder")
def test_a_complete_release_is_verified(capsys):
    found = told(capsys, "manifest", "verify", "release.toml")
    assert found["complete"] is True
    assert found["pins"] > 9


def test_a_stale_pin_is_open_and_says_why(folder, capsys):
    folder.require("pure")
    found = told(capsys, "manifest", "show")
    why = {pin["why"] for pin in found["pins"] if pin["digest"] is None}
    assert why == {"the lock is stale: the requirements changed"}


def test_the_inputs_that_differ_between_two_releases_are_listed(folder, tmp_path, capsys):
    other = tmp_path / "other"
    shutil.copytree(folder.work, other)
    (folder.work / "tools/script").write_bytes(b"#!/bin/sh\nexit 1\n")
    folder.repository.commit()
    found = told(capsys, "manifest", "diff", str(other / "release.toml"), "release.toml")
    assert {change["kind"] for change in found["changes"]} == {"git-commit", "git-tree"}
    assert all(change["old"] != change["new"] for change in found["changes"])
    assert told(capsys, "manifest", "diff", "release.toml", "release.toml")["changes"] == []


def test_a_capsule_is_shown_compared_and_verified(tmp_path, capsys):
    made = write_capsule(tmp_path / "one", counter=1, components={"code": {"a": b"a"}})
    other = write_capsule(tmp_path / "two", counter=2, components={"code": {"a": b"b"}})
    shown = told(capsys, "manifest", "show", str(made.folder))
    assert shown["complete"] is True
    assert shown["capsule"].startswith("sha256:")
    assert any(pin["digest"].startswith("blake3:") for pin in shown["pins"])
    changes = told(capsys, "manifest", "diff", str(made.folder), str(other.folder))["changes"]
    assert "tree" in {change["kind"] for change in changes}
    assert told(capsys, "manifest", "verify", str(made.folder))["complete"] is True


def test_documents_that_contradict_the_manifest_are_refused(tmp_path, capsys):
    made = write_capsule(tmp_path / "one", counter=1, components={"code": {"a": b"a"}})
    other = write_capsule(tmp_path / "two", counter=2, components={"code": {"a": b"b"}})
    packing = made.folder / "packing.json"
    whole = packing.read_bytes()
    packing.write_bytes((other.folder / "packing.json").read_bytes())
    assert main(["manifest", "verify", str(made.folder)]) == 10
    assert "packing-inconsistent" in capsys.readouterr().err
    packing.write_bytes(whole)
    [tree, *_] = sorted((made.folder / "trees").iterdir())
    tree.unlink()
    assert main(["manifest", "verify", str(made.folder)]) != 0
    assert "capsule-incomplete" in capsys.readouterr().err


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_printed_for_every_document(name, capsys):
    assert main(["manifest", "schema", name]) == 0
    assert json.loads(capsys.readouterr().out)["title"]


def test_the_schema_of_the_release_manifest_is_the_one_that_is_meant(capsys):
    assert main(["manifest", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["properties"]["schema"] == {"const": "capsule/1"}


def test_all_schemas_are_written_into_a_folder(tmp_path, capsys):
    found = told(capsys, "manifest", "schema", "--output", str(tmp_path / "new" / "schemas"))
    names = {path.name for path in (tmp_path / "new" / "schemas").iterdir()}
    assert names == {f"{name}.schema.json" for name in SCHEMAS}
    assert len(found["schemas"]) == len(names)
