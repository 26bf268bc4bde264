"""The packages of operating systems in an image: what its own package manager says is installed.

Read are the lists of dpkg, those of images without dpkg itself included, and of apk. Where there is
another manager's database, or none, the result says so: a bill with no packages in it must not be
taken for an image with none.

Source: deb-control(5) and dpkg's status file; Alpine's "Apk spec", installed database v2;
os-release(5); Package-URL specification, types deb and apk.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO, Final
from urllib.parse import quote

from capsule.builder.images.documents import DOCUMENT_BYTES_MAX, decode_manifest, manifest_for
from capsule.builder.packer import Listing
from capsule.sbom.layers import last_words
from capsule_manifest.digest import ObjectId

__all__ = ["ImagePackages", "OsPackage", "image_packages"]

_LIST_BYTES_MAX: Final = 64 * 1024 * 1024
_RELEASE_BYTES_MAX: Final = 64 * 1024
_STATUS: Final = "var/lib/dpkg/status"
_STATUS_FOLDER: Final = f"{_STATUS}.d/"
_RELEASES: Final = ("usr/lib/os-release", "etc/os-release")
_APK: Final = ("lib/apk/db/installed", "usr/lib/apk/db/installed")
_RPM: Final = tuple(
    f"{folder}/{name}"
    for folder in ("var/lib/rpm", "usr/lib/sysimage/rpm")
    for name in ("rpmdb.sqlite", "Packages.db", "Packages")
)
_NOT_ON_DISK: Final = frozenset({"not-installed", "config-files"})
_MACHINES: Final = ("x86_64", "aarch64")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class OsPackage:
    """One installed package. `url` is its package URL; `licence` is what the list says, or ""."""

    name: str
    version: str
    architecture: str
    url: str
    licence: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePackages:
    """The packages of an image, sorted, and in words what they were read from."""

    packages: tuple[OsPackage, ...]
    source: str


def image_packages(listing: Listing, *, where: str) -> ImagePackages:
    """Return what is installed in the image whose layout is the tree of a component.

    Raises:
        Refused: `image-malformed`, `json-*`.
    """
    files = last_words(_layers(listing, where), _limit_of, where=where)
    release = _os_release(files)
    packages: set[OsPackage] = set()
    sources = []
    lists = [files[path] for path in sorted(files) if _is_dpkg(path)]
    if lists:
        sources.append("dpkg")
        packages.update(item for raw in lists for item in _dpkg(raw, release))
    for path in _APK:
        if path in files:
            sources.append("apk")
            packages.update(_apk(files[path], release))
    if any(path in files for path in _RPM):
        sources.append("rpm, whose database is not read")
    return ImagePackages(
        packages=tuple(sorted(packages)), source=", ".join(sources) or "no known package manager"
    )


def _layers(listing: Listing, where: str) -> list[Callable[[], BinaryIO]]:
    """Return a way to read each layer of the one image of a layout, the lowest first."""
    objects = {
        entry.path: entry.object for entry in listing.tree.entries if entry.object is not None
    }
    index = _document(listing, objects["index.json"])
    digest = manifest_for(index, _MACHINES[0], where)
    manifest = decode_manifest(_document(listing, objects[_blob(digest)]), where)
    return [partial(_open, listing, objects[_blob(layer.digest)]) for layer in manifest.layers]


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _open(listing: Listing, item: ObjectId) -> BinaryIO:
    opener = listing.sources[item].open
    assert opener is not None, "a file has content"
    return opener()


def _document(listing: Listing, item: ObjectId) -> bytes:
    with _open(listing, item) as stream:
        return stream.read(DOCUMENT_BYTES_MAX + 1)


def _limit_of(path: str) -> int | None:
    if path in _RELEASES:
        return _RELEASE_BYTES_MAX
    if path in _RPM:
        return 0
    return _LIST_BYTES_MAX if path in _APK or _is_dpkg(path) else None


def _is_dpkg(path: str) -> bool:
    name = path.removeprefix(_STATUS_FOLDER)
    is_part = name != path and "/" not in name and not name.endswith(".md5sums")
    return path == _STATUS or is_part


def _os_release(files: Mapping[str, bytes]) -> dict[str, str]:
    raw = next((files[path] for path in _RELEASES if path in files), b"")
    lines = raw.decode(errors="replace").splitlines()
    pairs = (line.partition("=")[::2] for line in lines if "=" in line)
    return {key.strip(): value.strip().strip("\"'") for key, value in pairs}


def _dpkg(raw: bytes, release: Mapping[str, str]) -> Iterator[OsPackage]:
    for paragraph in _paragraphs(raw):
        state = paragraph.get("Status", "install ok installed").rpartition(" ")[2]
        if state in _NOT_ON_DISK or not paragraph.get("Package"):
            continue
        name, version = paragraph["Package"], paragraph.get("Version", "")
        architecture = paragraph.get("Architecture", "")
        yield OsPackage(
            name=name,
            version=version,
            architecture=architecture,
            url=_url("deb", "debian", name, version, architecture, release),
        )


def _apk(raw: bytes, release: Mapping[str, str]) -> Iterator[OsPackage]:
    for paragraph in _paragraphs(raw):
        name, version = paragraph.get("P", ""), paragraph.get("V", "")
        if name:
            yield OsPackage(
                name=name,
                version=version,
                architecture=paragraph.get("A", ""),
                url=_url("apk", "alpine", name, version, paragraph.get("A", ""), release),
                licence=paragraph.get("L", ""),
            )


def _paragraphs(raw: bytes) -> Iterator[dict[str, str]]:
    """Yield the fields of each paragraph: the first line of each is all that is asked for."""
    fields: dict[str, str] = {}
    for line in [*raw.decode(errors="replace").split("\n"), ""]:
        if not line.strip():
            if fields:
                yield fields
            fields = {}
        elif not line[0].isspace():
            name, _, value = line.partition(":")
            fields.setdefault(name, value.strip())


def _url(
    kind: str, vendor: str, name: str, version: str, architecture: str, release: Mapping[str, str]
) -> str:
    distribution = release.get("ID", "") or vendor
    version_id = release.get("VERSION_ID", "")
    qualifiers = {
        "arch": architecture,
        "distro": f"{distribution}-{version_id}" if version_id else "",
    }
    asked = "&".join(f"{key}={_quoted(value)}" for key, value in qualifiers.items() if value)
    at = f"@{_quoted(version)}" if version else ""
    tail = f"?{asked}" if asked else ""
    return f"pkg:{kind}/{_quoted(distribution.lower())}/{_quoted(name.lower())}{at}{tail}"


def _quoted(text: str) -> str:
    # A colon is never percent-encoded in a package URL; everything else outside RFC 3986 is.
    return quote(text, safe=":")
