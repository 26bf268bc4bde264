"""`capsule init`: files that are right as they stand, and never over somebody's own."""

import json

import pytest

from capsule.__main__ import main
from capsule.builder.assemble import draft_release
from capsule.builder.config import load_release
from capsule.builder.git_source import open_work_tree, source_input
from capsule.builder.resolve import Resolved
from capsule.builder.starter import IGNORED, schema_files, starter_files
from capsule.inventory import load_fleet
from capsule_manifest.release import ComponentKind
from support.repositories import Repository


def test_the_first_files_are_a_right_release_and_inventory(tmp_path):
    assert main(["init", str(tmp_path), "--product", "acme/web-shop"]) == 0
    release = load_release(tmp_path / "release.toml")
    fleet = load_fleet(tmp_path / "fleet.toml")
    assert release.product == fleet.product == "acme/web-shop"
    assert {node.role for node in fleet.nodes.values()} <= set(release.roles)
    assert {node.platform for node in fleet.nodes.values()} <= set(release.platforms)


def test_the_first_files_build_as_they_stand(tmp_path):
    repository = Repository(tmp_path / "work")
    assert main(["init", str(repository.folder), "--product", "acme/web"]) == 0
    repository.commit()
    release = load_release(repository.folder / "release.toml")
    (code,) = [item for item in release.components if item.kind is ComponentKind.SOURCE]
    component, commit = source_input(code.name, repository.folder, include=code.include)
    draft = draft_release(
        release, Resolved(source=commit, components=(component,)), report=lambda _: None
    )
    assert [unit.name for item in draft.release.components for unit in item.units] == [
        "web.service"
    ]


def test_what_lies_beside_a_release_does_not_make_it_dirty(tmp_path):
    repository = Repository(tmp_path / "work")
    assert main(["init", str(repository.folder)]) == 0
    repository.commit()
    repository.write({"dist/x": b"", "keys/a.key": b"", "hosts/n1/x": b"", "trust.json": b""})
    assert open_work_tree(repository.folder).source.commit == repository.git("rev-parse", "HEAD")


@pytest.mark.parametrize("name", sorted(starter_files("a/b", machine="x86_64", python="3.11")))
def test_an_existing_file_is_left_alone_and_nothing_else_is_written(tmp_path, capsys, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b"mine")
    assert main(["init", str(tmp_path), "--product", "a/b"]) == 2
    assert (
        f"error: file-exists: a release begins here already, got {name} " in capsys.readouterr().err
    )
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / name]
    assert (tmp_path / name).read_bytes() == b"mine"


def test_an_existing_gitignore_is_left_alone_and_the_lines_are_told(tmp_path, capsys):
    (tmp_path / ".gitignore").write_text("mine\n")
    assert main(["init", str(tmp_path)]) == 0
    assert " ".join(IGNORED) in capsys.readouterr().err
    assert (tmp_path / ".gitignore").read_text() == "mine\n"


def test_the_product_is_named_after_the_folder_unless_given(tmp_path):
    folder = tmp_path / "My App_2!"
    assert main(["init", str(folder)]) == 0
    assert load_release(folder / "release.toml").product == "example/my-app-2"


@pytest.mark.parametrize("product", ["web", "Acme/web", "acme/", "a/b/c", "acme/we b"])
def test_a_product_that_is_no_vendor_and_name_is_a_wrong_use(tmp_path, capsys, product):
    assert main(["init", str(tmp_path / "new"), "--product", product]) == 2
    assert "VENDOR/NAME" in capsys.readouterr().err
    assert list(tmp_path.rglob("*.toml")) == []


def test_schemas_are_written_again_on_demand_and_nothing_else(tmp_path, capsys):
    assert main(["init", str(tmp_path)]) == 0
    (tmp_path / "release.toml").write_text("mine\n")
    (tmp_path / "schemas/release.schema.json").write_text("old\n")
    capsys.readouterr()
    assert main(["init", str(tmp_path), "--schemas", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == sorted(schema_files())
    assert (tmp_path / "release.toml").read_text() == "mine\n"
    schema = json.loads((tmp_path / "schemas/release.schema.json").read_bytes())
    assert "properties" in schema
