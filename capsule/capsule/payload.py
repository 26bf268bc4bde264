"""A capsule directory as a source of what hosts lack: metadata at once, frames on demand.

Trust is decided here too, before anything is sent: hosts decide again for themselves, but what a
controller would not accept it does not offer. At most one chunk of a frame is in memory.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from capsule.durable import read_bounded
from capsule_manifest.digest import CapsuleId, ObjectId
from capsule_manifest.envelope import BUNDLE_LIMITS
from capsule_manifest.errors import Failed, Refused
from capsule_manifest.packing import PACKING_LIMITS, Frame, Packing, decode_packing
from capsule_manifest.policy import Policy
from capsule_manifest.release import RELEASE_LIMITS, Component, Release, generation_name
from capsule_manifest.tree import Tree, TreeLimits, decode_tree
from capsule_manifest.trust import verify_packing, verify_release

__all__ = ["Payload", "open_payload"]

_CHUNK_BYTES: Final = 1024 * 1024
_SIGNATURES_MAX: Final = 256
_TREE_BYTES_MAX: Final = TreeLimits().size_bytes_max


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    pack: Path
    frame: Frame


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """A capsule whose signatures, counter and product were accepted under one policy."""

    folder: Path
    manifest: bytes
    signatures: Mapping[str, bytes]
    packing_raw: bytes
    packing: Packing
    release: Release
    capsule: CapsuleId

    @property
    def generation(self) -> str:
        """Return the name of this capsule's generation on hosts."""
        return generation_name(self.release.release_counter, self.capsule)

    def tree_bytes(self, root: ObjectId) -> bytes:
        """Return the listing of one component as it lies in the capsule.

        Raises:
            Failed: `capsule-incomplete`, `controller-disk`.
        """
        path = self.folder / "trees" / root.hex()
        raw = read_bounded(path, _TREE_BYTES_MAX)
        if raw is None:
            raise _incomplete(path)
        return raw

    def tree(self, root: ObjectId) -> Tree:
        """Return the listing of one component, proved to be the tree named `root`.

        Raises:
            Refused: what `decode_tree` raises.
            Failed: `capsule-incomplete`, `controller-disk`.
        """
        return decode_tree(self.tree_bytes(root), root=root)

    def frames(self, root: ObjectId) -> tuple[Frame, ...]:
        """Return the frames of one tree's content stream, in order."""
        return tuple(placed.frame for placed in self._placed(root))

    def stored_bytes(self, component: Component) -> int:
        """Return how many bytes a host that holds nothing is sent for `component`."""
        return sum(frame.stored_bytes for frame in self.frames(component.tree))

    def frame_chunks(self, root: ObjectId, index: int) -> Iterator[bytes]:
        """Yield the stored bytes of one frame in chunks; they are checked by who receives them.

        Raises:
            Failed: `capsule-incomplete`, `controller-disk`.
        """
        placed = self._placed(root)[index]
        try:
            descriptor = os.open(placed.pack, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise _incomplete(placed.pack) from None
        except OSError as error:
            raise Failed("controller-disk", "a pack can't be read", where=placed.pack) from error
        try:
            offset, end = placed.frame.offset, placed.frame.offset + placed.frame.stored_bytes
            while offset < end:
                chunk = os.pread(descriptor, min(_CHUNK_BYTES, end - offset), offset)
                if not chunk:
                    raise _incomplete(placed.pack)
                offset += len(chunk)
                yield chunk
        finally:
            os.close(descriptor)

    def _placed(self, root: ObjectId) -> tuple[_Placed, ...]:
        content = self.packing.contents.get(root)
        if content is None:
            return ()
        return tuple(
            _Placed(pack=self.folder / "packs" / f"{pack.id.hex()}.pack", frame=frame)
            for pack in content.packs
            for frame in pack.frames
        )


def open_payload(folder: Path, policy: Policy) -> Payload:
    """Read a capsule directory's metadata and accept it under `policy`.

    Raises:
        Refused: what `verify_release`, `verify_packing` and `decode_packing` raise.
        Failed: `capsule-incomplete`, `controller-disk`.
    """
    manifest = _read(folder / "capsule.json", RELEASE_LIMITS.size_bytes_max)
    signatures = _signatures(folder / "signatures")
    verified = verify_release(policy, manifest, _about(signatures, "release"), counter_floor=0)
    packing_raw = _read(folder / "packing.json", PACKING_LIMITS.size_bytes_max)
    verify_packing(policy, packing_raw, verified.capsule, _about(signatures, "packing"))
    packing = decode_packing(packing_raw)
    for component in verified.release.components:
        if component.content_bytes and component.tree not in packing.contents:
            raise Refused(
                "packing-inconsistent",
                "a component's content is not packed",
                expected=f"the tree of {component.name}",
                where=folder / "packing.json",
            )
    return Payload(
        folder=folder,
        manifest=manifest,
        signatures=signatures,
        packing_raw=packing_raw,
        packing=packing,
        release=verified.release,
        capsule=verified.capsule,
    )


def _signatures(folder: Path) -> dict[str, bytes]:
    names = sorted(path.name for path in folder.glob("*.sigstore.json"))
    if len(names) > _SIGNATURES_MAX:
        raise Refused(
            "signature-malformed",
            "too many signature files",
            expected=f"at most {_SIGNATURES_MAX}",
            got=len(names),
            where=folder,
        )
    return {name: _read(folder / name, BUNDLE_LIMITS.size_bytes_max) for name in names}


def _about(signatures: Mapping[str, bytes], subject: str) -> dict[str, bytes]:
    return {name: raw for name, raw in signatures.items() if name.startswith(f"{subject}-")}


def _read(path: Path, size_bytes_max: int) -> bytes:
    raw = read_bounded(path, size_bytes_max)
    if raw is None:
        raise _incomplete(path)
    return raw


def _incomplete(path: Path) -> Failed:
    return Failed("capsule-incomplete", "a capsule directory lacks a file", where=path)
