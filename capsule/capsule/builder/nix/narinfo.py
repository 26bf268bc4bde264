"""Read what a binary cache says about a store path, and check who signed that.

A signature is over path, digest, size and references of the uncompressed archive: nothing else in
the document is vouched for, and nothing else is relied on but to find the archive.

Source: Nix manual, "Serving a Nix store via HTTP", "Signing and verifying store paths".
"""

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from capsule.builder.nix.names import (
    KEY,
    STORE,
    STORE_NAME,
    decode_sha256,
    encode_nix32,
    store_name,
)
from capsule_manifest.errors import Refused
from capsule_manifest.paths import escape

__all__ = ["NARINFO_BYTES_MAX", "NarInfo", "decode_key", "decode_narinfo", "verify_narinfo"]

NARINFO_BYTES_MAX: Final = 1024 * 1024

_NAR_BYTES_MAX: Final = 2**53 - 1
_COMPRESSIONS: Final = ("none", "xz", "zstd")
_NEEDED: Final = ("StorePath", "URL", "NarHash", "NarSize")
# No scheme, no way up, no query: the archive lies below the cache that named it.
_URL: Final = re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._+=/-]{0,299}")
_SIZE: Final = re.compile(r"[1-9][0-9]{0,15}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NarInfo:
    """One path of a cache. `nar_sha256` is hex and of the archive uncompressed, as is the size.

    `references` are names of store paths, sorted, the path itself among them if it names itself.
    """

    name: str
    url: str
    compression: str
    nar_sha256: str
    nar_bytes: int
    references: tuple[str, ...]
    signatures: tuple[str, ...]

    @property
    def fingerprint(self) -> bytes:
        """Return the bytes that a signature is over."""
        digest = encode_nix32(bytes.fromhex(self.nar_sha256))
        references = ",".join(f"{STORE}/{name}" for name in self.references)
        return f"1;{STORE}/{self.name};sha256:{digest};{self.nar_bytes};{references}".encode()


def decode_narinfo(raw: bytes, *, where: str) -> NarInfo:
    """Check the bytes of a `.narinfo`. Fields that are not known are ignored, as Nix does.

    Raises:
        Refused: `narinfo-malformed`.
    """
    fields, signatures = _fields(raw, where)
    for name in _NEEDED:
        if name not in fields:
            raise _malformed("a field is missing", name, "nothing", where)
    compression = fields.get("Compression", "bzip2")  # Nix's own default, of old
    if compression not in _COMPRESSIONS:
        raise _malformed(
            "the compression is not known", ", ".join(_COMPRESSIONS), compression, where
        )
    url = fields["URL"]
    if not _URL.fullmatch(url):
        raise _malformed("the address is no path below the cache", "nar/…", url, where)
    size = fields["NarSize"]
    if not _SIZE.fullmatch(size) or int(size) > _NAR_BYTES_MAX:
        raise _malformed("the size is wrong", f"1 to {_NAR_BYTES_MAX}", size, where)
    return NarInfo(
        name=store_name(fields["StorePath"], where),
        url=url,
        compression=compression,
        nar_sha256=decode_sha256(fields["NarHash"], where),
        nar_bytes=int(size),
        references=_references(fields.get("References", ""), where),
        signatures=tuple(signatures),
    )


def decode_key(text: str) -> tuple[str, bytes]:
    """Return the name and the 32 bytes of a public key that matches `KEY`."""
    assert KEY.fullmatch(text), "checked where keys are written"
    name, _, encoded = text.partition(":")
    return name, base64.b64decode(encoded)


def verify_narinfo(info: NarInfo, keys: Iterable[str], *, where: str) -> None:
    """Refuse a path that none of `keys` signed.

    Raises:
        Refused: `nix-signature-missing`; `nix-signature-invalid` for a wrong one by a known name.
    """
    trusted = dict(decode_key(key) for key in keys)
    named = [signature.partition(":") for signature in info.signatures]
    known = [(name, encoded) for name, _, encoded in named if name in trusted]
    if not known:
        raise Refused(
            "nix-signature-missing", "no pinned key signed a store path",
            expected=f"a signature by {', '.join(sorted(trusted))}",
            got=", ".join(escape(name) for name, _, _ in named) or "none",
            where=f"{where}: {info.name}",
        )  # fmt: skip
    if not any(_is_signed(info, trusted[name], encoded) for name, encoded in known):
        raise Refused(
            "nix-signature-invalid", "the signature of a store path is wrong",
            expected=f"a signature by {known[0][0]} over path, digest, size and references",
            got="one over something else", where=f"{where}: {info.name}",
        )  # fmt: skip


def _is_signed(info: NarInfo, key: bytes, encoded: str) -> bool:
    try:
        signature = base64.b64decode(encoded, validate=True)
        Ed25519PublicKey.from_public_bytes(key).verify(signature, info.fingerprint)
    except (binascii.Error, ValueError, InvalidSignature):
        return False
    return True


def _fields(raw: bytes, where: str) -> tuple[Mapping[str, str], list[str]]:
    if len(raw) > NARINFO_BYTES_MAX:
        raise _malformed("it is too large", f"{NARINFO_BYTES_MAX} bytes", str(len(raw)), where)
    try:
        lines = raw.decode("ascii").removesuffix("\n").split("\n")
    except UnicodeDecodeError:
        raise _malformed("it is not ASCII", "ASCII", "other bytes", where) from None
    fields: dict[str, str] = {}
    signatures = []
    for line in lines:
        name, separator, value = line.partition(": ")
        if not separator and line.endswith(":"):
            name = line.removesuffix(":")
        elif not separator:
            raise _malformed("a line is no field", "NAME: VALUE", line, where)
        if name == "Sig":
            signatures.append(value)
        elif name in fields:
            raise _malformed("a field is given twice", "each once", name, where)
        else:
            fields[name] = value
    return fields, signatures


def _references(text: str, where: str) -> tuple[str, ...]:
    names = text.split(" ") if text else []
    for name in names:
        if not STORE_NAME.fullmatch(name):
            raise _malformed("a reference is no store path", "a name in the store", name, where)
    if len(set(names)) != len(names):
        raise _malformed("a reference is given twice", "each once", text, where)
    # The order is not part of what is signed: Nix sorts before it signs.
    return tuple(sorted(names))


def _malformed(what: str, expected: str, got: str, where: str) -> Refused:
    return Refused("narinfo-malformed", what, expected=expected, got=escape(got), where=where)
