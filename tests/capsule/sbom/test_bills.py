"""Both bills of materials say what the capsule holds, in their formats' own terms."""

import json

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from spdx_tools.spdx.parser.jsonlikedict.json_like_dict_parser import JsonLikeDictParser
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

from capsule.builder.assemble import assemble
from capsule.sbom.cyclonedx import encode_cyclonedx
from capsule.sbom.parts import bill_of
from capsule.sbom.provenance import encode_provenance
from capsule.sbom.spdx import encode_spdx
from support.indexes import cache_of
from support.locked_release import LockedRelease, silent
from support.releases import ReleaseFolder
from support.runtimes import runtime_index
from support.wheels import WheelFile


@pytest.fixture
def draft(tmp_path, monkeypatch):
    folder = ReleaseFolder(tmp_path / "release")
    runtime_index(folder.index, monkeypatch)
    folder.put(WheelFile(name="pure", files={"pure.py": b""}, metadata="License-Expression: mit\n"))
    folder.require("pure", "native")
    made = LockedRelease(folder, cache_of(tmp_path / "cache", folder.index, folder.files))
    return made.draft(made.lock())


@pytest.fixture
def bill(draft):
    return bill_of(draft.capsule, draft.release, draft.listings)


def externals(release):
    """List what the manifest names, independently of the bill."""
    return sorted(item.name for component in release.components for item in component.external)


def test_every_wheel_commit_and_archive_of_the_manifest_is_a_part(draft, bill):
    assert sorted(p.name for p in bill.parts if p.kind == "component") == sorted(
        component.name for component in draft.release.components
    )
    listed = sorted(p.ref.partition("/")[2] for p in bill.parts if p.kind != "component")
    assert listed == externals(draft.release)


def test_a_licence_is_what_the_wheel_says_in_the_spelling_of_spdx(bill):
    licences = {part.name: part.licence.expression for part in bill.parts if part.kind == "wheel"}
    assert (licences["pure"], licences["native"]) == ("MIT", "")


def test_the_cyclonedx_document_is_valid_under_the_official_schema(bill):
    raw = encode_cyclonedx(bill)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(raw.decode()) is None
    document = json.loads(raw)
    assert len(document["components"]) == len(bill.parts)
    urls = {item["purl"] for item in document["components"] if "purl" in item}
    assert "pkg:pypi/pure@1.0" in urls


def test_a_cyclonedx_document_that_the_schema_forbids_is_noticed(bill):
    document = json.loads(encode_cyclonedx(bill))
    document["components"][0]["type"] = "thing"
    raw = json.dumps(document)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(raw) is not None


def test_the_spdx_document_obeys_the_rules_of_the_specification(bill):
    document = json.loads(encode_spdx(bill))
    parsed = JsonLikeDictParser().parse(document)
    assert validate_full_spdx_document(parsed, "SPDX-2.3") == []
    # One more package than parts: the capsule itself.
    assert len(document["packages"]) == len(bill.parts) + 1


def test_the_provenance_names_the_commit_and_each_pin(draft, bill):
    statement = json.loads(encode_provenance(bill, draft.release))
    assert statement["subject"][0]["digest"]["sha256"] == draft.capsule.removeprefix("sha256:")
    dependencies = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert dependencies[0]["digest"]["gitCommit"] == draft.release.source.commit
    assert len(dependencies) == 1 + len(externals(draft.release))


def test_a_build_writes_them_beside_the_content_and_they_are_the_same_twice(draft, tmp_path):
    folders = [assemble(draft, tmp_path / name, report=silent).folder for name in ("a", "b")]
    for name in ("sbom/cyclonedx.json", "sbom/spdx.json", "provenance/slsa.json"):
        first, second = (folder / name for folder in folders)
        assert first.read_bytes() == second.read_bytes()
