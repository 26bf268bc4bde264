"""Verify a capsule on a bare host and put its host program there. Copied into capsules as it is.

    python3 -I -S CAPSULE/bootstrap/bootstrap.py --policy trust.json [--root DIR] [-- VERB …]

Needs Python's standard library and `openssl`; no network, no configuration, nothing of ours. It
decides by the given policy as the host program does: revoked capsules and keys, owners up to the
threshold, windows, floors. Then it checks the bootstrap files by their own index, which as many
owners must have signed, unpacks the host program, and hands over to it. Keyless signatures don't
count here.

This file can't vouch for itself: bring it, or its SHA-256, by another way than the capsule.
"""

import argparse
import base64
import binascii
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["main"]

IN_TOTO = "application/vnd.in-toto+json"
BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
STATEMENT = "https://in-toto.io/Statement/v1"
RELEASE, BOOTSTRAP = "urn:capsule:release:v1", "urn:capsule:bootstrap:v1"
NAMES = {RELEASE: "capsule.json", BOOTSTRAP: "bootstrap/index.json"}
# DER of a P-256 key up to its uncompressed point: one spelling a key, so one id.
SPKI_PREFIX = bytes.fromhex("3059301306072a8648ce3d020106082a8648ce3d03010703420004")
SPKI_BYTES = 91
DOCUMENT_BYTES_MAX = 8 * 1024 * 1024
STREAM_BYTES_MAX = 320 * 1024 * 1024
SIGNATURES_MAX = 256
INTEGRITY, DENIED, INCOMPATIBLE = 10, 12, 21

MALFORMED = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What reading a document raises that is JSON and not what it should be."""

Json = Any
"""Documents of others: every use below checks what it takes."""


class Refuse(Exception):
    """Say why the capsule is not used: the id of the error, what is wrong, and the exit code."""

    def __init__(self, error_id: str, what: str, code: int = INTEGRITY) -> None:
        super().__init__(error_id, what)
        self.error_id, self.what, self.code = error_id, what, code


def main(arguments: Sequence[str]) -> int:
    """Verify, unpack, hand over; return the exit code of a refusal."""
    parser = argparse.ArgumentParser(description="Verify a capsule and start its host program.")
    parser.add_argument("capsule", nargs="?", help="the capsule's folder; default: this file's")
    parser.add_argument("--policy", required=True, help="a trust policy from a source you trust")
    parser.add_argument("--root", default="/", help="act below this folder")
    parser.add_argument("--platform", help="needed when the capsule has several")
    words = list(arguments)
    verb = words[words.index("--") + 1 :] if "--" in words else ["hello"]
    options = parser.parse_args(words[: words.index("--")] if "--" in words else words)
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    folder = options.capsule or here
    try:
        runtime = verify(folder, options.policy, options.root, options.platform)
        code = unpack(folder, options.root, runtime)
    except Refuse as refusal:
        print(f"bootstrap: {refusal.error_id}: {clean(refusal.what)}", file=sys.stderr)
        return refusal.code
    except (OSError, subprocess.SubprocessError, *MALFORMED) as error:
        text = clean(f"{type(error).__name__}: {error}")
        print(f"bootstrap: document-invalid: {text}", file=sys.stderr)
        return INTEGRITY
    if code:
        return code
    print(f"bootstrap: {runtime['capsule']} is as signed", file=sys.stderr)
    launcher = os.path.join(options.root, "opt/capsule/bin/capsule")
    sys.stdout.flush()
    os.execv(launcher, [launcher, *verb])
    raise AssertionError("exec does not return")


def verify(folder: str, policy_path: str, root: str, platform: str | None) -> Mapping[str, Json]:
    """Return the index entry of the runtime to unpack, with what unpacks it."""
    policy = parse(read(policy_path))
    if policy["schema"] != "capsule-trust/1":
        raise Refuse("document-version", f"a policy of schema {policy['schema']}", INCOMPATIBLE)
    manifest = read(os.path.join(folder, "capsule.json"))
    capsule = "sha256:" + hashlib.sha256(manifest).hexdigest()
    if capsule in policy["revoked_capsules"]:
        raise Refuse("capsule-revoked", capsule, DENIED)
    counter = check_release(folder, policy, parse(manifest), capsule, root)
    index_raw = read(os.path.join(folder, "bootstrap", "index.json"))
    index = parse(index_raw)
    digest = hashlib.sha256(index_raw).hexdigest()
    # As many owners as for the release: what is unpacked below runs as root.
    voices = signed(folder, policy, "bootstrap", BOOTSTRAP, digest, counter)
    own = {"capsule": capsule}
    if index["schema"] != "capsule-bootstrap/1":
        raise Refuse("document-version", f"an index of schema {index['schema']}", INCOMPATIBLE)
    if index["capsule"] != capsule or any(claim != own for claim in voices.values()):
        raise Refuse("signature-wrong-subject", "the bootstrap files are of another capsule")
    names = [name for name in index["runtimes"] if platform in {None, name}]
    if len(names) != 1:
        raise Refuse(
            "platform-mismatch",
            f"give --platform, one of {', '.join(index['runtimes'])}",
            INCOMPATIBLE,
        )
    script = read(os.path.join(folder, "bootstrap", "unpack.py"))
    if hashlib.sha256(script).hexdigest() != index["unpack"]:
        raise Refuse("object-mismatch", "bootstrap/unpack.py is not the signed one")
    return {
        "script": script.decode(),
        "capsule": capsule,
        "platform": names[0],
        **index["runtimes"][names[0]],
    }


def check_release(folder: str, policy: Json, manifest: Json, capsule: str, root: str) -> int:
    """Check what enough owners say of the capsule and that it may be used; return its counter."""
    counter = manifest["release_counter"]
    voices = signed(folder, policy, "release", RELEASE, capsule.removeprefix("sha256:"), None)
    own = {
        "product": manifest["product"],
        "version": manifest["version"],
        "releaseCounter": counter,
    }
    if any(claim != own for claim in voices.values()):
        raise Refuse("signers-disagree", "a signature says other things than the capsule")
    if own["product"] != policy["product"]:
        raise Refuse("product-mismatch", f"the policy is for {policy['product']}", DENIED)
    lowest = max(policy["release_counter_floor"], known_floor(root))
    allowed = {item["capsule"] for item in policy["downgrades"]}
    if counter < lowest and capsule not in allowed:
        raise Refuse("release-counter-too-low", f"{lowest} or higher is needed", DENIED)
    return int(counter)


def signed(
    folder: str, policy: Json, about: str, kind: str, digest: str, counter: int | None
) -> dict[str, Json]:
    """Return what each owner stated about the file with this digest; raise below the threshold.

    Windows are judged by `counter`, or where that is not proved yet by the one that is stated.
    """
    place = os.path.join(folder, "signatures")
    names = [name for name in sorted(os.listdir(place)) if name.startswith(about + "-")]
    last = Refuse("signature-missing", f"nothing about {about} is signed")
    voices: dict[str, Json] = {}
    for name in names[:SIGNATURES_MAX]:
        try:
            entry, claim = statement(read(os.path.join(place, name)), policy, kind, digest)
            check_window(entry, claim["releaseCounter"] if counter is None else counter)
        except Refuse as refusal:
            last = refusal
            continue
        except MALFORMED as error:
            # Anybody may add a file here; it is skipped like any that doesn't count.
            last = Refuse("signature-malformed", f"{name}: {type(error).__name__}: {error}")
            continue
        if voices.get(entry["owner"], claim) != claim:
            raise Refuse("signers-disagree", f"{entry['owner']} says two things")
        voices[entry["owner"]] = claim
    if not voices:
        raise last
    threshold = policy["release"]["threshold"]
    if len(voices) < threshold:
        found = ", ".join(sorted(voices))
        raise Refuse("threshold-not-met", f"{threshold} owners must sign {about}, found {found}")
    return voices


def statement(raw: bytes, policy: Json, kind: str, digest: str) -> tuple[Json, Json]:
    """Return the policy's entry for who signed a bundle, and its statement's predicate."""
    bundle = parse(raw)
    if bundle["mediaType"] != BUNDLE or "publicKey" not in bundle["verificationMaterial"]:
        raise Refuse("keyless-unverified", "not a signature by a key")
    keyid = bundle["verificationMaterial"]["publicKey"]["hint"]
    entry = next((item for item in policy["keys"] if item["keyid"] == keyid), None)
    if entry is None:
        raise Refuse("key-unknown", f"no key of the policy is {keyid}")
    if keyid in policy["revoked_keys"]:
        raise Refuse("key-revoked", f"{keyid} is revoked", DENIED)
    if keyid not in policy["release"]["keys"]:
        raise Refuse("authority-denied", f"{keyid} may not sign releases", DENIED)
    spki = decode64(entry["spki"])
    if base64.b64encode(hashlib.sha256(spki).digest()).decode() != keyid:
        raise Refuse("key-malformed", "a key id of the policy is not the digest of its key")
    if len(spki) != SPKI_BYTES or not spki.startswith(SPKI_PREFIX):
        raise Refuse("key-malformed", "a key of the policy is of another kind or spelling")
    envelope = bundle["dsseEnvelope"]
    if envelope["payloadType"] != IN_TOTO or len(envelope["signatures"]) != 1:
        raise Refuse("signature-malformed", "not one signature over an in-toto statement")
    payload = decode64(envelope["payload"])
    check_signature(spki, decode64(envelope["signatures"][0]["sig"]), payload)
    said = parse(payload)
    subjects = [(item["name"], item["digest"]["sha256"]) for item in said["subject"]]
    wanted = [(NAMES[kind], digest)]
    if (said["_type"], said["predicateType"], subjects) != (STATEMENT, kind, wanted):
        raise Refuse("signature-wrong-subject", "a signature is about something else")
    return entry, said["predicate"]


def check_window(entry: Json, counter: int) -> None:
    """Check that a key covers a release counter."""
    last = entry["counter_to"]
    if counter < entry["counter_from"] or (last is not None and counter > last):
        raise Refuse("key-outside-window", f"{entry['keyid']} does not cover {counter}", DENIED)


def check_signature(spki: bytes, signature: bytes, payload: bytes) -> None:
    """Let `openssl` check an ECDSA P-256 signature over the DSSE encoding of `payload`."""
    openssl = shutil.which("openssl", path="/usr/bin:/bin:/usr/local/bin:/usr/sbin:/sbin")
    if openssl is None:
        raise Refuse("host-program-missing", "openssl is not on this host", INCOMPATIBLE)
    kind = IN_TOTO.encode()
    message = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
    pem = b"-----BEGIN PUBLIC KEY-----\n%s-----END PUBLIC KEY-----\n" % base64.encodebytes(spki)
    with tempfile.TemporaryDirectory(prefix="capsule-bootstrap-") as folder:
        for name, data in (("key", pem), ("signature", signature)):
            with open(os.path.join(folder, name), "wb") as file:
                file.write(data)
        done = subprocess.run(
            [openssl, "dgst", "-sha256", "-verify", os.path.join(folder, "key"),
             "-signature", os.path.join(folder, "signature")],
            input=message, capture_output=True, check=False, timeout=60,
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
        )  # fmt: skip
    if done.returncode:
        raise Refuse("signature-invalid", "a signature does not match what it signs")


def unpack(folder: str, root: str, runtime: Mapping[str, Json]) -> int:
    """Give the runtime to its verified unpacker, which checks the digest before it writes."""
    stream = os.path.join(folder, "bootstrap", f"runtime-{runtime['platform']}.stream")
    if os.path.getsize(stream) != runtime["size"] or runtime["size"] > STREAM_BYTES_MAX:
        raise Refuse("object-mismatch", "a runtime has another size than was signed")
    with open(stream, "rb") as file:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", runtime["script"], root, runtime["runtime"],
             runtime["sha256"], str(runtime["size"])],
            stdin=file, capture_output=True, check=False,
        )  # fmt: skip
    if done.returncode:
        said = (done.stdout + done.stderr).decode(errors="replace").strip("\x1e\n")
        print(f"bootstrap: {clean(said)}", file=sys.stderr)
    return done.returncode


def known_floor(root: str) -> int:
    """Return the highest counter that this host has committed, 0 on a bare one."""
    try:
        text = read(os.path.join(root, "var/lib/capsule/state/counter-floor")).decode().strip()
    except FileNotFoundError:
        return 0
    return int(text)


def read(path: str) -> bytes:
    """Return a document's bytes, once; a large one is refused unread."""
    with open(path, "rb") as file:
        raw = file.read(DOCUMENT_BYTES_MAX + 1)
    if len(raw) > DOCUMENT_BYTES_MAX:
        raise Refuse("document-invalid", f"{path} is too large")
    return raw


def parse(raw: bytes) -> Json:
    """Return JSON in which no key occurs twice."""

    def unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
        if len({key for key, _ in pairs}) != len(pairs):
            raise Refuse("json-malformed", "a key occurs twice")
        return dict(pairs)

    return json.loads(raw, object_pairs_hook=unique)


def decode64(text: str) -> bytes:
    """Return the bytes of strict base64."""
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise Refuse("signature-malformed", "not base64") from None


def clean(text: str) -> str:
    """Cut a text and escape what could move a terminal's cursor."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[:400])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
