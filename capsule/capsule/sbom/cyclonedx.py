"""Write a bill of materials as CycloneDX.

Source: CycloneDX 1.6, JSON. The document has no random serial number and no time of its own: it is
the same for everyone who makes it of one capsule.
"""

from datetime import UTC, datetime
from uuid import NAMESPACE_URL, uuid5

from capsule.sbom.parts import Bill, Licence, Part, PartKind
from capsule_manifest.canonical import JsonValue, encode

__all__ = ["encode_cyclonedx"]

_TYPES = {
    PartKind.COMPONENT: "application",
    PartKind.COMMIT: "application",
    PartKind.WHEEL: "library",
    PartKind.ARCHIVE: "file",
    PartKind.STORE_PATH: "library",
    PartKind.IMAGE: "container",
    PartKind.OS_PACKAGE: "library",
}
_ALGORITHMS = {"sha1": "SHA-1", "sha256": "SHA-256"}


def encode_cyclonedx(bill: Bill) -> bytes:
    """Return the CycloneDX 1.6 document of a bill, canonical JSON."""
    held: dict[str, list[JsonValue]] = {}
    for part in bill.parts:
        if part.ref != part.component:
            held.setdefault(part.component, []).append(part.ref)
    tops = [part.ref for part in bill.parts if part.ref == part.component]
    dependencies: list[JsonValue] = [{"ref": str(bill.capsule), "dependsOn": [*tops]}]
    dependencies += [{"ref": ref, "dependsOn": held.get(ref, [])} for ref in tops]
    return encode(
        {
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "serialNumber": f"urn:uuid:{uuid5(NAMESPACE_URL, str(bill.capsule))}",
            "version": 1,
            "metadata": {
                "timestamp": datetime.fromtimestamp(bill.date_s, UTC).isoformat(),
                "component": {
                    "type": "application",
                    "bom-ref": str(bill.capsule),
                    "name": bill.product,
                    "version": bill.version,
                    "hashes": [_hash(str(bill.capsule))],
                },
            },
            "components": [_component(part) for part in bill.parts],
            "dependencies": dependencies,
        }
    )


def _component(part: Part) -> JsonValue:
    value: dict[str, JsonValue] = {
        "type": _TYPES[part.kind],
        "bom-ref": part.ref,
        "name": part.name,
    }
    if part.version:
        value["version"] = part.version
    # A git commit's id is not the digest of any file.
    if part.digest and part.kind is not PartKind.COMMIT:
        value["hashes"] = [_hash(part.digest)]
    if part.url:
        value["purl"] = part.url
    if part.remark:
        value["description"] = part.remark
    licences = _licences(part.licence)
    if licences:
        value["licenses"] = licences
    return value


def _licences(licence: Licence) -> list[JsonValue]:
    if licence.expression:
        return [{"expression": licence.expression}]
    return [{"license": {"name": licence.text}}] if licence.text else []


def _hash(digest: str) -> JsonValue:
    algorithm, _, content = digest.partition(":")
    return {"alg": _ALGORITHMS[algorithm], "content": content}
