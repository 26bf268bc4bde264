"""In-toto statements about a capsule's files: what a release or packing signature says.

Source: in-toto Statement v1; design, section 10.
"""

from dataclasses import dataclass
from typing import Final

from capsule_manifest.canonical import Limits, decode_foreign, encode
from capsule_manifest.digest import CapsuleId, capsule_hex, sha256_text
from capsule_manifest.errors import Refused
from capsule_manifest.fields import Object

__all__ = [
    "BOOTSTRAP_PREDICATE",
    "PACKING_PREDICATE",
    "RELEASE_PREDICATE",
    "PackingClaim",
    "ReleaseClaim",
    "bootstrap_statement",
    "packing_statement",
    "read_bootstrap_statement",
    "read_packing_statement",
    "read_release_statement",
    "release_statement",
]

STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
RELEASE_PREDICATE: Final = "urn:capsule:release:v1"
BOOTSTRAP_PREDICATE: Final = "urn:capsule:bootstrap:v1"
PACKING_PREDICATE: Final = "urn:capsule:packing:v1"
_LIMITS = Limits(size_bytes_max=64 * 1024, depth_max=8, values_max=1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseClaim:
    """What a release signer says of a capsule."""

    capsule: CapsuleId
    product: str
    version: str
    release_counter: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingClaim:
    """What a signer says of a `packing.json`: its digest, and the capsule that it packs."""

    packing: str
    capsule: CapsuleId


def release_statement(claim: ReleaseClaim) -> bytes:
    """Return the statement that a release authority signs."""
    return encode(
        {
            "_type": STATEMENT_TYPE,
            "subject": [
                {
                    "name": "capsule.json",
                    "digest": {"sha256": capsule_hex(claim.capsule)},
                }
            ],
            "predicateType": RELEASE_PREDICATE,
            "predicate": {
                "product": claim.product,
                "version": claim.version,
                "releaseCounter": claim.release_counter,
            },
        }
    )


def packing_statement(packing: bytes, capsule: CapsuleId) -> bytes:
    """Return the statement that binds one packing to one capsule."""
    return encode(
        {
            "_type": STATEMENT_TYPE,
            "subject": [
                {
                    "name": "packing.json",
                    "digest": {"sha256": capsule_hex(sha256_text(packing))},
                }
            ],
            "predicateType": PACKING_PREDICATE,
            "predicate": {"capsule": capsule},
        }
    )


def bootstrap_statement(index: bytes, capsule: CapsuleId) -> bytes:
    """Return the statement that binds the index of the bootstrap files to one capsule."""
    return encode(
        {
            "_type": STATEMENT_TYPE,
            "subject": [
                {
                    "name": "bootstrap/index.json",
                    "digest": {"sha256": capsule_hex(sha256_text(index))},
                }
            ],
            "predicateType": BOOTSTRAP_PREDICATE,
            "predicate": {"capsule": capsule},
        }
    )


def read_bootstrap_statement(payload: bytes, *, where: str) -> tuple[str, CapsuleId]:
    """Return the digest of the index that was signed, and the capsule that it belongs to.

    Raises:
        Refused: `json-*`, `document-invalid`, `signature-wrong-subject` for another kind.
    """
    subject, predicate = _read(payload, "bootstrap/index.json", BOOTSTRAP_PREDICATE, where)
    capsule = CapsuleId(predicate.sha256("capsule"))
    predicate.end()
    return subject, capsule


def read_release_statement(payload: bytes, *, where: str) -> ReleaseClaim:
    """Read a release statement.

    Raises:
        Refused: `json-*`, `document-invalid`, `signature-wrong-subject` for another kind.
    """
    subject, predicate = _read(payload, "capsule.json", RELEASE_PREDICATE, where)
    claim = ReleaseClaim(
        capsule=CapsuleId(subject),
        product=predicate.text("product"),
        version=predicate.text("version"),
        release_counter=predicate.integer("releaseCounter", least=1),
    )
    predicate.end()
    return claim


def read_packing_statement(payload: bytes, *, where: str) -> PackingClaim:
    """Read a packing statement.

    Raises:
        Refused: `json-*`, `document-invalid`, `signature-wrong-subject` for another kind.
    """
    subject, predicate = _read(payload, "packing.json", PACKING_PREDICATE, where)
    claim = PackingClaim(packing=subject, capsule=CapsuleId(predicate.sha256("capsule")))
    predicate.end()
    return claim


def _read(payload: bytes, name: str, predicate_type: str, where: str) -> tuple[str, Object]:
    statement = Object(decode_foreign(payload, limits=_LIMITS, where=where), where)
    got = (statement.text("_type"), statement.text("predicateType"))
    if got != (STATEMENT_TYPE, predicate_type):
        raise Refused(
            "signature-wrong-subject",
            "a signature is about something else",
            expected=predicate_type,
            got=got[1],
            where=where,
        )
    subjects = statement.items("subject", _subject)
    if len(subjects) != 1 or subjects[0][0] != name:
        raise Refused(
            "signature-wrong-subject",
            "a statement must be about exactly one file",
            expected=name,
            got=[subject[0] for subject in subjects],
            where=where,
        )
    predicate = statement.nested("predicate")
    statement.end()
    return subjects[0][1], predicate


def _subject(item: Object) -> tuple[str, str]:
    # Others may add digests by other algorithms to the subject; SHA-256 is the one that counts.
    digests = item.text_map("digest")
    hex_digits = digests.get("sha256", "")
    return item.text("name"), "sha256:" + hex_digits
