"""Signatures by keys that a release is refused with: each with its policy, floor, id and code."""

import json
from dataclasses import replace

from capsule_manifest.digest import CapsuleId, sha256_text
from capsule_manifest.errors import ExitCode
from capsule_manifest.policy import Policy
from capsule_manifest.release import encode_release
from support import documents as make

__all__ = ["CAPSULE", "GOOD", "MANIFEST", "ROWS", "SECOND", "STRANGER", "two_owners"]

MANIFEST = encode_release(make.make_release())
CAPSULE = CapsuleId(sha256_text(MANIFEST))


def two_owners() -> Policy:
    policy = make.make_policy()
    return replace(policy, release=replace(policy.release, threshold=2))


def moved(bundle: bytes) -> bytes:
    """Return a bundle with the signature of another one by the same key."""
    made = json.loads(bundle)
    other = json.loads(make.release_bundle(b"other", make.RELEASE_KEY))
    made["dsseEnvelope"]["signatures"] = other["dsseEnvelope"]["signatures"]
    return json.dumps(made).encode()


def revoked_capsule() -> Policy:
    return replace(make.make_policy(), revoked_capsules=frozenset({CAPSULE}))


def revoked_key() -> Policy:
    return replace(make.make_policy(), revoked_keys=frozenset({make.RELEASE_KEY.public.keyid}))


def windowed(first: int, last: int | None) -> Policy:
    policy = make.make_policy()
    keyid = make.RELEASE_KEY.public.keyid
    entry = replace(policy.keys[keyid], counter_from=first, counter_to=last)
    return replace(policy, keys={**policy.keys, keyid: entry})


GOOD = make.release_bundle(MANIFEST, make.RELEASE_KEY)
SECOND = make.release_bundle(MANIFEST, make.SECOND_RELEASE_KEY)
STRANGER = make.release_bundle(MANIFEST, make.STRANGER_KEY)
INTEGRITY, DENIED = ExitCode.INTEGRITY, ExitCode.DENIED

ROWS: dict[str, tuple[dict[str, bytes], Policy, int, str, ExitCode]] = {
    "no signature": ({}, make.make_policy(), 0, "signature-missing", INTEGRITY),
    "a stranger's": ({"a": STRANGER}, make.make_policy(), 0, "key-unknown", INTEGRITY),
    "a wrong signature": (
        {"a": moved(GOOD)},
        make.make_policy(),
        0,
        "signature-invalid",
        INTEGRITY,
    ),
    "of another capsule": (
        {"a": make.release_bundle(b"another", make.RELEASE_KEY)},
        make.make_policy(),
        0,
        "signature-wrong-subject",
        INTEGRITY,
    ),
    "by the route key": (
        {"a": make.release_bundle(MANIFEST, make.ROUTE_KEY)},
        make.make_policy(),
        0,
        "authority-denied",
        DENIED,
    ),
    "by the trust key": (
        {"a": make.release_bundle(MANIFEST, make.TRUST_KEY)},
        make.make_policy(),
        0,
        "authority-denied",
        DENIED,
    ),
    "another counter claimed": (
        {"a": make.release_bundle(MANIFEST, make.RELEASE_KEY, release_counter=8)},
        make.make_policy(),
        0,
        "signers-disagree",
        INTEGRITY,
    ),
    "another version claimed": (
        {"a": make.release_bundle(MANIFEST, make.RELEASE_KEY, version="9")},
        make.make_policy(),
        0,
        "signers-disagree",
        INTEGRITY,
    ),
    "two who disagree": (
        {"a": GOOD, "b": make.release_bundle(MANIFEST, make.SECOND_RELEASE_KEY, version="9")},
        two_owners(),
        0,
        "signers-disagree",
        INTEGRITY,
    ),
    "one of two owners": ({"a": GOOD}, two_owners(), 0, "threshold-not-met", INTEGRITY),
    "one owner twice": ({"a": GOOD, "b": GOOD}, two_owners(), 0, "owner-counted-once", INTEGRITY),
    "one and a stranger": (
        {"a": GOOD, "b": STRANGER},
        two_owners(),
        0,
        "counter-signer-unknown",
        INTEGRITY,
    ),
    "below the host's floor": (
        {"a": GOOD},
        make.make_policy(),
        8,
        "release-counter-too-low",
        DENIED,
    ),
    "below the policy's floor": (
        {"a": GOOD},
        replace(make.make_policy(), release_counter_floor=8),
        0,
        "release-counter-too-low",
        DENIED,
    ),
    "revoked capsule": ({"a": GOOD}, revoked_capsule(), 0, "capsule-revoked", DENIED),
    "revoked key": ({"a": GOOD}, revoked_key(), 0, "key-revoked", DENIED),
    "before the key's window": ({"a": GOOD}, windowed(8, None), 0, "key-outside-window", DENIED),
    "after the key's window": ({"a": GOOD}, windowed(1, 6), 0, "key-outside-window", DENIED),
    "another product": (
        {"a": GOOD},
        replace(make.make_policy(), product="acme/other"),
        0,
        "product-mismatch",
        DENIED,
    ),
    "not JSON": ({"a": b"{"}, make.make_policy(), 0, "json-malformed", INTEGRITY),
    "a huge bundle": ({"a": b" " * 300_000}, make.make_policy(), 0, "json-too-large", INTEGRITY),
    "a deep bundle": ({"a": b"[" * 999}, make.make_policy(), 0, "json-too-deep", INTEGRITY),
    "another media type": (
        {"a": GOOD.replace(b"v0.3", b"v0.9")},
        make.make_policy(),
        0,
        "signature-malformed",
        INTEGRITY,
    ),
}
