"""`capsule diff`: what changed, and exactly what a host would be sent."""

import json
from dataclasses import replace

import pytest

from capsule.__main__ import main
from capsule.builder.comparison import compare_capsules
from capsule.builder.inspection import inspect_capsule
from capsule.builder.opened import open_capsule
from capsule.builder.single_file import write_single_file
from capsule_manifest.release import ComponentKind, External
from support.capsules import write_capsule
from support.forgery import Forgery

RUNTIME = {"VERSION": b"0.1.0\n"}
UNIT = "[Unit]\nDescription=one\n[Service]\nExecStart=/bin/true\n"
BIG = b"".join(number.to_bytes(4, "big") for number in range(2_000_000))


@pytest.fixture
def make(tmp_path):
    def call(counter, app, unit=UNIT, **more):
        components = {"app": app, "data": {"table": b"row\n" * 100}, **more}
        return write_capsule(
            tmp_path / f"{counter}.capsule",
            counter=counter,
            components=components,
            runtime=RUNTIME,
            unit=unit,
        ).folder

    return call


@pytest.fixture
def diff(capsys):
    def call(old, new, *arguments):
        assert main(["diff", str(old), str(new), *arguments]) == 0
        return capsys.readouterr().out

    return call


def compared(old, new):
    sides = []
    for path in (old, new):
        source = open_capsule(path)
        sides.append((source, inspect_capsule(source)))
    return compare_capsules(*sides)


def changes(old, new):
    return {change.component.name: change for change in compared(old, new).components}


def test_a_capsule_does_not_differ_from_its_other_form(make, diff):
    folder = make(1, {"main.py": b"1"})
    out = diff(folder, write_single_file(folder))
    assert "the same capsule: sha256:" in out
    assert "Components" not in out


def test_the_header_shows_what_changed_and_nothing_else(make):
    found = compared(make(1, {"main.py": b"1"}), make(2, {"main.py": b"2"}))
    assert [(item.name, item.before, item.after) for item in found.header] == [
        ("counter", "1", "2")
    ]


def test_files_are_told_apart_as_added_removed_and_changed(make):
    old = make(1, {"same": b"s", "changed": b"1", "removed": b"r"})
    new = make(2, {"same": b"s", "changed": b"2", "added": b"a"})
    found = changes(old, new)
    app = found["app"]
    assert app.state == "changed"
    assert [entry.path for entry in app.files.added] == ["added"]
    assert [entry.path for entry in app.files.removed] == ["removed"]
    assert [after.path for _, after in app.files.changed] == ["changed"]
    assert {name: item.state for name, item in found.items()} == {
        "app": "changed", "data": "same", "runtime-bookworm": "same", "web": "same",
    }  # fmt: skip


def test_a_component_that_came_or_went_shows_all_its_files(make):
    old = make(1, {"a": b"1"}, gone={"x": b"x"})
    new = make(2, {"a": b"1"}, came={"y": b"y"})
    found = changes(old, new)
    assert (found["gone"].state, found["came"].state) == ("removed", "added")
    assert [entry.path for entry in found["gone"].files.removed] == ["x"]
    assert [entry.path for entry in found["came"].files.added] == ["y"]


def test_a_unit_is_compared_by_line_with_its_budget(make, diff):
    old, new = make(1, {"a": b"1"}), make(2, {"a": b"1"}, UNIT.replace("one", "two"))
    forgery = Forgery(new)
    components = [
        replace(item, units=tuple(replace(unit, soak_ms=900) for unit in item.units))
        for item in forgery.release.components
    ]
    forgery.release = replace(forgery.release, components=tuple(components))
    forgery.sign()
    out = diff(old, new)
    assert "    -Description=one\n    +Description=two\n" in out
    assert "soak 0.1 s, probe none -> stop 1 s, start 1 s, soak 0.9 s, probe none" in out


def wheels(folder, *names):
    forgery = Forgery(folder)
    external = tuple(
        External(type="wheel", name=name, digest="sha256:" + digest * 64) for name, digest in names
    )
    components = [
        replace(item, kind=ComponentKind.WHEELS, external=external) if item.name == "app" else item
        for item in forgery.release.components
    ]
    forgery.release = replace(forgery.release, components=tuple(components))
    forgery.sign()
    return folder


def test_wheels_are_compared_by_name_and_version(make):
    old = wheels(
        make(1, {"a": b"1"}), ("b-1.0-py3-none-any.whl", "0"), ("c-1.0-py3-none-any.whl", "1"),
        ("d-1.0-py3-none-any.whl", "2"), ("same-1-py3-none-any.whl", "3"),
    )  # fmt: skip
    new = wheels(
        make(2, {"a": b"1"}), ("b-2.0-py3-none-any.whl", "4"), ("c-1.0-py3-none-any.whl", "5"),
        ("e-1.0-py3-none-any.whl", "6"), ("same-1-py3-none-any.whl", "3"),
    )  # fmt: skip
    found = [(item.name, item.before, item.after) for item in changes(old, new)["app"].externals]
    assert found == [
        ("wheel b", "1.0", "2.0"),
        # One version, other bytes: the digests tell them apart.
        ("wheel c", f"1.0 py3-none-any sha256:{'1' * 64}", f"1.0 py3-none-any sha256:{'5' * 64}"),
        ("wheel d", "1.0", ""),
        ("wheel e", "", "1.0"),
    ]


def test_a_commit_alone_does_not_make_a_component_changed(make):
    old, new = make(1, {"a": b"1"}), make(2, {"a": b"1"})
    for folder, digit in ((old, "1"), (new, "2")):
        forgery = Forgery(folder)
        commit = External(type="git-commit", name="app", digest="sha1:" + digit * 40)
        components = [replace(item, external=(commit,)) for item in forgery.release.components]
        forgery.release = replace(forgery.release, components=tuple(components))
        forgery.sign()
    assert {item.state for item in changes(old, new).values()} == {"same"}


def test_what_is_sent_are_whole_frames_that_hold_a_lacking_object(make):
    old = make(1, {"big": BIG, "small": b"1" * 100})
    new = make(2, {"big": BIG, "small": b"2" * 100})
    packing = inspect_capsule(open_capsule(new))
    frames = packing.packing.contents[packing.release.component("app").tree].packs[0].frames
    assert len(frames) > 1, "the change must leave frames that are not sent"
    (need,) = compared(old, new).needs
    assert (need.role, need.platform) == ("web", "bookworm")
    assert need.frames == 1
    assert need.stored_bytes == frames[-1].stored_bytes
    assert need.content_bytes == 100


def test_a_host_that_has_everything_is_sent_nothing(make):
    old, new = make(1, {"a": b"content"}), make(2, {"moved": b"content"})
    (need,) = compared(old, new).needs
    assert (need.frames, need.stored_bytes, need.content_bytes) == (0, 0, 0)


def test_the_json_names_every_change(make, diff):
    old, new = make(1, {"a": b"1"}), make(2, {"a": b"2"})
    answer = json.loads(diff(old, new, "--json"))
    assert (answer["schema"], answer["verified"], answer["same"]) == (1, False, False)
    assert [item["name"] for item in answer["components"] if item["state"] == "changed"] == ["app"]
    assert answer["components"][0]["changed"] == ["a"]
    assert answer["needs"][0]["content_bytes"] == 1


def test_a_damaged_unit_is_refused_and_not_shown(make, capsys):
    old, new = make(1, {"a": b"1"}), make(2, {"a": b"1"}, UNIT.replace("one", "two"))
    release = inspect_capsule(open_capsule(new)).release
    packing = inspect_capsule(open_capsule(new)).packing
    (pack,) = packing.contents[release.component("web").tree].packs
    path = new / "packs" / f"{pack.id.hex()}.pack"
    raw = bytearray(path.read_bytes())
    raw[10] ^= 1
    path.write_bytes(raw)
    assert main(["diff", str(old), str(new)]) == 10
    assert "frame-digest-mismatch" in capsys.readouterr().err
