"""Bootstrap files of a capsule: what a host with nothing of ours needs to verify and start.

    bootstrap/bootstrap.py  unpack.py  runtime-PLATFORM.stream  index.json

Zstandard and BLAKE3 are not in Python's standard library, so a bare host can read neither packs nor
trees. The host program therefore travels a second time, plain. These files lie outside the
capsule's id, like its packing, and are bound to it by a statement of their own about `index.json`,
which has the SHA-256 of the others.

Unlike a packing they are run, and nothing checks them against the capsule's trees on a bare host.
So they need what the release needs: owners up to its threshold, each within his window.
"""

import hashlib
from importlib.resources import files
from pathlib import Path
from typing import Final

from capsule.builder.opened import OpenCapsule
from capsule.builder.signing import put_signature
from capsule.builder.verify import bundles_about
from capsule.durable import make_folder, replace_file
from capsule.first_contact import read_runtime
from capsule.payload import Payload
from capsule_manifest.canonical import JsonValue, Limits, decode, encode
from capsule_manifest.digest import CapsuleId, sha256_text
from capsule_manifest.envelope import IN_TOTO, encode_bundle, sign
from capsule_manifest.errors import Refused
from capsule_manifest.fields import Object, root_object
from capsule_manifest.keys import Signer
from capsule_manifest.policy import Policy
from capsule_manifest.release import ComponentKind
from capsule_manifest.signers import read_signature
from capsule_manifest.statements import bootstrap_statement, read_bootstrap_statement

__all__ = ["add_bootstrap", "check_bootstrap"]

SCHEMA: Final = "capsule-bootstrap/1"
_LIMITS: Final = Limits(size_bytes_max=1024 * 1024, depth_max=4, values_max=4096)
_PROGRAMS: Final = {"bootstrap.py": "bootstrap_host.py", "unpack.py": "first_contact_host.py"}


def add_bootstrap(folder: Path, payload: Payload, signer: Signer) -> list[str]:
    """Write the bootstrap files of a verified capsule; return the platforms that they serve.

    Raises:
        Refused: `runtime-missing`, and what taking a runtime out raises.
        Failed: `capsule-incomplete`, `controller-disk`.
    """
    place = folder / "bootstrap"
    make_folder(place)
    programs = {
        name: files("capsule").joinpath(source).read_bytes() for name, source in _PROGRAMS.items()
    }
    for name, data in programs.items():
        replace_file(place / name, data, mode=0o644)
    runtimes: dict[str, JsonValue] = {}
    platforms = sorted(
        {
            platform
            for component in payload.release.components
            if component.kind is ComponentKind.RUNTIME
            for platform in component.platforms or payload.release.platforms
        }
    )
    for platform in platforms:
        runtime = read_runtime(payload, platform)
        replace_file(place / f"runtime-{platform}.stream", runtime.stream, mode=0o644)
        runtimes[platform] = {
            "runtime": runtime.id,
            "sha256": runtime.sha256,
            "size": len(runtime.stream),
        }
    index = encode(
        {
            "schema": SCHEMA,
            "capsule": payload.capsule,
            "bootstrap": hashlib.sha256(programs["bootstrap.py"]).hexdigest(),
            "unpack": hashlib.sha256(programs["unpack.py"]).hexdigest(),
            "runtimes": runtimes,
        }
    )
    replace_file(place / "index.json", index, mode=0o644)
    statement = bootstrap_statement(index, payload.capsule)
    bundle = encode_bundle(sign(statement, payload_type=IN_TOTO, signer=signer))
    put_signature(folder, f"bootstrap-{signer.public.short}", bundle)
    return platforms


def check_bootstrap(
    source: OpenCapsule, policy: Policy, capsule: CapsuleId, release_counter: int
) -> None:
    """Check the bootstrap files of a capsule that has any: all of them signed, no other there.

    Raises:
        Refused: `signature-missing`, `signature-wrong-subject` or why the last one doesn't count,
            `threshold-not-met`, `object-mismatch`, `container-member-refused`, `document-*`,
            `json-*`.
        Failed: `capsule-incomplete`, `controller-disk`.
    """
    present = set(source.below("bootstrap"))
    if not present:
        return
    raw = source.read("bootstrap/index.json", _LIMITS.size_bytes_max)
    _check_signed(source, policy, (sha256_text(raw), capsule), release_counter)
    index = root_object(
        decode(raw, limits=_LIMITS, where="bootstrap/index.json"), schema=SCHEMA, name="bootstrap"
    )
    if index.sha256("capsule") != capsule:
        raise Refused(
            "signature-wrong-subject", "the bootstrap files are of another capsule",
            expected=capsule, got=index.sha256("capsule"), where="bootstrap/index.json",
        )  # fmt: skip
    wanted = {"bootstrap/index.json": sha256_text(raw).removeprefix("sha256:")}
    for name in ("bootstrap", "unpack"):
        wanted[f"bootstrap/{name}.py"] = index.text(name)
    for platform, digest in index.named("runtimes", _read_runtime).items():
        wanted[f"bootstrap/runtime-{platform}.stream"] = digest
    index.end()
    if present != set(wanted):
        raise Refused(
            "container-member-refused", "the bootstrap files are not those of their index",
            expected=", ".join(sorted(wanted)), got=", ".join(sorted(present)), where=source.path,
        )  # fmt: skip
    for name, digest in wanted.items():
        hasher = hashlib.sha256()
        for chunk in source.chunks(name):
            hasher.update(chunk)
        if hasher.hexdigest() != digest:
            raise Refused(
                "object-mismatch", "a bootstrap file is not the signed one",
                expected=digest, got=hasher.hexdigest(), where=name,
            )  # fmt: skip


def _check_signed(
    source: OpenCapsule, policy: Policy, expected: tuple[str, CapsuleId], release_counter: int
) -> None:
    """Count the owners who signed this index for this capsule, as for the release itself."""
    refusal = Refused("signature-missing", "no signature of the bootstrap files")
    owners = set()
    for name, raw in bundles_about(source, "bootstrap").items():
        try:
            signed = read_signature(policy, name, raw, None)
            said = read_bootstrap_statement(signed.payload, where=name)
            if said != expected:
                raise Refused(
                    "signature-wrong-subject", "a signature is about other bootstrap files",
                    expected=expected[0], got=said[0], where=name,
                )  # fmt: skip
            signed.check_window(release_counter, name)
        except Refused as reason:
            refusal = reason
            continue
        owners.add(signed.owner)
    if not owners:
        raise refusal
    if len(owners) < policy.release.threshold:
        raise Refused(
            "threshold-not-met", "too few owners signed the bootstrap files",
            expected=f"{policy.release.threshold} owners with the release authority",
            got=f"{len(owners)}: {', '.join(sorted(owners))}", where="signatures",
        )  # fmt: skip


def _read_runtime(item: Object) -> str:
    item.text("runtime")
    item.integer("size")
    digest = item.text("sha256")
    item.end()
    return digest
