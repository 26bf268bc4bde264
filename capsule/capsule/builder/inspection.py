"""What a capsule says of itself, for people: read strictly, and trusted no more than its bearer.

No signature is checked here and no content is hashed, so it is quick and needs no policy. Whoever
shows this says so; `verify` is what decides.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

from capsule.builder.opened import OpenCapsule
from capsule_manifest.digest import CapsuleId, ObjectId, sha256_text
from capsule_manifest.envelope import BUNDLE_LIMITS, decode_bundle
from capsule_manifest.errors import Refused
from capsule_manifest.keys import b64decode
from capsule_manifest.packing import PACKING_LIMITS, Content, Pack, Packing, decode_packing
from capsule_manifest.release import RELEASE_LIMITS, Component, Release, capsule_id, decode_release
from capsule_manifest.statements import read_packing_statement, read_release_statement
from capsule_manifest.tree import Tree, TreeLimits, decode_tree

__all__ = ["Inspection", "SignatureFile", "component_tree", "inspect_capsule"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SignatureFile:
    """One signature file. `key` is the id that it claims; None if it names no key.

    `problem` is empty for a file that speaks of this capsule's own document; that the signature is
    right, or the key anybody's, it does not say.
    """

    file: str
    subject: str
    key: str | None
    problem: str

    @property
    def key_short(self) -> str:
        """Return the key as `PublicKey.short` writes it, as far as the claim can be read."""
        if self.key is None:
            return "none"
        try:
            return b64decode(self.key, self.file).hex()[:8]
        except Refused:
            return self.key[:8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """A capsule's documents, read and not verified."""

    capsule: CapsuleId
    release: Release
    packing: Packing
    signatures: tuple[SignatureFile, ...]
    size_bytes: int
    """Of all members together, as they lie on the disk."""

    @property
    def content_bytes(self) -> int:
        """Return the size of the content, trees that components share counted once."""
        roots = {component.tree: component for component in self.release.components}
        return sum(component.content_bytes for component in roots.values())

    @property
    def packs(self) -> Mapping[ObjectId, Pack]:
        """Return the distinct packs."""
        packs = chain.from_iterable(content.packs for content in self.packing.contents.values())
        return {pack.id: pack for pack in packs}

    def packed_bytes(self, component: Component) -> int:
        """Return what the packs of a component take."""
        content = self.packing.contents.get(component.tree, Content(stream_bytes=0, packs=()))
        return sum(pack.size_bytes for pack in content.packs)


def inspect_capsule(source: OpenCapsule) -> Inspection:
    """Read a capsule's documents.

    Raises:
        Refused: what `decode_release` and `decode_packing` raise; `packing-inconsistent` when the
            two speak of different capsules.
        Failed: `capsule-incomplete`, `controller-disk`.
    """
    manifest = source.read("capsule.json", RELEASE_LIMITS.size_bytes_max)
    raw_packing = source.read("packing.json", PACKING_LIMITS.size_bytes_max)
    release = decode_release(manifest)
    packing = decode_packing(raw_packing)
    capsule = capsule_id(manifest)
    if packing.capsule != capsule:
        raise Refused(
            "packing-inconsistent",
            "packing.json packs another capsule",
            expected=capsule,
            got=packing.capsule,
            where=source.path,
        )
    documents = {"release": str(capsule), "packing": sha256_text(raw_packing)}
    return Inspection(
        capsule=capsule,
        release=release,
        packing=packing,
        signatures=tuple(
            _signature(source, name, documents) for name in source.below("signatures")
        ),
        size_bytes=sum(source.size(name) for name in source.members),
    )


def component_tree(source: OpenCapsule, component: Component) -> Tree:
    """Read the listing of a component and prove that it is the one that the manifest names.

    Raises:
        Refused: what `decode_tree` raises.
        Failed: `capsule-incomplete`, `controller-disk`.
    """
    raw = source.read(f"trees/{component.tree.hex()}", TreeLimits().size_bytes_max)
    return decode_tree(raw, root=component.tree)


def _signature(source: OpenCapsule, name: str, documents: Mapping[str, str]) -> SignatureFile:
    """Describe a signature file; one that can't be read must not hide the others."""
    file = name.removeprefix("signatures/")
    subject = file.partition("-")[0]
    key: str | None = None
    problem = ""
    try:
        envelope = decode_bundle(source.read(name, BUNDLE_LIMITS.size_bytes_max), where=name)
        if envelope is not None:
            key = envelope.keyid
            problem = _problem(subject, envelope.payload, name, documents)
    except Refused as error:
        problem = str(error)
    return SignatureFile(file=file, subject=subject, key=key, problem=problem)


def _problem(subject: str, payload: bytes, where: str, documents: Mapping[str, str]) -> str:
    if subject == "release":
        named: str = read_release_statement(payload, where=where).capsule
    elif subject == "packing":
        named = read_packing_statement(payload, where=where).packing
    else:
        return "is about neither the release nor its packing"
    return "" if named == documents[subject] else f"is about another {subject}: {named}"
