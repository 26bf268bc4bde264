"""A capsule as a source of what hosts lack: metadata at once, frames on demand.

Trust is decided here too, before anything is sent: hosts decide again for themselves, but what a
controller would not accept it does not offer. At most one chunk of a frame is in memory.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from capsule.builder.opened import OpenCapsule, open_capsule
from capsule_manifest.digest import CapsuleId, ObjectId
from capsule_manifest.envelope import BUNDLE_LIMITS
from capsule_manifest.errors import Refused
from capsule_manifest.pack import Pack
from capsule_manifest.packing import PACKING_LIMITS, Frame, Packing, decode_packing
from capsule_manifest.policy import Policy
from capsule_manifest.release import RELEASE_LIMITS, Component, Release, generation_name
from capsule_manifest.tree import DEFAULT_TREE_LIMITS, Tree, decode_tree
from capsule_manifest.trust import verify_packing, verify_release

__all__ = ["Payload", "open_payload"]

_SIGNATURE_END: Final = ".sigstore.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """A capsule whose signatures, counter and product were accepted under one policy."""

    source: OpenCapsule
    manifest: bytes
    signatures: Mapping[str, bytes]
    packing_raw: bytes
    packing: Packing
    release: Release
    capsule: CapsuleId
    placed: Mapping[ObjectId, tuple[tuple[Pack, Frame], ...]]
    """The frames of each tree's content stream in order, each with the pack that it lies in."""

    @property
    def generation(self) -> str:
        """Return the name of this capsule's generation on hosts."""
        return generation_name(self.release.release_counter, self.capsule)

    def tree_bytes(self, root: ObjectId) -> bytes:
        """Return the listing of one component as it lies in the capsule.

        Raises:
            Failed: `capsule-incomplete`, `controller-disk`.
        """
        return self.source.read(f"trees/{root.hex()}", DEFAULT_TREE_LIMITS.size_bytes_max)

    def tree(self, root: ObjectId) -> Tree:
        """Return the listing of one component, proved to be the tree named `root`.

        Raises:
            Refused: what `decode_tree` raises.
            Failed: `capsule-incomplete`, `controller-disk`.
        """
        return decode_tree(self.tree_bytes(root), root=root)

    def frames(self, root: ObjectId) -> tuple[Frame, ...]:
        """Return the frames of one tree's content stream, in order."""
        return tuple(frame for _, frame in self.placed.get(root, ()))

    def stored_bytes(self, component: Component) -> int:
        """Return how many bytes a host that holds nothing is sent for `component`."""
        return sum(frame.stored_bytes for frame in self.frames(component.tree))

    def frame_chunks(self, root: ObjectId, index: int) -> Iterator[bytes]:
        """Yield the stored bytes of one frame in chunks; they are checked by who receives them.

        Raises:
            Failed: `capsule-incomplete`, `controller-disk`.
        """
        pack, frame = self.placed[root][index]
        return self.source.chunks(f"packs/{pack.id.hex()}.pack", frame.offset, frame.stored_bytes)


def open_payload(path: Path, policy: Policy) -> Payload:
    """Read the metadata of a capsule, in either form, and accept it under `policy`.

    Raises:
        Refused: `container-*`, what `verify_release`, `verify_packing` and `decode_packing` raise.
        Failed: `capsule-incomplete`, `controller-disk`.
    """
    source = open_capsule(path)
    manifest = source.read("capsule.json", RELEASE_LIMITS.size_bytes_max)
    signatures = {
        name.removeprefix("signatures/"): source.read(name, BUNDLE_LIMITS.size_bytes_max)
        for name in source.below("signatures")
        if name.endswith(_SIGNATURE_END)
    }
    verified = verify_release(policy, manifest, _about(signatures, "release"), counter_floor=0)
    packing_raw = source.read("packing.json", PACKING_LIMITS.size_bytes_max)
    verify_packing(policy, packing_raw, verified.capsule, _about(signatures, "packing"))
    packing = decode_packing(packing_raw)
    for component in verified.release.components:
        if component.content_bytes and component.tree not in packing.contents:
            raise Refused(
                "packing-inconsistent",
                "a component's content is not packed",
                expected=f"the tree of {component.name}",
                where=f"{path}: packing.json",
            )
    return Payload(
        source=source,
        manifest=manifest,
        signatures=signatures,
        packing_raw=packing_raw,
        packing=packing,
        release=verified.release,
        capsule=verified.capsule,
        placed={
            root: tuple((pack, frame) for pack in content.packs for frame in pack.frames)
            for root, content in packing.contents.items()
        },
    )


def _about(signatures: Mapping[str, bytes], subject: str) -> dict[str, bytes]:
    return {name: raw for name, raw in signatures.items() if name.startswith(f"{subject}-")}
