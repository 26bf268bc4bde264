"""State how a capsule was made: an in-toto statement that anybody can check against the capsule.

It says nothing that the builder could not know, and no time: two builds of one commit by one
builder say the same.

Source: in-toto Statement v1; SLSA provenance v1.
"""

from typing import Final

from capsule.sbom.parts import Bill, Part, PartKind
from capsule_manifest.canonical import JsonValue, encode
from capsule_manifest.digest import capsule_hex
from capsule_manifest.release import Release
from capsule_manifest.statements import STATEMENT_TYPE

__all__ = ["BUILDER", "BUILD_TYPE", "PROVENANCE_PREDICATE", "encode_provenance"]

PROVENANCE_PREDICATE: Final = "https://slsa.dev/provenance/v1"
BUILD_TYPE: Final = "urn:capsule:build:v1"
BUILDER: Final = "urn:capsule:builder:v1"


def encode_provenance(bill: Bill, release: Release) -> bytes:
    """Return the statement. It names the program as its builder: who ran it, the signature says."""
    commit: JsonValue = {
        "name": "source",
        "digest": {"gitCommit": release.source.commit, "gitTree": release.source.tree},
    }
    resolved = [_resolved(part) for part in bill.parts if part.digest]
    return encode(
        {
            "_type": STATEMENT_TYPE,
            "subject": [
                {"name": "capsule.json", "digest": {"sha256": capsule_hex(bill.capsule)}},
            ],
            "predicateType": PROVENANCE_PREDICATE,
            "predicate": {
                "buildDefinition": {
                    "buildType": BUILD_TYPE,
                    "externalParameters": {
                        "product": release.product,
                        "version": release.version,
                        "releaseCounter": release.release_counter,
                    },
                    "internalParameters": {},
                    "resolvedDependencies": [commit, *resolved],
                },
                "runDetails": {"builder": {"id": BUILDER}},
            },
        }
    )


def _resolved(part: Part) -> JsonValue:
    algorithm, _, content = part.digest.partition(":")
    name = "gitCommit" if part.kind is PartKind.COMMIT else algorithm
    value: dict[str, JsonValue] = {"name": part.ref, "digest": {name: content}}
    if part.url:
        value["uri"] = part.url
    return value
