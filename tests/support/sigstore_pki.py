"""The certificates of a loopback Sigstore: a CA with an intermediate, leaves with a proof, a TSA.

Source: RFC 5280; RFC 6962, section 3; Fulcio's certificate profile.
"""

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    SECP256R1,
    SECP384R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = ["Authority", "issue_leaf", "make_authority", "make_tsa", "new_key", "spki"]

FULCIO = "1.3.6.1.4.1.57264.1."
_SCT_LIST = x509.ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
# claim -> (extensions with a bare string, extensions with a DER UTF8String, prefix of the latter)
_CLAIMS = {
    "iss": (("1",), ("8",), ""),
    "event_name": (("2",), ("20",), ""),
    "sha": (("3",), ("13",), ""),
    "workflow": (("4",), (), ""),
    "repository": (("5",), ("12",), "https://github.com/"),
    "ref": (("6",), ("14",), ""),
    "job_workflow_ref": ((), ("9",), "https://github.com/"),
    "runner_environment": ((), ("11",), ""),
    "repository_id": ((), ("15",), ""),
    "repository_owner_id": ((), ("17",), ""),
    "workflow_ref": ((), ("18",), "https://github.com/"),
}
Extensions = list[tuple[x509.ExtensionType, bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """A root and an intermediate with its key."""

    root_key: EllipticCurvePrivateKey
    root: x509.Certificate
    key: EllipticCurvePrivateKey
    intermediate: x509.Certificate


def spki(key: CertificateIssuerPublicKeyTypes) -> bytes:
    """Return the DER SubjectPublicKeyInfo of a public key."""
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def make_authority(name: str, *, start: datetime, usage: x509.ObjectIdentifier) -> Authority:
    """Return a new root and intermediate for one usage, valid for ten years from `start`."""
    root_key, key = generate_private_key(SECP384R1()), generate_private_key(SECP384R1())
    root_name, own_name = _name(name), _name(name + "-intermediate")
    can_sign = (_key_usage(key_cert_sign=True, crl_sign=True), True)
    root = _certificate(
        root_name, root_name, root_key, root_key, start,
        [(x509.BasicConstraints(ca=True, path_length=1), True), can_sign],
    )  # fmt: skip
    intermediate = _certificate(
        own_name, root_name, key, root_key, start,
        [
            (x509.BasicConstraints(ca=True, path_length=0), True),
            can_sign,
            (x509.ExtendedKeyUsage([usage]), False),
        ],
    )  # fmt: skip
    return Authority(root_key=root_key, root=root, key=key, intermediate=intermediate)


def make_tsa(
    authority: Authority, key: EllipticCurvePrivateKey, start: datetime
) -> x509.Certificate:
    """Return the certificate of a time-stamp authority below a root."""
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.TIME_STAMPING])
    return _certificate(
        _name("tsa"), authority.root.subject, key, authority.root_key, start,
        [(_key_usage(digital_signature=True), True), (usage, True)],
    )  # fmt: skip


def issue_leaf(
    authority: Authority,
    public: EllipticCurvePublicKey,
    claims: Mapping[str, object],
    *,
    now: datetime,
    ct_key: EllipticCurvePrivateKey | None,
    minutes: int = 10,
    more_names: tuple[str, ...] = (),
) -> x509.Certificate:
    """Return a code-signing certificate for an identity; without `ct_key` it has no log proof."""
    subject = str(claims.get("email") or claims.get("san") or claims["sub"])
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING])
    signer = authority.key.public_key()
    names = [_general_name(text) for text in (subject, *more_names)]
    extensions: Extensions = [
        (_key_usage(digital_signature=True), True),
        (usage, False),
        (x509.SubjectKeyIdentifier.from_public_key(public), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), False),
        (x509.SubjectAlternativeName(names), True),  # critical, because the subject is empty
        *_claim_extensions(claims),
    ]
    now = now.replace(microsecond=0)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(authority.intermediate.subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + timedelta(minutes=minutes))
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    if ct_key is not None:
        # The proof covers the certificate without itself, so it must be the last extension: taken
        # out again, exactly these bytes are left.
        bare = builder.sign(authority.key, hashes.SHA384()).tbs_certificate_bytes
        proof = _sct_list(ct_key, spki(signer), bare, int(now.timestamp() * 1000))
        builder = builder.add_extension(x509.UnrecognizedExtension(_SCT_LIST, proof), False)
    return builder.sign(authority.key, hashes.SHA384())


def _key_usage(**on: bool) -> x509.KeyUsage:
    """Return a key usage with only the named bits."""
    names = (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment",
        "key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
    )  # fmt: skip
    return x509.KeyUsage(**{name: on.get(name, False) for name in names})


def _der_octets(raw: bytes) -> bytes:
    """Return a DER OCTET STRING."""
    return b"\x04" + _der_length(len(raw)) + raw


def _claim_extensions(claims: Mapping[str, object]) -> Extensions:
    found: Extensions = []
    for claim, (bare, coded, prefix) in _CLAIMS.items():
        if claim not in claims:
            continue
        text = str(claims[claim])
        value = (prefix + text).encode()
        found += [(_extension(number, text.encode()), False) for number in bare]
        found += [
            (_extension(number, b"\x0c" + _der_length(len(value)) + value), False)
            for number in coded
        ]
    return found


def _extension(number: str, value: bytes) -> x509.UnrecognizedExtension:
    return x509.UnrecognizedExtension(x509.ObjectIdentifier(FULCIO + number), value)


def _general_name(text: str) -> x509.GeneralName:
    is_mail = "@" in text and "://" not in text
    return x509.RFC822Name(text) if is_mail else x509.UniformResourceIdentifier(text)


def _der_length(length: int) -> bytes:
    if length < 128:
        return bytes([length])
    raw = length.to_bytes((length.bit_length() + 7) // 8, "big")
    return bytes([0x80 | len(raw)]) + raw


def _sct_list(key: EllipticCurvePrivateKey, issuer: bytes, bare: bytes, time_ms: int) -> bytes:
    entry = hashlib.sha256(issuer).digest() + len(bare).to_bytes(3, "big") + bare
    signed = struct.pack("!BBQH", 0, 0, time_ms, 1) + entry + struct.pack("!H", 0)
    signature = key.sign(signed, ECDSA(hashes.SHA256()))
    log_id = hashlib.sha256(spki(key.public_key())).digest()
    one = struct.pack("!B32sQH", 0, log_id, time_ms, 0)
    one += struct.pack("!BBH", 4, 3, len(signature)) + signature
    return _der_octets(struct.pack("!HH", len(one) + 2, len(one)) + one)


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    key: EllipticCurvePrivateKey,
    issuer_key: EllipticCurvePrivateKey,
    start: datetime,
    extensions: Extensions,
) -> x509.Certificate:
    public, issuer_public = key.public_key(), issuer_key.public_key()
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=3650))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_public), False)
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(issuer_key, hashes.SHA384())


def _name(common_name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "capsule.test"),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


def new_key() -> EllipticCurvePrivateKey:
    """Return a new P-256 key."""
    return generate_private_key(SECP256R1())
