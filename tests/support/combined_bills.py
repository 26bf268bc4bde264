"""What the bills and the provenance of a built capsule say, for comparing it with other listings.

Nothing of the builder is used but the documents that it wrote.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from spdx_tools.spdx.parser.jsonlikedict.json_like_dict_parser import JsonLikeDictParser
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

from support.lab.rows import Rows

__all__ = ["Bills", "add_sets"]

_SHOWN = 3


def add_sets(rows: Rows, case: str, expected: set[str], got: set[str]) -> None:
    """Add a row that is good when both sets are equal and not empty; it tells what differs."""
    differs = [f"without {item}" for item in sorted(expected - got)[:_SHOWN]]
    differs += [f"also {item}" for item in sorted(got - expected)[:_SHOWN]]
    rows.add(
        case, expected=str(len(expected)), got="; ".join([str(len(got)), *differs]),
        ok=bool(expected) and expected == got,
    )  # fmt: skip


class Bills:
    """The documents of the capsule directory `capsule`."""

    def __init__(self, capsule: Path) -> None:
        self._manifest = (capsule / "capsule.json").read_bytes()
        self.release: dict[str, Any] = json.loads(self._manifest)
        self._cyclonedx = (capsule / "sbom/cyclonedx.json").read_text()
        self._spdx = json.loads((capsule / "sbom/spdx.json").read_bytes())
        self._provenance = json.loads((capsule / "provenance/slsa.json").read_bytes())
        self._components: list[dict[str, Any]] = json.loads(self._cyclonedx)["components"]

    # --- whether they are what they claim to be -------------------------------------------------
    def cyclonedx_problem(self) -> str:
        """Return what the official schema of CycloneDX 1.6 says against it, or ""."""
        problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(self._cyclonedx)
        return "" if problem is None else str(problem)[:200]

    def spdx_problem(self) -> str:
        """Return what SPDX's own program says against it, or that both bills differ, or ""."""
        parsed = JsonLikeDictParser().parse(self._spdx)  # type: ignore[no-untyped-call]
        problems = validate_full_spdx_document(parsed, "SPDX-2.3")
        if problems:
            return str(problems[0])[:200]
        # One more package than parts: the capsule itself.
        parts, packages = len(self._components), len(self._spdx["packages"])
        return "" if packages == parts + 1 else f"{packages} packages for {parts} parts"

    def provenance_problem(self, commit: str) -> str:
        """Return why it is no SLSA v1 provenance of this capsule with that commit in it, or ""."""
        said = self._provenance
        kinds = (said["_type"], said["predicateType"])
        if kinds != ("https://in-toto.io/Statement/v1", "https://slsa.dev/provenance/v1"):
            return f"it is {kinds}"
        subject = said["subject"][0]["digest"]["sha256"]
        if subject != hashlib.sha256(self._manifest).hexdigest():
            return f"it is of {subject}"
        pins = said["predicate"]["buildDefinition"]["resolvedDependencies"]
        commits = {pin["digest"].get("gitCommit") for pin in pins}
        if commit not in commits:
            return "the commit is missing"
        named = {pin["digest"].get("sha256") for pin in pins}
        lacking = [
            item["name"]
            for part in self.release["components"]
            for item in part["external"]
            if item["digest"].startswith("sha256:") and item["digest"][7:] not in named
        ]
        return f"it lacks {lacking[:_SHOWN]}" if lacking else ""

    # --- what they list -------------------------------------------------------------------------
    def wheels(self, component: str, platform: str) -> set[str]:
        """Return `name==version` of each wheel in a component for a platform."""
        return {
            f"{item['name']}=={item['version']}"
            for item in self._parts(component, platform)
            if item.get("purl", "").startswith("pkg:pypi/")
        }

    def os_packages(self) -> set[str]:
        """Return `name version architecture` of each package of the image, from its package URL."""
        urls = [PackageURL.from_string(item["purl"]) for item in self._components
                if item.get("purl", "").startswith("pkg:deb/")]  # fmt: skip
        return {f"{url.name} {url.version} {dict(url.qualifiers)['arch']}" for url in urls}

    def store_paths(self) -> set[str]:
        """Return `basename sha256-hex` of each store path."""
        return {
            f"{item['bom-ref'].rpartition('/')[2]} {item['hashes'][0]['content']}"
            for item in self._parts("greet", "bookworm")
            if item["type"] == "library"
        }

    def closure_root(self) -> str:
        """Return the base name of the closure's root."""
        (root,) = [line.split()[0] for line in self.store_paths() if "-greet-" in line]
        return root

    def image_config(self) -> str:
        """Return the digest by which engines know the image."""
        (digest,) = [
            item["digest"]
            for part in self.release["components"]
            for item in part["external"]
            if item["type"] == "image-config"
        ]
        assert isinstance(digest, str)
        return digest

    def component_bytes(self, name: str) -> int:
        """Return the size of a component's content."""
        (size,) = [item["content_bytes"] for item in self.release["components"]
                   if item["name"] == name]  # fmt: skip
        assert isinstance(size, int)
        return size

    def _parts(self, component: str, platform: str) -> Iterator[dict[str, Any]]:
        for item in self._components:
            own, _, rest = item["bom-ref"].partition("/")
            name, _, platforms = own.removeprefix("component:").partition("@")
            if rest and name == component and platform in (platforms or platform).split("+"):
                yield item
