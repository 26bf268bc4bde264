"""Ways to spoil a keyless bundle or its trusted root: rows of tests and of a page."""

import base64
from collections.abc import Callable
from typing import Any

from support.keyless_world import Bundle, flip

__all__ = ["RAW", "ROOTS", "ROWS", "drop", "entry", "material"]

Change = Callable[[Bundle], object]

V1, V2, BOTH = {1}, {2}, {1, 2}


def material(bundle: Bundle) -> Any:
    return bundle["verificationMaterial"]


def entry(bundle: Bundle) -> Any:
    return material(bundle)["tlogEntries"][0]


def proof(bundle: Bundle) -> Any:
    return entry(bundle)["inclusionProof"]


def envelope(bundle: Bundle) -> Any:
    return bundle["dsseEnvelope"]


def stamps(bundle: Bundle) -> Any:
    return material(bundle)["timestampVerificationData"]["rfc3161Timestamps"]


def put(part: Callable[[Bundle], Any], key: str, value: Any) -> Change:
    """Return a change that sets one value; a function of the old value is called."""

    def change(bundle: Bundle) -> None:
        place = part(bundle)
        place[key] = value(place[key]) if callable(value) else value

    return change


def drop(part: Callable[[Bundle], Any], key: str) -> Change:
    return lambda bundle: part(bundle).pop(key)


def rewrite_payload(old: bytes, new: bytes) -> Change:
    def change(bundle: Bundle) -> None:
        raw = base64.b64decode(envelope(bundle)["payload"])
        assert old in raw
        envelope(bundle)["payload"] = base64.b64encode(raw.replace(old, new)).decode()

    return change


def cut_note(text: str) -> str:
    """Return a checkpoint without its signature lines."""
    return text[: text.index("\n\n") + 2]


def old_form(bundle: Bundle) -> None:
    bundle["mediaType"] = "application/vnd.dev.sigstore.bundle+json;version=0.2"
    certificate = material(bundle).pop("certificate")
    material(bundle)["x509CertificateChain"] = {"certificates": [certificate]}


def chain(bundle: Bundle) -> None:
    """Give the certificate as the older formats did, under the name of the newest."""
    material(bundle)["x509CertificateChain"] = {
        "certificates": [material(bundle).pop("certificate")]
    }


def file_signature(bundle: Bundle) -> None:
    signature = envelope(bundle)["signatures"][0]["sig"]
    del bundle["dsseEnvelope"]
    digest = {"algorithm": "SHA2_256", "digest": base64.b64encode(bytes(32)).decode()}
    bundle["messageSignature"] = {"messageDigest": digest, "signature": signature}


BAD_DER = base64.b64encode(b"\x30\x03\x02\x01\x01").decode()
ESCAPES = "\x1b[2J\r\nerror: all is well" + "x" * 5000


def whole(bundle: Bundle) -> Any:
    return bundle


# name: versions of the log, change, error id
ROWS: dict[str, tuple[set[int], Change, str]] = {
    "the counter is raised": (
        BOTH,
        rewrite_payload(b'"releaseCounter":1', b'"releaseCounter":9'),
        "keyless-unproved",
    ),
    "the product is another": (
        BOTH,
        rewrite_payload(b"acme/hello", b"acme/other"),
        "keyless-unproved",
    ),
    "the payload is empty": (BOTH, put(envelope, "payload", ""), "keyless-unproved"),
    "the payload's type is another": (
        BOTH,
        put(envelope, "payloadType", "text/plain"),
        "keyless-unproved",
    ),
    "the signature has one bit flipped": (
        BOTH,
        put(lambda x: envelope(x)["signatures"][0], "sig", flip),
        "keyless-unproved",
    ),
    "there is no signature": (BOTH, put(envelope, "signatures", []), "keyless-malformed"),
    "there are two signatures": (
        BOTH,
        put(envelope, "signatures", lambda old: old * 2),
        "keyless-malformed",
    ),
    "a file is signed instead of a statement": (BOTH, file_signature, "keyless-malformed"),
    "nothing is signed": (BOTH, drop(whole, "dsseEnvelope"), "keyless-malformed"),
    "the certificate has one bit flipped": (
        BOTH,
        put(lambda b: material(b)["certificate"], "rawBytes", flip),
        "keyless-unproved",
    ),
    "the certificate is no certificate": (
        BOTH,
        put(lambda b: material(b)["certificate"], "rawBytes", BAD_DER),
        "keyless-unchecked",
    ),
    "the certificate is no base64": (
        BOTH,
        put(lambda b: material(b)["certificate"], "rawBytes", "%%%"),
        "keyless-unchecked",
    ),
    "a chain of certificates is given": (BOTH, chain, "keyless-malformed"),
    "there is no certificate": (BOTH, drop(material, "certificate"), "keyless-malformed"),
    "a key is named beside the certificate": (
        BOTH,
        put(material, "publicKey", {"hint": "AAAA"}),
        "key-unknown",
    ),
    "there is no material": (BOTH, drop(whole, "verificationMaterial"), "document-invalid"),
    "there is no log entry": (BOTH, put(material, "tlogEntries", []), "keyless-malformed"),
    "there are two log entries": (
        BOTH,
        put(material, "tlogEntries", lambda old: old * 2),
        "keyless-malformed",
    ),
    "the entry has no proof": (BOTH, drop(entry, "inclusionProof"), "keyless-malformed"),
    "the proof has no checkpoint": (BOTH, drop(proof, "checkpoint"), "keyless-malformed"),
    "the checkpoint is empty": (
        BOTH,
        put(proof, "checkpoint", {"envelope": ""}),
        "keyless-unproved",
    ),
    "the checkpoint is not signed": (
        BOTH,
        put(lambda b: proof(b)["checkpoint"], "envelope", cut_note),
        "keyless-unproved",
    ),
    "the checkpoint is of another tree": (
        BOTH,
        put(lambda b: proof(b)["checkpoint"], "envelope", lambda old: old.replace("\n", "\n1", 1)),
        "keyless-unproved",
    ),
    "the checkpoint's signature is no base64": (
        BOTH,
        put(
            lambda b: proof(b)["checkpoint"], "envelope", lambda old: old.rstrip("=\n")[:-1] + "\n"
        ),
        "keyless-unchecked",
    ),
    "the proof's root is another": (BOTH, put(proof, "rootHash", flip), "keyless-unproved"),
    "a digest of the proof is another": (
        BOTH,
        put(proof, "hashes", lambda old: [flip(old[0]), *old[1:]]),
        "keyless-unproved",
    ),
    "the proof is cut short": (
        BOTH,
        put(proof, "hashes", lambda old: old[:-1]),
        "keyless-unproved",
    ),
    "the proof is too long": (
        BOTH,
        put(proof, "hashes", lambda old: [*old, old[0]]),
        "keyless-unproved",
    ),
    "the proof is empty": (BOTH, put(proof, "hashes", []), "keyless-unproved"),
    "the index lies outside of the tree": (
        BOTH,
        put(proof, "logIndex", "99999"),
        "keyless-malformed",
    ),
    "the index is negative": (BOTH, put(proof, "logIndex", "-1"), "keyless-malformed"),
    "the tree has no entry": (BOTH, put(proof, "treeSize", "0"), "keyless-malformed"),
    "the entry's body is another": (
        BOTH,
        put(entry, "canonicalizedBody", flip),
        "keyless-unproved",
    ),
    "the entry's body is no JSON": (
        BOTH,
        put(entry, "canonicalizedBody", "AAAA"),
        "keyless-unproved",
    ),
    "the entry is of another kind": (
        BOTH,
        put(lambda b: entry(b)["kindVersion"], "kind", "intoto"),
        "keyless-unproved",
    ),
    "the entry is of another version": (
        BOTH,
        put(lambda b: entry(b)["kindVersion"], "version", "0.0.9"),
        "keyless-malformed",
    ),
    "the log's promise is another": (
        V1,
        put(lambda b: entry(b)["inclusionPromise"], "signedEntryTimestamp", flip),
        "keyless-unproved",
    ),
    "the log's time is moved by a second": (
        V1,
        put(entry, "integratedTime", lambda old: str(int(old) + 1)),
        "keyless-unproved",
    ),
    "the log's time is moved to 1970": (V1, put(entry, "integratedTime", "1"), "keyless-unproved"),
    "the log's time is no number": (V1, put(entry, "integratedTime", "now"), "keyless-malformed"),
    "the log's time is beyond any calendar": (
        V1,
        put(entry, "integratedTime", "9" * 40),
        "keyless-malformed",
    ),
    "the log is one that nobody knows": (
        V1,
        put(lambda b: entry(b)["logId"], "keyId", flip),
        "keyless-unproved",
    ),
    "the time stamp is missing where the log gives no time": (
        V2,
        drop(material, "timestampVerificationData"),
        "keyless-malformed",
    ),
    "the time stamps are an empty list where the log gives no time": (
        V2,
        put(material, "timestampVerificationData", {"rfc3161Timestamps": []}),
        "keyless-malformed",
    ),
    "the time stamp is there twice": (
        BOTH,
        lambda b: stamps(b).append(stamps(b)[0]),
        "keyless-malformed",
    ),
    "the time stamp has one bit flipped": (
        BOTH,
        put(lambda x: stamps(x)[0], "signedTimestamp", flip),
        "keyless-unproved",
    ),
    "the time stamp is no time stamp": (
        BOTH,
        lambda b: stamps(b)[0].update(signedTimestamp=BAD_DER),
        "keyless-unproved",
    ),
    "the format is older": (BOTH, old_form, "signature-malformed"),
    "the format is unknown": (BOTH, put(whole, "mediaType", "text/plain"), "signature-malformed"),
    "the format's name moves the cursor": (
        BOTH,
        put(whole, "mediaType", ESCAPES),
        "signature-malformed",
    ),
    "the checkpoint moves the cursor": (
        BOTH,
        put(lambda b: proof(b)["checkpoint"], "envelope", ESCAPES),
        "keyless-unproved",
    ),
    "the kind of entry moves the cursor": (
        BOTH,
        put(lambda b: entry(b)["kindVersion"], "kind", ESCAPES),
        "keyless-unproved",
    ),
    "a field is unknown": (BOTH, put(whole, "trustMe", True), "keyless-malformed"),
    "a number stands for the envelope": (BOTH, put(whole, "dsseEnvelope", 7), "document-invalid"),
    "a text stands for the log entries": (
        BOTH,
        put(material, "tlogEntries", "x"),
        "document-invalid",
    ),
}

# name: bytes or a change of the bytes, error id
RAW: dict[str, tuple[bytes | Callable[[bytes], bytes], str]] = {
    "empty": (b"", "json-malformed"),
    "not JSON": (b"hello", "json-malformed"),
    "cut in the middle": (lambda raw: raw[: len(raw) // 2], "json-malformed"),
    "zeros": (bytes(1000), "json-malformed"),
    "not UTF-8": (b'{"mediaType": "\xff"}', "json-malformed"),
    "a list": (b"[]", "document-invalid"),
    "deep": (b"[" * 100_000, "json-too-deep"),
    "a name twice": (lambda raw: b'{"mediaType":"x",' + raw[1:], "json-malformed"),
    "sixty megabytes": (lambda raw: raw + b" " * (60 << 20), "document-invalid"),
}

# name: bytes or parts that replace those of the good one
ROOTS: dict[str, bytes | dict[str, Any]] = {
    "not JSON": b"hello",
    "empty": b"{}",
    "no logs": {"tlogs": []},
    "no authority": {"certificateAuthorities": []},
    "no certificate log": {"ctlogs": []},
    "a text for logs": {"tlogs": "x"},
    "a number for a log": {"tlogs": [7]},
    "another format": {"mediaType": "text/plain"},
    "a certificate that is none": {
        "certificateAuthorities": [
            {"certChain": {"certificates": [{"rawBytes": BAD_DER}]}, "validFor": {}}
        ]
    },
    "a date that is none": {"ctlogs": [{"publicKey": {"validFor": {"start": "soon"}}}]},
    "a date without a zone": {"ctlogs": [{"publicKey": {"validFor": {"end": "2026-01-01"}}}]},
    "sixty megabytes": b" " * (60 << 20),
}
