"""Capsules whose signer is hostile or broken: everything is signed, and something in it is wrong.

What a signature proves is who said it. These capsules pass that check, so that the later ones are
reached.
"""

import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from blake3 import blake3

from capsule_manifest.digest import CapsuleId, ObjectId, object_id, sha256_text
from capsule_manifest.envelope import IN_TOTO, encode_bundle, sign
from capsule_manifest.keys import Signer
from capsule_manifest.pack import Frame, Pack, encode_frame_table
from capsule_manifest.packing import Content, Packing, decode_packing, encode_packing
from capsule_manifest.release import Release, decode_release, encode_release
from capsule_manifest.statements import ReleaseClaim, packing_statement, release_statement
from capsule_manifest.tree import TREE_HEADER
from support import documents

__all__ = ["Forgery", "raw_directory", "raw_entry", "raw_file", "record"]

_CONTEXT = "capsule tree 1 directory record"


def record(*entries: bytes) -> bytes:
    """Return a directory record of raw entries."""
    return struct.pack(">I", len(entries)) + b"".join(entries)


def raw_entry(kind: int, mode: int, name: bytes, payload: bytes) -> bytes:
    """Return a raw entry with right lengths and anything else."""
    return (
        struct.pack(">HBHB", 4 + len(name) + len(payload), kind, mode, len(name)) + name + payload
    )


def raw_file(name: bytes, content: bytes = b"x", mode: int = 0o644) -> bytes:
    """Return a raw file entry."""
    return raw_entry(1, mode, name, struct.pack(">Q32s", len(content), object_id(content)))


def raw_directory(name: bytes, child: bytes) -> bytes:
    """Return a raw directory entry that names the record `child`."""
    return raw_entry(2, 0o755, name, blake3(child, derive_key_context=_CONTEXT).digest())


class Forgery:
    """A capsule directory that is changed and signed again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.release: Release = decode_release((folder / "capsule.json").read_bytes())
        self.packing: Packing = decode_packing((folder / "packing.json").read_bytes())

    def replace_tree(self, name: str, *records: bytes) -> None:
        """Give a component a listing of raw records, the root's first."""
        root = ObjectId(blake3(records[0], derive_key_context=_CONTEXT).digest())
        old = self.release.component(name).tree
        (self.folder / "trees" / root.hex()).write_bytes(TREE_HEADER + b"".join(records))
        (self.folder / "trees" / old.hex()).unlink()
        self._change(name, tree=root)
        contents = dict(self.packing.contents)
        contents[root] = contents.pop(old)
        self.packing = replace(self.packing, contents=contents)

    def replace_frame(self, name: str, stored: bytes, content: bytes) -> None:
        """Give a component a single pack with one frame that is described as right."""
        root = self.release.component(name).tree
        frame = Frame(
            offset=0,
            stored_bytes=len(stored),
            content_bytes=len(content),
            codec="zstd",
            stored_digest=object_id(stored),
            content_digest=object_id(content),
        )
        raw = stored + encode_frame_table([frame])
        for pack in self.packing.contents[root].packs:
            (self.folder / "packs" / f"{pack.id.hex()}.pack").unlink()
        made = Pack(id=object_id(raw), size_bytes=len(raw), frames=(frame,))
        (self.folder / "packs" / f"{made.id.hex()}.pack").write_bytes(raw)
        self._change(name, content_bytes=len(content))
        contents = {
            **self.packing.contents,
            root: Content(stream_bytes=len(content), packs=(made,)),
        }
        self.packing = replace(self.packing, contents=contents)

    def sign(
        self,
        *signers: Signer,
        manifest: bytes | None = None,
        packing: bytes | None = None,
        claim: ReleaseClaim | None = None,
    ) -> CapsuleId:
        """Write both documents, or these bytes instead, and new signatures; return the id."""
        raw = encode_release(self.release) if manifest is None else manifest
        capsule = CapsuleId(sha256_text(raw))
        packed = (
            encode_packing(replace(self.packing, capsule=capsule)) if packing is None else packing
        )
        (self.folder / "capsule.json").write_bytes(raw)
        (self.folder / "packing.json").write_bytes(packed)
        self._write_signatures(
            signers or (documents.RELEASE_KEY,),
            release=release_statement(claim or self._claim(capsule)),
            packing=packing_statement(packed, capsule),
        )
        return capsule

    def _claim(self, capsule: CapsuleId) -> ReleaseClaim:
        return ReleaseClaim(
            capsule=capsule,
            product=self.release.product,
            version=self.release.version,
            release_counter=self.release.release_counter,
        )

    def _write_signatures(self, signers: Sequence[Signer], **statements: bytes) -> None:
        for path in (self.folder / "signatures").iterdir():
            path.unlink()
        for signer in signers:
            for about, statement in statements.items():
                bundle = encode_bundle(sign(statement, payload_type=IN_TOTO, signer=signer))
                name = f"{about}-{signer.public.short}.sigstore.json"
                (self.folder / "signatures" / name).write_bytes(bundle)

    def _change(self, name: str, *, tree: ObjectId | None = None, content_bytes: int = -1) -> None:
        components = tuple(
            replace(
                item,
                tree=tree or item.tree,
                content_bytes=item.content_bytes if content_bytes < 0 else content_bytes,
            )
            if item.name == name
            else item
            for item in self.release.components
        )
        self.release = replace(self.release, components=components)
