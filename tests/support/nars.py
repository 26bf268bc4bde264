"""Write Nix archives and binary caches without Nix: whole, and damaged at one named place."""

import base64
import hashlib
import lzma
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import zstandard
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from capsule.builder.nix.names import encode_nix32
from capsule.builder.nix.nar import read_nar
from capsule_manifest.tree_entry import EntryKind

__all__ = [
    "CacheKey",
    "Link",
    "Node",
    "Program",
    "StorePath",
    "nar",
    "node_of",
    "store_path_name",
    "word",
]


@dataclass(frozen=True)
class Program:
    """A file that may run."""

    content: bytes


@dataclass(frozen=True)
class Link:
    """A symbolic link."""

    target: str


Node = bytes | Program | Link | Mapping[str, "Node"]


def word(raw: bytes) -> bytes:
    """Return one string of the format: length, bytes, padding."""
    return struct.pack("<Q", len(raw)) + raw + bytes(-len(raw) % 8)


def nar(node: Node) -> bytes:
    """Return the archive of a store path."""
    return word(b"nix-archive-1") + node_words(node)


def node_words(node: Node) -> bytes:
    """Return the part of an archive that describes one path."""
    match node:
        case bytes():
            inner = [b"regular", b"contents", node]
        case Program():
            inner = [b"regular", b"executable", b"", b"contents", node.content]
        case Link():
            inner = [b"symlink", b"target", node.target.encode()]
        case _:
            return folder_words(
                (name.encode(), node_words(node[name])) for name in sorted(node, key=str.encode)
            )
    return b"".join(map(word, [b"(", b"type", *inner, b")"]))


def folder_words(entries: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return a folder of entries as they are given: in any order, by any name."""
    parts = [word(b"("), word(b"type"), word(b"directory")]
    for name, inner in entries:
        parts += [*map(word, [b"entry", b"(", b"name", name, b"node"]), inner, word(b")")]
    return b"".join([*parts, word(b")")])


def node_of(raw: bytes) -> Node:
    """Return what an archive holds, by the reader of the product."""
    root: dict[str, Node] = {}
    for entry in read_nar(BytesIO(raw), len(raw), where="test"):
        node: Node
        match entry.kind:
            case EntryKind.DIRECTORY:
                node = {}
            case EntryKind.LINK:
                node = Link(entry.target or "")
            case EntryKind.FILE:
                content = raw[entry.offset : entry.offset + entry.size_bytes]
                node = Program(content) if entry.is_executable else content
        if not entry.path and not isinstance(node, dict):
            return node
        if entry.path:
            *folders, name = entry.path.split("/")
            parent = root
            for folder in folders:
                inner = parent[folder]
                assert isinstance(inner, dict)
                parent = inner
            parent[name] = node
    return root


def store_path_name(label: str) -> str:
    """Return a name for a store path; the same label gives the same name."""
    return f"{encode_nix32(hashlib.sha256(label.encode()).digest()[:20])}-{label}"


class CacheKey:
    """A key that signs store paths."""

    def __init__(self, name: str = "cache.test-1", seed: int = 1) -> None:
        self.name = name
        self._private = Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32)

    @property
    def public(self) -> str:
        """Return the public half as Nix writes it."""
        raw = self._private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        return f"{self.name}:{base64.b64encode(raw).decode()}"

    def sign(self, fingerprint: bytes) -> str:
        """Return a signature as Nix writes it."""
        return f"{self.name}:{base64.b64encode(self._private.sign(fingerprint)).decode()}"


@dataclass(kw_only=True)
class StorePath:
    """One store path of a cache; a field that is changed is a lie of the cache."""

    label: str
    node: Node
    references: list[str] = field(default_factory=list)
    compression: str = "none"
    key: CacheKey | None = None

    @property
    def name(self) -> str:
        """Return its name in the store."""
        return store_path_name(self.label)

    def narinfo(self) -> bytes:
        """Return what the cache says of it."""
        raw = nar(self.node)
        digest = encode_nix32(hashlib.sha256(raw).digest())
        path = f"/nix/store/{self.name}"
        lines = [
            f"StorePath: {path}",
            f"URL: {self.url}",
            f"Compression: {self.compression}",
            f"NarHash: sha256:{digest}",
            f"NarSize: {len(raw)}",
            f"References: {' '.join(self.references)}",
        ]
        if self.key is not None:
            references = ",".join(f"/nix/store/{name}" for name in sorted(self.references))
            fingerprint = f"1;{path};sha256:{digest};{len(raw)};{references}"
            lines.append(f"Sig: {self.key.sign(fingerprint.encode())}")
        return ("\n".join(lines) + "\n").encode()

    @property
    def url(self) -> str:
        """Return where its archive is below the cache."""
        suffix = {"none": "", "xz": ".xz", "zstd": ".zst"}[self.compression]
        return f"nar/{self.name[:32]}.nar{suffix}"

    def packed(self) -> bytes:
        """Return the archive as the cache keeps it."""
        raw = nar(self.node)
        match self.compression:
            case "xz":
                return lzma.compress(raw)
            case "zstd":
                return zstandard.compress(raw)
            case _:
                return raw

    def write(self, folder: Path) -> None:
        """Put it into a cache."""
        (folder / "nar").mkdir(parents=True, exist_ok=True)
        (folder / "nix-cache-info").write_text("StoreDir: /nix/store\n")
        (folder / f"{self.name[:32]}.narinfo").write_bytes(self.narinfo())
        (folder / self.url).write_bytes(self.packed())
