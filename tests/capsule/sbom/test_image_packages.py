"""The packages of an image are those that its own package manager would name."""

import json
import shutil
import subprocess
from dataclasses import replace

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from spdx_tools.spdx.parser.jsonlikedict.json_like_dict_parser import JsonLikeDictParser
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

from capsule.builder.assemble import _component
from capsule.builder.images.image import image_entries, obtain_image
from capsule.builder.images.layout import FolderLayout
from capsule.builder.model import ComponentInput
from capsule.builder.packer import list_component
from capsule.sbom.cyclonedx import encode_cyclonedx
from capsule.sbom.image_packages import image_packages
from capsule.sbom.parts import PartKind, bill_of
from capsule.sbom.spdx import encode_spdx
from support import documents
from support.images import ImageFile, layer_of, write_layout
from support.indexes import cache_of

STATUS = b"""\
Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u9
Description: a library
 Version: 9 is not a field, it is the description

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1

Package: libstdc++6
Status: install ok half-configured
Architecture: amd64
Version: 1:12.2.0~rc1-14
"""
DEBIAN = b'PRETTY_NAME="Debian"\nID=debian\nVERSION_ID="12"\n'
ALPINE = b"P:musl\nV:1.2.5-r0\nA:x86_64\nL:MIT\n\nP:odd\nV:2\nA:x86_64\nL:custom terms\n"


@pytest.fixture
def listing_of(tmp_path):
    def make(*layers):
        write_layout(tmp_path / "layout", ImageFile(layers=[layer_of(**files) for files in layers]))
        index = json.loads((tmp_path / "layout/index.json").read_bytes())
        digest = index["manifests"][0]["digest"]
        image = obtain_image(
            "acme/base:1", FolderLayout(tmp_path / "layout"), digest, "x86_64",
            cache_of(tmp_path / "cache"),
        )  # fmt: skip
        entries, external = image_entries(image)
        component = ComponentInput(
            name="base", kind="image", platforms=(), entries=entries, external=external
        )
        return component, list_component(component)

    return make


def packages(listing_of, *layers):
    _, listing = listing_of(*layers)
    return image_packages(listing, where="base")


def test_packages_of_dpkg_are_those_with_files_on_the_disk(listing_of):
    found = packages(listing_of, {"var/lib/dpkg/status": STATUS, "usr/lib/os-release": DEBIAN})
    assert found.source == "dpkg"
    assert [(item.name, item.version, item.architecture) for item in found.packages] == [
        ("libc6", "2.36-9+deb12u9", "amd64"),
        ("libstdc++6", "1:12.2.0~rc1-14", "amd64"),
    ]


@pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="needs dpkg-query")
def test_dpkg_itself_names_the_same(listing_of, tmp_path):
    (tmp_path / "admin/info").mkdir(parents=True)
    (tmp_path / "admin/status").write_bytes(STATUS)
    asked = "${db:Status-Status} ${Package} ${Version}\\n"
    told = subprocess.run(
        ["dpkg-query", f"--admindir={tmp_path}/admin", "--show", f"--showformat={asked}"],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    lines = [line.split() for line in told.splitlines()]
    found = packages(listing_of, {"var/lib/dpkg/status": STATUS})
    assert [(item.name, item.version) for item in found.packages] == sorted(
        (name, version) for state, name, version in lines if state != "config-files"
    )


def test_each_package_has_the_url_that_the_specification_says(listing_of):
    found = packages(listing_of, {"var/lib/dpkg/status": STATUS, "usr/lib/os-release": DEBIAN})
    for item in found.packages:
        parsed = PackageURL.from_string(item.url)
        assert parsed.to_string() == item.url
        assert (parsed.type, parsed.namespace, parsed.name, parsed.version) == (
            "deb", "debian", item.name, item.version,
        )  # fmt: skip
        assert parsed.qualifiers == {"arch": "amd64", "distro": "debian-12"}


def test_an_image_without_dpkg_itself_lists_packages_one_by_one(listing_of):
    folder = "var/lib/dpkg/status.d"
    found = packages(
        listing_of,
        {f"{folder}/base": b"Package: base\nVersion: 1\nArchitecture: amd64\n",
         f"{folder}/base.md5sums": b"Package: not-a-list\n"},
    )  # fmt: skip
    assert [item.name for item in found.packages] == ["base"]


def test_packages_of_apk_bring_their_licence(listing_of):
    found = packages(listing_of, {"lib/apk/db/installed": ALPINE})
    assert (found.source, [item.licence for item in found.packages]) == (
        "apk", ["MIT", "custom terms"],
    )  # fmt: skip
    assert found.packages[0].url == "pkg:apk/alpine/musl@1.2.5-r0?arch=x86_64"


def test_the_last_layers_list_counts(listing_of):
    later = STATUS.replace(b"2.36-9+deb12u9", b"2.36-9+deb12u10")
    found = packages(listing_of, {"var/lib/dpkg/status": STATUS}, {"var/lib/dpkg/status": later})
    assert [item.version for item in found.packages if item.name == "libc6"] == ["2.36-9+deb12u10"]


@pytest.mark.parametrize(
    ("files", "source"),
    [
        ({"hello": b""}, "no known package manager"),
        ({"var/lib/rpm/rpmdb.sqlite": b"SQLite"}, "rpm, whose database is not read"),
    ],
)
def test_a_list_that_cannot_be_read_is_not_an_empty_one(listing_of, files, source):
    found = packages(listing_of, files)
    assert (found.packages, found.source) == ((), source)


@pytest.fixture
def bill(listing_of):
    files = {"var/lib/dpkg/status": STATUS, "lib/apk/db/installed": ALPINE}
    component, listing = listing_of(files)
    release = replace(documents.make_release(), components=(_component(component, listing),))
    return bill_of("sha256:" + "0" * 64, release, {listing.tree.root: listing})


def test_a_bill_has_the_image_its_configuration_and_its_packages(bill):
    kinds = [part.kind for part in bill.parts if part.kind != PartKind.COMPONENT]
    assert sorted(kinds) == sorted([PartKind.IMAGE, PartKind.ARCHIVE, *[PartKind.OS_PACKAGE] * 4])
    (image,) = [part for part in bill.parts if part.kind is PartKind.IMAGE]
    assert image.remark == "packages are listed from: dpkg, apk"
    parsed = PackageURL.from_string(image.url)
    assert (parsed.type, parsed.name, parsed.version) == ("oci", "base", image.digest)
    assert parsed.qualifiers == {"repository_url": "acme/base"}


def test_both_documents_are_valid_and_have_every_package(bill):
    raw = encode_cyclonedx(bill)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(raw.decode()) is None
    urls = {item.get("purl", "") for item in json.loads(raw)["components"]}
    assert sum(url.startswith(("pkg:deb/", "pkg:apk/")) for url in urls) == 4
    document = json.loads(encode_spdx(bill))
    assert validate_full_spdx_document(JsonLikeDictParser().parse(document), "SPDX-2.3") == []
    assert {"libc6", "libstdc++6", "musl", "odd"} <= {item["name"] for item in document["packages"]}
