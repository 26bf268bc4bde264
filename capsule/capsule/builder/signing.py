"""Signatures of a capsule directory. They lie outside its id, so anyone may add one later."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from capsule.durable import read_bounded, replace_file
from capsule_manifest.digest import CapsuleId
from capsule_manifest.envelope import IN_TOTO, encode_bundle, sign
from capsule_manifest.errors import Failed, Refused
from capsule_manifest.keys import PublicKey, Signer
from capsule_manifest.packing import PACKING_LIMITS, decode_packing
from capsule_manifest.policy import Authority, Policy
from capsule_manifest.release import RELEASE_LIMITS, capsule_id, decode_release
from capsule_manifest.signers import SignedStatement, policy_key
from capsule_manifest.statements import ReleaseClaim, packing_statement, release_statement

__all__ = ["Statements", "check_owner", "put_signature", "read_statements", "sign_directory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statements:
    """What lies in a capsule directory, and what there is to sign of it.

    `payloads` maps `release` and `packing` to their statements.
    """

    capsule: CapsuleId
    manifest: bytes
    packing: bytes
    payloads: Mapping[str, bytes]


def read_statements(folder: Path) -> Statements:
    """Return the statements about a capsule directory.

    What is signed is what lies there: both documents are read and checked first, so that nobody
    puts his name below something that no host would accept.

    Raises:
        Refused: what `decode_release` and `decode_packing` raise; `packing-inconsistent`.
        Failed: `capsule-incomplete`, `controller-disk`.
    """
    manifest = _read(folder / "capsule.json", RELEASE_LIMITS.size_bytes_max)
    packing = _read(folder / "packing.json", PACKING_LIMITS.size_bytes_max)
    release = decode_release(manifest)
    capsule = capsule_id(manifest)
    packed = decode_packing(packing).capsule
    if packed != capsule:
        raise Failed(
            "capsule-incomplete", "packing.json packs another capsule", expected=capsule,
            got=packed, where=folder,
        )  # fmt: skip
    claim = ReleaseClaim(
        capsule=capsule,
        product=release.product,
        version=release.version,
        release_counter=release.release_counter,
    )
    return Statements(
        capsule=capsule,
        manifest=manifest,
        packing=packing,
        payloads={
            "release": release_statement(claim),
            "packing": packing_statement(packing, capsule),
        },
    )


def sign_directory(folder: Path, signer: Signer) -> CapsuleId:
    """Add `signer`'s release and packing signatures and return the capsule's id.

    Raises:
        CapsuleError: as `read_statements` and `put_signature`.
    """
    statements = read_statements(folder)
    for subject, payload in statements.payloads.items():
        bundle = encode_bundle(sign(payload, payload_type=IN_TOTO, signer=signer))
        put_signature(folder, f"{subject}-{signer.public.short}", bundle)
    return statements.capsule


def put_signature(folder: Path, name: str, bundle: bytes) -> Path:
    """Write one signature file durably and return its path. One of the same name is replaced.

    Raises:
        Failed: `controller-disk`.
    """
    path = folder / "signatures" / f"{name}.sigstore.json"
    path.parent.mkdir(exist_ok=True)
    replace_file(path, bundle, mode=0o644)
    return path


def check_owner(policy: Policy, key: PublicKey, owner: str, folder: Path) -> None:
    """Check that a signature by `key` would count as `owner`'s voice for the capsule in `folder`.

    Raises:
        Refused: `key-unknown`, `key-revoked`, `authority-denied`, `owner-mismatch`,
            `key-outside-window`; what `decode_release` raises.
        Failed: `capsule-incomplete`, `controller-disk`.
    """
    policy_key(policy, Authority.RELEASE, key.keyid, str(folder))
    entry = policy.keys[key.keyid]
    if entry.owner != owner:
        raise Refused(
            "owner-mismatch", "a key belongs to another owner",
            expected=f"a key of {owner}", got=f"key {key.short} of {entry.owner}", where=folder,
        )  # fmt: skip
    release = decode_release(_read(folder / "capsule.json", RELEASE_LIMITS.size_bytes_max))
    SignedStatement(
        owner=owner, counter_from=entry.counter_from, counter_to=entry.counter_to, payload=b""
    ).check_window(release.release_counter, str(folder))


def _read(path: Path, size_bytes_max: int) -> bytes:
    raw = read_bounded(path, size_bytes_max)
    if raw is None:
        raise Failed("capsule-incomplete", "a capsule directory lacks a file", where=path)
    return raw
