"""Private keys in files: made, read, and refused when others could read them too."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    SECP256R1,
    EllipticCurvePrivateKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from capsule.durable import make_folder, publish_once
from capsule_manifest.errors import Failed, Refused
from capsule_manifest.keys import PublicKey, public_key

__all__ = ["FileSigner", "OwnedKey", "generate_key", "load_public_key", "load_signer"]

_KEY_BYTES_MAX: Final = 16 * 1024
_OWNER_PREFIX: Final = "# owner: "


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedKey:
    """A public key and who owns it, as a `.pub` file says."""

    key: PublicKey
    owner: str


class FileSigner:
    """A `Signer` that holds a private key read from a file."""

    def __init__(self, private: EllipticCurvePrivateKey) -> None:
        self._private = private
        self._public = _public_of(private)

    def __repr__(self) -> str:
        """Show the public half only."""
        return f"FileSigner({self._public.short})"

    @property
    def public(self) -> PublicKey:
        """Return the public half."""
        return self._public

    def sign(self, message: bytes) -> bytes:
        """Return the DER ECDSA P-256 SHA-256 signature over `message`."""
        return self._private.sign(message, ECDSA(SHA256()))


def generate_key(path: Path, *, owner: str) -> OwnedKey:
    """Make a key: `path` (private, 0600) and `path.pub`. An existing file is never overwritten.

    A missing folder is made, for this user alone.

    Raises:
        Refused: `key-exists`.
        Failed: `controller-disk`.
    """
    if not owner or not owner.isprintable() or len(owner) > 100:
        raise Refused("key-malformed", "an owner's name is not one printable line", got=owner[:100])
    private = generate_private_key(SECP256R1())
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    public = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    public_path = path.with_name(path.name + ".pub")
    make_folder(path.parent)
    for target, data, mode in (
        (path, pem, 0o600),
        (public_path, f"{_OWNER_PREFIX}{owner}\n".encode() + public, 0o644),
    ):
        if not publish_once(target, data, mode=mode):
            raise Refused("key-exists", "a key file exists already", where=target)
    return OwnedKey(key=_public_of(private), owner=owner)


def load_signer(path: Path) -> FileSigner:
    """Read a private key that only its user can read.

    Raises:
        Refused: `key-exposed`, `key-malformed`.
        Failed: `key-missing`.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as stream:
            mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
            raw = stream.read(_KEY_BYTES_MAX)
    except OSError as error:
        raise Failed("key-missing", "a private key can't be read", where=path) from error
    if mode & 0o077:
        raise Refused(
            "key-exposed",
            "others can read a private key",
            expected="mode 0600",
            got=f"{mode:04o}",
            where=path,
        )
    try:
        private = load_pem_private_key(raw, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        # The cause is left out: its text may quote the file.
        raise Refused("key-malformed", "a private key can't be read", where=path) from None
    if not isinstance(private, EllipticCurvePrivateKey) or not isinstance(private.curve, SECP256R1):
        raise Refused(
            "key-malformed", "a key is of the wrong kind", expected="ECDSA P-256", where=path
        )
    return FileSigner(private)


def load_public_key(path: Path) -> OwnedKey:
    """Read a `.pub` file that `generate_key` wrote.

    Raises:
        Refused: `key-malformed`.
        Failed: `key-missing`.
    """
    try:
        raw = path.read_bytes()[:_KEY_BYTES_MAX]
    except OSError as error:
        raise Failed("key-missing", "a public key can't be read", where=path) from error
    first, _, rest = raw.partition(b"\n")
    try:
        line = first.decode()
        key = load_pem_public_key(rest)
    except (ValueError, UnsupportedAlgorithm):
        raise Refused("key-malformed", "a public key can't be read", where=path) from None
    if not line.startswith(_OWNER_PREFIX):
        raise Refused(
            "key-malformed",
            "a public key doesn't say whose it is",
            expected=f"a first line `{_OWNER_PREFIX}NAME`",
            where=path,
        )
    spki = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return OwnedKey(key=public_key(spki, str(path)), owner=line.removeprefix(_OWNER_PREFIX).strip())


def _public_of(private: EllipticCurvePrivateKey) -> PublicKey:
    spki = private.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return public_key(spki, "private key")
