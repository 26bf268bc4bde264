"""DSSE envelopes and Sigstore bundles: how a document and its signature travel.

Two carriers share one pre-authentication encoding. A *bundle* (`application/vnd.dev.sigstore.
bundle.v0.3+json` with public-key material) carries an in-toto statement about a file of the capsule
and is readable by other tools. A *signed record* carries a document of ours whole: a route, an
order, a marker, a receipt.

Reading a carrier decides nothing: `Envelope.verify` with a key that a policy chose does.

Source: DSSE 1.0 (protocol), in-toto Statement v1, Sigstore bundle v0.3.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from capsule_manifest.canonical import JsonValue, Limits, decode, decode_foreign, encode
from capsule_manifest.digest import sha256_text
from capsule_manifest.errors import Refused
from capsule_manifest.fields import Object
from capsule_manifest.keys import KeyId, PublicKey, Signer, b64decode, b64encode

__all__ = [
    "BUNDLE_LIMITS",
    "IN_TOTO",
    "RECORD_LIMITS",
    "Envelope",
    "decode_bundle",
    "decode_record",
    "encode_bundle",
    "encode_record",
    "pre_authentication_encoding",
    "sign",
]

IN_TOTO: Final = "application/vnd.in-toto+json"
BUNDLE_MEDIA_TYPE: Final = "application/vnd.dev.sigstore.bundle.v0.3+json"
BUNDLE_LIMITS: Final = Limits(size_bytes_max=256 * 1024, depth_max=16, values_max=4096)
RECORD_LIMITS: Final = Limits(size_bytes_max=16 * 1024 * 1024, depth_max=8, values_max=4096)


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """One payload under one signature. Nothing in it is trusted before `verify` returned."""

    payload: bytes
    payload_type: str
    keyid: KeyId
    signature: bytes

    @property
    def digest(self) -> str:
        """Return `sha256:<hex>` of the payload; signatures are malleable and name nothing."""
        return sha256_text(self.payload)

    def verify(self, key: PublicKey, *, payload_type: str, where: str) -> bytes:
        """Return the payload if `key` signed it as `payload_type`.

        Raises:
            Refused: `signature-malformed` for another payload type, `key-unknown` when the hint
                names another key, `signature-invalid`.

        Source: DSSE 1.0, "Verifying".
        """
        if self.payload_type != payload_type:
            raise Refused(
                "signature-malformed",
                "an envelope carries another kind of payload",
                expected=payload_type,
                got=self.payload_type,
                where=where,
            )
        if self.keyid != key.keyid:
            raise Refused(
                "key-unknown",
                "an envelope names another key",
                expected=key.keyid,
                got=self.keyid,
                where=where,
            )
        message = pre_authentication_encoding(payload_type, self.payload)
        key.verify(self.signature, message, where)
        return self.payload


def pre_authentication_encoding(payload_type: str, payload: bytes) -> bytes:
    """Return the bytes that are signed. Source: DSSE 1.0, PAE."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def sign(payload: bytes, *, payload_type: str, signer: Signer) -> Envelope:
    """Return `payload` signed by `signer` as `payload_type`."""
    signature = signer.sign(pre_authentication_encoding(payload_type, payload))
    return Envelope(
        payload=payload,
        payload_type=payload_type,
        keyid=signer.public.keyid,
        signature=signature,
    )


def encode_bundle(envelope: Envelope) -> bytes:
    """Return a Sigstore bundle v0.3 with public-key material around an in-toto statement."""
    return encode(
        {
            "mediaType": BUNDLE_MEDIA_TYPE,
            "verificationMaterial": {"publicKey": {"hint": envelope.keyid}},
            "dsseEnvelope": {
                "payload": b64encode(envelope.payload),
                "payloadType": envelope.payload_type,
                "signatures": [{"sig": b64encode(envelope.signature)}],
            },
        }
    )


def decode_bundle(raw: bytes, *, where: str) -> Envelope | None:
    """Read a Sigstore bundle; None when it is keyless (certificate material).

    Raises:
        Refused: `json-*`, `document-invalid`, `signature-malformed`.
    """
    bundle = Object(decode_foreign(raw, limits=BUNDLE_LIMITS, where=where), where)
    media_type = bundle.text("mediaType")
    if media_type != BUNDLE_MEDIA_TYPE:
        raise Refused(
            "signature-malformed",
            "a signature file is not a bundle that can be read",
            expected=BUNDLE_MEDIA_TYPE,
            got=media_type,
            where=where,
        )
    material = bundle.nested("verificationMaterial")
    if not material.has("publicKey"):
        return None
    hint = material.nested("publicKey").text("hint")
    envelope = bundle.nested("dsseEnvelope")
    return _envelope(envelope, KeyId(hint), where, keyid_inside=False)


def encode_record(envelope: Envelope) -> bytes:
    """Return a signed record: canonical JSON of a DSSE envelope with its key id."""
    return encode(_record_value(envelope))


def decode_record(raw: bytes, *, where: str) -> Envelope:
    """Read a signed record; only its canonical spelling is accepted.

    Raises:
        Refused: `json-*`, `document-invalid`, `signature-malformed`.
    """
    record = Object(decode(raw, limits=RECORD_LIMITS, where=where), where)
    envelope = _envelope(record, KeyId(""), where, keyid_inside=True)
    record.end()
    return envelope


def _record_value(envelope: Envelope) -> Mapping[str, JsonValue]:
    return {
        "payload": b64encode(envelope.payload),
        "payloadType": envelope.payload_type,
        "signatures": [{"keyid": envelope.keyid, "sig": b64encode(envelope.signature)}],
    }


def _envelope(source: Object, keyid: KeyId, where: str, *, keyid_inside: bool) -> Envelope:
    def signature(item: Object) -> tuple[KeyId, bytes]:
        named = KeyId(item.text("keyid")) if keyid_inside else keyid
        raw_signature = b64decode(item.text("sig"), where)
        if keyid_inside:
            item.end()
        return named, raw_signature

    signatures = source.items("signatures", signature)
    # One bundle holds one signature, as Sigstore requires; a threshold is several files.
    if len(signatures) != 1:
        raise Refused(
            "signature-malformed",
            "an envelope must have exactly one signature",
            expected=1,
            got=len(signatures),
            where=where,
        )
    named, raw_signature = signatures[0]
    return Envelope(
        payload=b64decode(source.text("payload"), where),
        payload_type=source.text("payloadType"),
        keyid=named,
        signature=raw_signature,
    )
