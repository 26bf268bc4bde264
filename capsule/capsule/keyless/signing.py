"""Sign a capsule directory keyless, and write only what the hosts' own policy accepts."""

from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from capsule.builder.opened import OpenCapsule, open_capsule
from capsule.builder.signing import put_signature, read_statements
from capsule.builder.verify import bundles_about
from capsule.keyless.signer import sign_statements
from capsule_manifest.digest import CapsuleId
from capsule_manifest.errors import Refused
from capsule_manifest.keyless import KeylessSignature, KeylessVerifier, check_trusted_root
from capsule_manifest.packing import PACKING_LIMITS
from capsule_manifest.policy import Policy
from capsule_manifest.release import RELEASE_LIMITS
from capsule_manifest.trust import verify_packing, verify_release

if TYPE_CHECKING:
    from sigstore.oidc import IdentityToken

__all__ = ["KeylessSigned", "hosts_refuse", "sign_directory_keyless"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeylessSigned:
    """What was signed, as whom, and why hosts don't install it yet; None when they do."""

    capsule: CapsuleId
    signature: KeylessSignature
    files: tuple[Path, ...]
    hosts_refuse: Refused | None


def sign_directory_keyless(
    folder: Path,
    *,
    policy: Policy,
    verifier: KeylessVerifier,
    token: "IdentityToken",
    trust_config: Path | None,
) -> KeylessSigned:
    """Add keyless release and packing signatures after they passed under `policy`.

    Nothing is written unless both count under the policy that hosts have: proved offline from the
    pinned root, by an identity with the release authority, within its window, of this product, not
    below the floor, not revoked. How many more owners must sign is no reason to refuse here.

    Raises:
        CapsuleError: as `read_statements`, `sign_statements`, `verify_release`, `verify_packing`.
    """
    statements = read_statements(folder)
    check_trusted_root(policy, verifier.trusted_root)
    bundles = sign_statements(statements.payloads, token, trust_config=trust_config)
    release = {"release": bundles["release"]}
    alone = replace(policy, release=replace(policy.release, threshold=1))
    verify_release(alone, statements.manifest, release, counter_floor=0, keyless=verifier)
    verify_packing(
        policy,
        statements.packing,
        statements.capsule,
        {"packing": bundles["packing"]},
        keyless=verifier,
    )
    signature = verifier.verify(bundles["release"], policy.identities, where="release")
    name = _file_name(signature)
    files = tuple(
        put_signature(folder, f"{subject}-{name}", raw) for subject, raw in bundles.items()
    )
    return KeylessSigned(
        capsule=statements.capsule,
        signature=signature,
        files=files,
        hosts_refuse=hosts_refuse(open_capsule(folder), policy),
    )


def hosts_refuse(source: OpenCapsule, policy: Policy) -> Refused | None:
    """Return why a host would refuse the capsule as it lies there; None when it would not.

    A host counts signatures by keys.

    Raises:
        Failed: `capsule-incomplete`, `controller-disk`.
    """
    manifest = source.read("capsule.json", RELEASE_LIMITS.size_bytes_max)
    packing = source.read("packing.json", PACKING_LIMITS.size_bytes_max)
    try:
        verified = verify_release(
            policy, manifest, bundles_about(source, "release"), counter_floor=0
        )
        verify_packing(policy, packing, verified.capsule, bundles_about(source, "packing"))
    except Refused as refusal:
        return refusal
    return None


def _file_name(signature: KeylessSignature) -> str:
    """Return a name by identity: who signs again replaces what he signed before."""
    identity = signature.identity
    return "keyless-" + sha256(f"{identity.issuer}\0{identity.san}".encode()).hexdigest()[:8]
