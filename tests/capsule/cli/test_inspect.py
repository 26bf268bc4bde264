"""`capsule inspect`: everything that a capsule says of itself, and that nothing was verified."""

import json
from dataclasses import replace

import pytest

from capsule.__main__ import main
from capsule.builder.single_file import write_single_file
from capsule_manifest.canonical import encode
from capsule_manifest.release import External
from support import documents
from support.capsules import write_capsule
from support.forgery import Forgery, raw_entry, raw_file, record


@pytest.fixture
def made(tmp_path):
    return write_capsule(
        tmp_path / "web.capsule",
        components={"app": {"main.py": b"print(1)\n", "bin/tool": b"tool" * 1000}},
        runtime={"VERSION": b"0.1.0\n"},
    )


@pytest.fixture
def inspect(capsys):
    def call(*arguments):
        code = main(["inspect", *map(str, arguments)])
        return code, capsys.readouterr()

    return call


def test_both_forms_show_the_same_apart_from_their_size_on_disk(made, inspect):
    archive = write_single_file(made.folder)
    code, shown = inspect(made.folder)
    assert code == 0
    assert inspect(archive)[1].out == shown.out


def test_it_says_first_that_nothing_is_verified(made, inspect):
    first = inspect(made.folder)[1].out.splitlines()[0]
    assert first.startswith("acme/hello 1.2.3  (not verified: ")
    assert json.loads(inspect(made.folder, "--json")[1].out)["verified"] is False


def test_it_shows_identity_components_units_with_their_budget_and_signatures(made, inspect):
    out = inspect(made.folder)[1].out
    short = documents.RELEASE_KEY.public.short
    for text in (
        made.capsule,
        "commit " + "a" * 40,
        "2023-11-14 22:13:20 UTC",
        "0.1.0 or newer: first format",
        f"{made.trees['app'].hex()[:8]}",
        "stop 1 + start 1 + soak 0.1 + reserve 10 = 12.1 s of 120 s (d1)",
        f"release-{short}.sigstore.json",
    ):
        assert text in out
    rows = [line.split() for line in out.splitlines()]
    assert rows[_row(rows, "app", "source")][:6] == ["app", "source", "all", "3", "3.9", "KiB"]
    assert ["release", short] == rows[_row(rows, "release", short)][:2]


def _row(rows, *start):
    return next(number for number, row in enumerate(rows) if row[: len(start)] == list(start))


def test_the_json_holds_the_whole_manifest_under_its_own_names(made, inspect):
    answer = json.loads(inspect(made.folder, "--json")[1].out)
    assert answer["schema"] == 1
    assert answer["capsule"] == made.capsule
    assert encode(answer["release"]) == (made.folder / "capsule.json").read_bytes()
    assert [item["component"] for item in answer["packed"]] == ["app", "runtime-bookworm", "web"]
    assert all(item["packed_bytes"] > 0 and item["frames"] == 1 for item in answer["packed"])


def test_the_files_of_a_component_are_listed_on_demand(made, inspect):
    out = inspect(made.folder, "--files", "app")[1].out
    assert [line.split() for line in out.splitlines()[1:]] == [
        ["0755", "directory", "bin"],
        ["0644", "4,000", out.split("4,000  ")[1][:8], "bin/tool"],
        ["0644", "9", out.split("    9  ")[1][:8], "main.py"],
    ]
    answer = json.loads(inspect(made.folder, "--files", "app", "--json")[1].out)
    assert [item["path"] for item in answer["components"][0]["entries"]] == [
        "bin", "bin/tool", "main.py",
    ]  # fmt: skip


def test_an_unknown_component_is_a_wrong_use_that_names_the_known_ones(made, inspect):
    code, shown = inspect(made.folder, "--files", "nope")
    assert code == 2
    assert "there are app, runtime-bookworm, web" in shown.err


def test_a_listing_that_the_manifest_does_not_name_is_refused(made, inspect):
    path = made.folder / "trees" / made.trees["app"].hex()
    path.write_bytes((made.folder / "trees" / made.trees["web"].hex()).read_bytes())
    code, shown = inspect(made.folder, "--files", "app")
    assert code == 10
    assert "tree-digest-mismatch" in shown.err


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"{", "json-malformed"),
        (b"{}", "document-invalid"),
        (b"\xff" * 100, "json-malformed"),
    ],
)
def test_a_signature_that_cannot_be_read_is_shown_with_its_problem(made, inspect, raw, problem):
    (made.folder / "signatures" / "release-01234567.sigstore.json").write_bytes(raw)
    code, shown = inspect(made.folder)
    assert code == 0
    assert problem in shown.out
    assert f"release-{documents.RELEASE_KEY.public.short}.sigstore.json" in shown.out


def test_a_signature_of_another_capsule_is_shown_as_that(made, inspect, tmp_path):
    other = write_capsule(tmp_path / "other.capsule", counter=9)
    name = f"release-{documents.RELEASE_KEY.public.short}.sigstore.json"
    (made.folder / "signatures" / name).write_bytes(
        (other.folder / "signatures" / name).read_bytes()
    )
    assert f"is about another release: {other.capsule}" in inspect(made.folder)[1].out


def test_a_packing_of_another_capsule_is_refused(made, inspect, tmp_path):
    other = write_capsule(tmp_path / "other.capsule", counter=9)
    (made.folder / "packing.json").write_bytes((other.folder / "packing.json").read_bytes())
    code, shown = inspect(made.folder)
    assert code == 10
    assert "packing-inconsistent" in shown.err


def test_a_name_inside_cannot_move_the_cursor(made, inspect):
    forgery = Forgery(made.folder)
    external = External(type="wheel", name="a\x1b[2J\u202eb", digest="sha256:" + "0" * 64)
    components = [replace(item, external=(external,)) for item in forgery.release.components]
    forgery.release = replace(forgery.release, components=tuple(components))
    forgery.sign()
    code, shown = inspect(made.folder)
    assert code == 0
    assert r"a\x1b[2J\u202eb" in shown.out
    assert "\x1b" not in shown.out
    assert "\u202e" not in shown.out


def test_a_link_is_shown_with_where_it_leads(made, inspect):
    forgery = Forgery(made.folder)
    forgery.replace_tree("app", record(raw_file(b"a"), raw_entry(3, 0o777, b"b", b"a")))
    forgery.sign()
    assert inspect(made.folder, "--files", "app")[1].out.splitlines()[-1].endswith("b -> a")
