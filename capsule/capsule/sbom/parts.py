"""The parts of a release, as other ecosystems know them: one list, from which every bill is made.

Everything comes from the release manifest and the content itself, so the list is the same whoever
makes it. A part is what somebody else may publish a warning about: a component, a wheel in it, a
package of the operating system in an image.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesParser
from enum import StrEnum
from typing import Final
from urllib.parse import quote

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.utils import canonicalize_name, parse_wheel_filename

from capsule.builder.packer import Listing
from capsule.sbom.image_packages import ImagePackages, OsPackage, image_packages
from capsule_manifest.digest import CapsuleId, ObjectId
from capsule_manifest.release import Component, ComponentKind, External, Release

__all__ = ["Bill", "Licence", "Part", "PartKind", "bill_of"]

_METADATA_BYTES_MAX: Final = 16 * 1024 * 1024
# As Nix itself tells the two apart: a version begins at the first dash before no letter.
_STORE_NAME: Final = re.compile(r"[^-]{32}-(.+?)(?:-([^A-Za-z].*))?")
_OSI: Final = "License :: OSI Approved :: "


class PartKind(StrEnum):
    """Where a part comes from."""

    COMPONENT = "component"
    COMMIT = "commit"
    WHEEL = "wheel"
    ARCHIVE = "archive"
    STORE_PATH = "store-path"
    IMAGE = "image"
    OS_PACKAGE = "os-package"


@dataclass(frozen=True, slots=True, kw_only=True)
class Licence:
    """What a part says of its licence. `expression` is SPDX, empty if it gives free text only."""

    expression: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part. `digest` is `sha256:<hex>` or `sha1:<hex>`; `url` is a package URL. Both may be "".

    `component` names the component of the release that holds it; a component holds itself. `remark`
    is for people.
    """

    ref: str
    kind: PartKind
    name: str
    version: str
    digest: str
    url: str
    licence: Licence
    component: str
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """All parts of one capsule, sorted by `ref`; `date_s` is the commit's time in Unix seconds."""

    capsule: CapsuleId
    product: str
    version: str
    release_counter: int
    date_s: int
    parts: tuple[Part, ...]


def bill_of(capsule: CapsuleId, release: Release, listings: Mapping[ObjectId, Listing]) -> Bill:
    """List the parts of a release. `listings` has each component's tree and a way to read it.

    Raises:
        Refused: `image-malformed`, `json-*` when the packages of an image can't be read.
    """
    parts: dict[str, Part] = {}
    for component in release.components:
        for part in _parts(component, release, listings[component.tree]):
            parts.setdefault(part.ref, part)
    return Bill(
        capsule=capsule,
        product=release.product,
        version=release.version,
        release_counter=release.release_counter,
        date_s=release.source.date_s,
        parts=tuple(parts[ref] for ref in sorted(parts)),
    )


def _parts(component: Component, release: Release, listing: Listing) -> Iterator[Part]:
    platforms = "+".join(component.platforms)
    own = f"component:{component.name}" + (f"@{platforms}" if platforms else "")
    yield Part(
        ref=own,
        kind=PartKind.COMPONENT,
        name=component.name,
        version=release.version,
        digest="",
        url="",
        licence=Licence(),
        component=own,
    )
    if component.kind is ComponentKind.IMAGE:
        yield from _image(component, own, image_packages(listing, where=component.name))
        return
    metadata = _metadata(listing)
    for external in component.external:
        yield _external(external, own, metadata)


def _image(component: Component, own: str, found: ImagePackages) -> Iterator[Part]:
    """Yield an image, its configuration, by whose digest engines know it, and its packages."""
    for external in component.external:
        is_image = external.type == "image"
        yield Part(
            ref=f"{own}/{external.name}" + ("" if is_image else "@config"),
            kind=PartKind.IMAGE if is_image else PartKind.ARCHIVE,
            name=external.name if is_image else f"{external.name} (configuration)",
            version="",
            digest=external.digest,
            url=_image_url(external) if is_image else "",
            licence=Licence(),
            component=own,
            remark=f"packages are listed from: {found.source}" if is_image else "",
        )
    for package in found.packages:
        yield _os_package(package, own)


def _os_package(package: OsPackage, own: str) -> Part:
    name = f"{package.name}:{package.architecture}" if package.architecture else package.name
    return Part(
        ref=f"{own}/{name}={package.version}",
        kind=PartKind.OS_PACKAGE,
        name=package.name,
        version=package.version,
        digest="",
        url=package.url,
        licence=_stated(package.licence),
        component=own,
    )


def _image_url(external: External) -> str:
    """Return the package URL of an image: its name in its registry, and its manifest's digest.

    Source: Package-URL specification, type oci.
    """
    place, _, last = external.name.rpartition("/")
    name = last.partition("@")[0].partition(":")[0].lower()
    asked = f"?repository_url={quote(f'{place}/{name}', safe=':')}" if place else ""
    return f"pkg:oci/{quote(name)}@{external.digest}{asked}"


def _external(external: External, own: str, metadata: Mapping[tuple[str, str], Message]) -> Part:
    ref = f"{own}/{external.name}"
    licence = Licence()
    if external.type == "wheel":
        name, parsed, _, _ = parse_wheel_filename(external.name)
        version, kind = str(parsed), PartKind.WHEEL
        # A wheel of which single files are used has no metadata in the tree.
        found = metadata.get((name, version))
        licence = _licence(found) if found is not None else licence
        return Part(
            ref=ref,
            kind=kind,
            name=name,
            version=version,
            digest=external.digest,
            url=f"pkg:pypi/{name}@{version}",
            licence=licence,
            component=own,
        )
    if external.type == "nix-path":
        found_name = _STORE_NAME.fullmatch(external.name)
        assert found_name is not None, "checked when it was locked"
        return Part(
            ref=ref,
            kind=PartKind.STORE_PATH,
            name=found_name[1],
            version=found_name[2] or "",
            digest=external.digest,
            url="",
            licence=licence,
            component=own,
        )
    is_commit = external.type == "git-commit"
    return Part(
        ref=ref,
        kind=PartKind.COMMIT if is_commit else PartKind.ARCHIVE,
        name=external.name,
        version=external.digest.partition(":")[2] if is_commit else "",
        digest=external.digest,
        url="",
        licence=licence,
        component=own,
    )


def _metadata(listing: Listing) -> dict[tuple[str, str], Message]:
    """Return the core metadata of each distribution in a tree, by name and version."""
    found: dict[tuple[str, str], Message] = {}
    for entry in listing.tree.entries:
        folder, _, name = entry.path.rpartition("/")
        if name != "METADATA" or not folder.endswith(".dist-info") or entry.object is None:
            continue
        source = listing.sources[entry.object]
        assert source.open is not None, "a file has content"
        with source.open() as stream:
            raw = stream.read(_METADATA_BYTES_MAX)
        message = BytesParser().parsebytes(raw, headersonly=True)
        key = (canonicalize_name(str(message["Name"])), str(message["Version"]))
        found[key] = message
        # The file name of a wheel has the normalised version, its metadata may not.
        stem, _, version = folder.rpartition("/")[2].removesuffix(".dist-info").partition("-")
        found[canonicalize_name(stem), version] = message
    return found


def _licence(metadata: Message) -> Licence:
    """Return the licence that core metadata states: an expression if there is a valid one.

    Source: core metadata specification 2.4, "License-Expression", "License" and "Classifier".
    """
    for field in ("License-Expression", "License"):
        stated = _stated(str(metadata.get(field, "")).strip())
        if stated.expression:
            return stated
    classifiers = [str(item) for item in metadata.get_all("Classifier", [])]
    names = [item.removeprefix(_OSI) for item in classifiers if item.startswith(_OSI)]
    # The field may hold a whole licence; its first line is its title.
    title = str(metadata.get("License", "")).strip().split("\n", 1)[0]
    return Licence(text=", ".join(names) or title)


def _stated(text: str) -> Licence:
    """Return a licence as an expression where it is a valid one, otherwise as text."""
    try:
        return Licence(expression=canonicalize_license_expression(text) if text else "")
    except InvalidLicenseExpression:
        return Licence(text=text)
