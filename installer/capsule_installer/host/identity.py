"""The node key: made on the host, private to it, and what signs everything the host says.

It is neither the SSH host key nor a credential of the service. Losing it means enrolling again;
whoever reads it can speak for this host, which only the controller's copies then make evident.
"""

from typing import TYPE_CHECKING, Final

from capsule_installer.host.layout import Layout
from capsule_installer.system.disk import Disk, FileKind
from capsule_installer.system.fsops import publish_once
from capsule_manifest.errors import Failed, Refused
from capsule_manifest.keys import PublicKey, public_key

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

__all__ = ["NodeSigner", "load_node_key", "make_node_key", "node_key_path", "require_node_key"]

_KEY_BYTES_MAX: Final = 4096


class NodeSigner:
    """Sign as this node. Satisfies `capsule_manifest.keys.Signer`."""

    def __init__(self, private: "EllipticCurvePrivateKey") -> None:
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        self._private = private
        spki = private.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        self._public = public_key(spki, "node key")

    @property
    def public(self) -> PublicKey:
        """Return the public half."""
        return self._public

    def sign(self, message: bytes) -> bytes:
        """Return the DER ECDSA P-256 SHA-256 signature over `message`."""
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
        from cryptography.hazmat.primitives.hashes import SHA256

        return self._private.sign(message, ECDSA(SHA256()))


def node_key_path(layout: Layout) -> str:
    """Return where the private key lies."""
    return f"{layout.state}/node.key"


def load_node_key(disk: Disk, layout: Layout) -> NodeSigner | None:
    """Return the node's key, None before enrolment.

    Raises:
        Refused: `node-key-exposed` when others can read it, `key-malformed`.
        Failed: `disk-*`.
    """
    path = node_key_path(layout)
    found = disk.stat(path)
    if found is None:
        return None
    if found.kind is not FileKind.FILE or found.mode & 0o077:
        raise Refused(
            "node-key-exposed",
            "the node's private key is open to others",
            expected="a file with mode 0600",
            got=f"a {found.kind} with mode {found.mode:#o}",
            where=path,
        )
    return _parse(disk.read(path, _KEY_BYTES_MAX), path)


def make_node_key(disk: Disk, layout: Layout) -> NodeSigner:
    """Return the node's key, made now if there is none. Repeating it never makes a second.

    Raises: as `load_node_key`.
    """
    present = load_node_key(disk, layout)
    if present is not None:
        return present
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    private = generate_private_key(SECP256R1())
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    publish_once(disk, node_key_path(layout), pem, 0o600)
    # Not `private`: had somebody else won, his key would be the node's.
    return require_node_key(disk, layout)


def require_node_key(disk: Disk, layout: Layout) -> NodeSigner:
    """Return the node's key.

    Raises:
        Failed: `host-not-enrolled` before enrolment; otherwise as `load_node_key`.
    """
    signer = load_node_key(disk, layout)
    if signer is None:
        raise Failed("host-not-enrolled", "the host has no node key", where=node_key_path(layout))
    return signer


def _parse(pem: bytes, path: str) -> NodeSigner:
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        private = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as error:
        raise Refused("key-malformed", "the node's key can't be read", where=path) from error
    if not isinstance(private, EllipticCurvePrivateKey) or not isinstance(private.curve, SECP256R1):
        raise Refused(
            "key-malformed",
            "the node's key is of the wrong kind",
            expected="ECDSA P-256",
            where=path,
        )
    return NodeSigner(private)
