"""Our keys in the words of TUF: one key signs both the policy and the metadata that carry it."""

import hashlib
from typing import Self

from cryptography.hazmat.primitives.serialization import load_der_public_key
from securesystemslib.signer import Key, SecretsHandler, Signature, SSlibKey
from securesystemslib.signer import Signer as TufSigner

from capsule_manifest.keys import PublicKey, Signer

__all__ = ["MetadataSigner", "tuf_key"]


def tuf_key(key: PublicKey) -> SSlibKey:
    """Return a policy's key as TUF metadata names it; its id is SHA-256 of the DER key in hex."""
    keyid = hashlib.sha256(key.spki).hexdigest()
    return SSlibKey.from_crypto(load_der_public_key(key.spki), keyid=keyid)


class MetadataSigner(TufSigner):
    """Sign TUF metadata with one of our signers."""

    def __init__(self, signer: Signer) -> None:
        self._signer = signer

    @property
    def public_key(self) -> Key:
        """Return the public half in TUF's words."""
        return tuf_key(self._signer.public)

    @classmethod
    def from_priv_key_uri(
        cls, priv_key_uri: str, public_key: Key, secrets_handler: SecretsHandler | None = None
    ) -> Self:
        """Refuse: keys come from files that this program checks, never from an address."""
        raise NotImplementedError(priv_key_uri, public_key, secrets_handler)

    def sign(self, payload: bytes) -> Signature:
        """Return an ECDSA P-256 SHA-256 signature over `payload`."""
        return Signature(self.public_key.keyid, self._signer.sign(payload).hex())
