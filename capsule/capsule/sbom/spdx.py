"""Write a bill of materials as SPDX.

Source: SPDX 2.3, JSON. Made of the capsule alone, like the CycloneDX document.
"""

import hashlib
from datetime import UTC, datetime

from capsule.sbom.parts import Bill, Licence, Part, PartKind
from capsule_manifest.canonical import JsonValue, encode
from capsule_manifest.digest import capsule_hex

__all__ = ["encode_spdx"]

_UNKNOWN = "NOASSERTION"
_ROOT = "SPDXRef-capsule"
_ALGORITHMS = {"sha1": "SHA1", "sha256": "SHA256"}


def encode_spdx(bill: Bill) -> bytes:
    """Return the SPDX 2.3 document of a bill, canonical JSON."""
    created = datetime.fromtimestamp(bill.date_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    relations: list[JsonValue] = [_relation("SPDXRef-DOCUMENT", "DESCRIBES", _ROOT)]
    for part in bill.parts:
        holder = _ROOT if part.ref == part.component else _id(part.component)
        relations.append(_relation(holder, "CONTAINS", _id(part.ref)))
    root: JsonValue = {
        "SPDXID": _ROOT,
        "name": bill.product,
        "versionInfo": bill.version,
        "downloadLocation": _UNKNOWN,
        "filesAnalyzed": False,
        "licenseDeclared": _UNKNOWN,
        "licenseConcluded": _UNKNOWN,
        "copyrightText": _UNKNOWN,
        "checksums": [_checksum(str(bill.capsule))],
    }
    return encode(
        {
            "spdxVersion": "SPDX-2.3",
            "dataLicense": "CC0-1.0",
            "SPDXID": "SPDXRef-DOCUMENT",
            "name": f"{bill.product} {bill.version}",
            "documentNamespace": f"urn:capsule:spdx:{capsule_hex(bill.capsule)}",
            "creationInfo": {"created": created, "creators": ["Tool: capsule"]},
            "packages": [root, *(_package(part) for part in bill.parts)],
            "relationships": relations,
        }
    )


def _package(part: Part) -> JsonValue:
    value: dict[str, JsonValue] = {
        "SPDXID": _id(part.ref),
        "name": part.name,
        "downloadLocation": _UNKNOWN,
        "filesAnalyzed": False,
        "licenseDeclared": part.licence.expression or _UNKNOWN,
        "licenseConcluded": _UNKNOWN,
        "copyrightText": _UNKNOWN,
    }
    if part.version:
        value["versionInfo"] = part.version
    if part.digest and part.kind is not PartKind.COMMIT:
        value["checksums"] = [_checksum(part.digest)]
    if part.url:
        value["externalRefs"] = [
            {
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": part.url,
            }
        ]
    if part.remark:
        value["comment"] = part.remark
    comment = _comment(part.licence)
    if comment:
        value["licenseComments"] = comment
    return value


def _comment(licence: Licence) -> str:
    return f"stated as: {licence.text}" if licence.text and not licence.expression else ""


def _id(ref: str) -> str:
    # SPDX identifiers have letters, digits, dots and hyphens only, which a file name may exceed.
    return f"SPDXRef-{hashlib.sha256(ref.encode()).hexdigest()[:32]}"


def _relation(element: str, kind: str, related: str) -> JsonValue:
    return {
        "spdxElementId": element,
        "relationshipType": kind,
        "relatedSpdxElement": related,
    }


def _checksum(digest: str) -> JsonValue:
    algorithm, _, content = digest.partition(":")
    return {"algorithm": _ALGORITHMS[algorithm], "checksumValue": content}
