"""`capsule verify`: trust first, then every tree, pack, frame and object.

What a host checks while it stages is checked here over everything, for all roles and platforms.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from blake3 import blake3

from capsule.builder.opened import OpenCapsule
from capsule.builder.packer import pack_name
from capsule_manifest.digest import CapsuleId, ObjectId, blake3_text
from capsule_manifest.envelope import BUNDLE_LIMITS
from capsule_manifest.errors import Refused
from capsule_manifest.keyless import KeylessVerifier
from capsule_manifest.pack import (
    FRAME_TABLE_FOOTER_BYTES,
    Frame,
    decode_frame,
    decode_frame_table,
    frame_table_bytes_of,
)
from capsule_manifest.packing import PACKING_LIMITS, Content, Pack, Packing, decode_packing
from capsule_manifest.policy import Policy
from capsule_manifest.release import RELEASE_LIMITS, Component, Release
from capsule_manifest.tree import EntryKind, Tree, TreeLimits, content_order, decode_tree
from capsule_manifest.trust import verify_packing, verify_release

__all__ = ["Verified", "bundles_about", "verify_capsule"]

_SIGNATURES_MAX: Final = 256
_MANIFEST: Final = "capsule.json"
_PACKING: Final = "packing.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What was checked. `content_bytes` counts objects once per component."""

    release: Release
    capsule: CapsuleId
    owners: tuple[str, ...]
    trees: int
    packs: int
    frames: int
    objects: int
    content_bytes: int
    took_ms: int


def verify_capsule(
    source: OpenCapsule,
    policy: Policy,
    *,
    keyless: KeylessVerifier | None = None,
    report: Callable[[str], None],
) -> Verified:
    """Check a whole capsule under a policy; memory holds one frame.

    Without `keyless` only signatures by keys count, as on a host.

    Raises:
        Refused: what `verify_release` and `verify_packing` raise; `tree-*`, `frame-*`, `pack-*`,
            `packing-inconsistent`, `object-mismatch`, `container-member-refused`,
            `document-invalid`.
        Failed: `capsule-incomplete`, `controller-disk`.
    """
    started = time.monotonic()
    manifest = source.read(_MANIFEST, RELEASE_LIMITS.size_bytes_max)
    bundles = bundles_about(source, "release")
    verified = verify_release(policy, manifest, bundles, counter_floor=0, keyless=keyless)
    raw_packing = source.read(_PACKING, PACKING_LIMITS.size_bytes_max)
    packings = bundles_about(source, "packing")
    verify_packing(policy, raw_packing, verified.capsule, packings, keyless=keyless)
    packing = decode_packing(raw_packing)
    _check_members(source, verified.release, packing)
    frames = objects = content_bytes = 0
    roots = {component.tree: component for component in verified.release.components}
    for root, component in roots.items():
        report(component.name)
        tree = _read_tree(source, root)
        for sharing in verified.release.components:
            if sharing.tree == root:
                _check_named_files(sharing, tree)
        if len(tree.entries) != component.entries:
            raise _inconsistent(
                f"entries of {component.name}", component.entries, len(tree.entries)
            )
        order = content_order(tree)
        length = sum(size for _, size in order)
        content = packing.contents.get(root, Content(stream_bytes=0, packs=()))
        if (length, length) != (component.content_bytes, content.stream_bytes):
            raise _inconsistent(f"content of {component.name}", length, content.stream_bytes)
        _check_objects(order, _contents(source, content))
        frames += sum(len(pack.frames) for pack in content.packs)
        objects += len(order)
        content_bytes += length
    return Verified(
        release=verified.release,
        capsule=verified.capsule,
        owners=verified.owners,
        trees=len(roots),
        packs=len(_packs(packing)),
        frames=frames,
        objects=objects,
        content_bytes=content_bytes,
        took_ms=int((time.monotonic() - started) * 1000),
    )


def bundles_about(source: OpenCapsule, subject: str) -> dict[str, bytes]:
    """Return the signature files about `release` or `packing`.

    Raises:
        Refused: `signature-malformed` for too many, `document-invalid` for one that is too large.
    """
    names = [
        name for name in source.below("signatures") if name.startswith(f"signatures/{subject}-")
    ]
    if len(names) > _SIGNATURES_MAX:
        raise Refused(
            "signature-malformed", "too many signature files",
            expected=f"at most {_SIGNATURES_MAX}", got=len(names), where=source.path,
        )  # fmt: skip
    return {name: source.read(name, BUNDLE_LIMITS.size_bytes_max) for name in names}


def _read_tree(source: OpenCapsule, root: ObjectId) -> Tree:
    raw = source.read(f"trees/{root.hex()}", TreeLimits().size_bytes_max)
    return decode_tree(raw, root=root)


def _check_named_files(component: Component, tree: Tree) -> None:
    """Refuse a manifest whose units or managed files are no files of their component."""
    named = {unit.file for unit in component.units} | {item.file for item in component.files}
    missing = named - {entry.path for entry in tree.entries if entry.kind is EntryKind.FILE}
    if missing:
        raise Refused(
            "document-invalid", "a component names files that its tree doesn't have",
            got=", ".join(sorted(missing)), where=f"capsule.json.components.{component.name}",
        )  # fmt: skip


def _check_members(source: OpenCapsule, release: Release, packing: Packing) -> None:
    """Refuse members that nothing names: what isn't checked must not travel along."""
    roots = {component.tree for component in release.components}
    stray = set(packing.contents) - roots
    if stray:
        raise _inconsistent(
            "the set of trees", "trees of the manifest", ", ".join(map(blake3_text, stray))
        )
    named = {f"trees/{root.hex()}" for root in roots}
    named |= {f"packs/{pack_name(pack)}" for pack in _packs(packing)}
    extra = set(source.below("trees")) | set(source.below("packs")) | set(source.below("deltas"))
    if extra - named:
        raise Refused(
            "container-member-refused", "a capsule holds what its manifest doesn't name",
            got=", ".join(sorted(extra - named)), where=source.path,
        )  # fmt: skip


def _packs(packing: Packing) -> Mapping[ObjectId, Pack]:
    return {pack.id: pack for content in packing.contents.values() for pack in content.packs}


def _contents(source: OpenCapsule, content: Content) -> Iterator[bytes]:
    """Yield the contents of all frames of a tree's stream, each proved."""
    for pack in content.packs:
        name = f"packs/{pack_name(pack.id)}"
        if source.size(name) != pack.size_bytes:
            raise _inconsistent(f"size of {name}", pack.size_bytes, source.size(name))
        hasher = blake3()
        for frame in pack.frames:
            stored = b"".join(source.chunks(name, frame.offset, frame.stored_bytes))
            hasher.update(stored)
            yield decode_frame(stored, frame)
        hasher.update(_check_table(source, name, pack.frames))
        if hasher.digest() != pack.id:
            raise Refused(
                "pack-malformed", "a pack is not what its name says",
                expected=blake3_text(pack.id), got=hasher.hexdigest(), where=name,
            )  # fmt: skip


def _check_table(source: OpenCapsule, name: str, frames: tuple[Frame, ...]) -> bytes:
    size_bytes = source.size(name)
    footer_at = max(0, size_bytes - FRAME_TABLE_FOOTER_BYTES)
    length = frame_table_bytes_of(b"".join(source.chunks(name, footer_at)))
    raw = b"".join(source.chunks(name, max(0, size_bytes - length)))
    if decode_frame_table(raw) != frames:
        raise Refused("pack-malformed", "a pack's own table differs from packing.json", where=name)
    return raw


def _check_objects(order: tuple[tuple[ObjectId, int], ...], contents: Iterator[bytes]) -> None:
    """Cut a content stream into objects and check each."""
    rest = memoryview(b"")
    for digest, size_bytes in order:
        hasher = blake3()
        left = size_bytes
        while left:
            if not rest:
                rest = memoryview(next(contents, b""))
                if not rest:
                    raise _inconsistent("content stream", f"{left} bytes more", "its end")
            taken = min(left, len(rest))
            hasher.update(rest[:taken])
            rest = rest[taken:]
            left -= taken
        if hasher.digest() != digest:
            raise Refused(
                "object-mismatch", "an object is not what its tree names",
                expected=blake3_text(digest), got=hasher.hexdigest(),
            )  # fmt: skip
    if rest or any(contents):
        raise _inconsistent("content stream", "its end", "more bytes")


def _inconsistent(what: str, expected: object, got: object) -> Refused:
    return Refused(
        "packing-inconsistent", f"{what} differs between manifest, tree and packing",
        expected=expected, got=got,
    )  # fmt: skip
