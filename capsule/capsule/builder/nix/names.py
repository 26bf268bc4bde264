"""How Nix spells store paths and digests.

Source: Nix manual, "Store Path", "Nix32 Encoding".
"""

import base64
import binascii
import re
from typing import Final

from capsule_manifest.errors import Refused
from capsule_manifest.paths import escape

__all__ = ["KEY", "STORE", "STORE_NAME", "decode_sha256", "encode_nix32", "store_name"]

STORE: Final = "/nix/store"
"""The only store folder: a closure made for another one has that name in its programs."""

STORE_NAME: Final = re.compile(r"[0-9abcdfghijklmnpqrsvwxyz]{32}-[0-9a-zA-Z+_?=.-]{1,211}")
"""The name of a store path in its folder: 160 bits in Nix's base 32, and a name for people."""

KEY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}:[A-Za-z0-9+/]{43}=")
"""A public key as Nix writes it: a name, and 32 bytes in base 64."""

_ALPHABET: Final = "0123456789abcdfghijklmnpqrsvwxyz"
_DIGEST_BYTES: Final = 32
_HEX: Final = re.compile(r"[0-9a-f]{64}")


def store_name(path: str, where: str) -> str:
    """Return the name of `path`, a store path in full.

    Raises:
        Refused: `narinfo-malformed`.
    """
    folder, _, name = path.rpartition("/")
    if folder != STORE or not STORE_NAME.fullmatch(name):
        raise Refused(
            "narinfo-malformed", "this is no store path",
            expected=f"{STORE}/<32 characters>-<name>", got=escape(path), where=where,
        )  # fmt: skip
    return name


def encode_nix32(raw: bytes) -> str:
    """Return bytes in Nix's base 32, most significant digit first."""
    value = int.from_bytes(raw, "little")
    digits = (len(raw) * 8 + 4) // 5
    return "".join(_ALPHABET[value >> (5 * place) & 31] for place in reversed(range(digits)))


def decode_sha256(text: str, where: str) -> str:
    """Return a SHA-256 as hex. `text` is `sha256:` and base 16 or 32, or `sha256-` and base 64.

    Raises:
        Refused: `narinfo-malformed` for another algorithm or spelling.
    """
    raw = None
    if text.startswith("sha256-"):
        raw = _base64(text.removeprefix("sha256-"))
    elif text.startswith("sha256:"):
        rest = text.removeprefix("sha256:")
        raw = bytes.fromhex(rest) if _HEX.fullmatch(rest) else _nix32(rest)
    if raw is None or len(raw) != _DIGEST_BYTES:
        raise Refused(
            "narinfo-malformed", "this is no SHA-256", expected="sha256:<52 digits of base 32>",
            got=escape(text), where=where,
        )  # fmt: skip
    return raw.hex()


def _base64(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def _nix32(text: str) -> bytes | None:
    if len(text) != (_DIGEST_BYTES * 8 + 4) // 5 or not set(text) <= set(_ALPHABET):
        return None
    value = 0
    for digit in text:
        value = value << 5 | _ALPHABET.index(digit)
    # The first digit has bits to spare; another spelling of the same digest is none.
    return value.to_bytes(_DIGEST_BYTES, "little") if value >> (_DIGEST_BYTES * 8) == 0 else None
