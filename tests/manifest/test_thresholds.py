"""Who counts: every set of signers under every threshold, for releases and for policies.

The spaces are small, so they are enumerated: accepted if and only if enough *owners* have a key
that may speak, whatever else lies beside their signatures.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

import pytest

from capsule_manifest.envelope import Envelope, sign
from capsule_manifest.errors import Refused
from capsule_manifest.keys import KeyId
from capsule_manifest.policy import (
    POLICY_TYPE,
    AuthorityRule,
    Policy,
    PolicyKey,
    check_policy,
    encode_policy,
)
from capsule_manifest.policy_update import next_policy
from capsule_manifest.trust import verify_release
from support import documents
from support.signature_rows import MANIFEST
from support.signing import FixedSigner

ALICE, BOB, CAROL = FixedSigner("alice"), FixedSigner("bob"), FixedSigner("carol")
ALICE_TOO, RETIRED, REVOKED = FixedSigner("alice-2"), FixedSigner("retired"), FixedSigner("revoked")
# Each signer, and whose voice it is for a release with counter 7; None where it is nobody's.
SIGNERS: dict[FixedSigner, str | None] = {
    ALICE: "alice",
    ALICE_TOO: "alice",
    BOB: "bob",
    CAROL: "carol",
    RETIRED: None,
    REVOKED: None,
    documents.ROUTE_KEY: None,
    documents.STRANGER_KEY: None,
}
OWNERS = {ALICE: "alice", ALICE_TOO: "alice", BOB: "bob", CAROL: "carol", RETIRED: "dora",
          REVOKED: "emil"}  # fmt: skip


def entry(key: FixedSigner, owner: str, last: int | None = None) -> PolicyKey:
    return PolicyKey(key=key.public, owner=owner, counter_from=1, counter_to=last)


def policy(authority: str, threshold: int) -> Policy:
    """Return a policy in which all of `OWNERS` hold `authority`."""
    base = documents.make_policy()
    held = {key.public.keyid: entry(key, owner) for key, owner in OWNERS.items()}
    if authority == "release":  # the others know no windows
        held[RETIRED.public.keyid] = entry(RETIRED, "dora", last=6)
    others = {
        keyid: item for keyid, item in base.keys.items()
        if keyid not in getattr(base, authority).keys
    }  # fmt: skip
    made = replace(
        base,
        keys={**others, **held},
        revoked_keys=frozenset({REVOKED.public.keyid}),
        **{authority: AuthorityRule(keys=tuple(sorted(held)), threshold=threshold)},
    )
    check_policy(made, "test")
    return made


def subsets() -> Iterator[tuple[FixedSigner, ...]]:
    for size in range(len(SIGNERS) + 1):
        yield from combinations(SIGNERS, size)


@pytest.mark.parametrize("threshold", [1, 2, 4])
def test_a_release_is_accepted_exactly_when_enough_owners_speak(threshold: int) -> None:
    asked = policy("release", threshold)
    bundles = {key: documents.release_bundle(MANIFEST, key) for key in SIGNERS}
    accepted = 0
    for signers in subsets():
        owners = {SIGNERS[key] for key in signers} - {None}
        given = {f"{number}": bundles[key] for number, key in enumerate(signers)}
        try:
            found = verify_release(asked, MANIFEST, given, counter_floor=0)
        except Refused:
            assert len(owners) < threshold, signers
            continue
        assert set(found.owners) == owners, signers
        assert len(owners) >= threshold, signers
        accepted += 1
    assert (accepted > 0) == (threshold <= 3)


@pytest.mark.parametrize(("now", "then"), [(1, 2), (2, 1), (2, 2)])
def test_a_policy_follows_exactly_when_enough_owners_of_both_speak(now: int, then: int) -> None:
    """The next one has neither Alice's first key nor Bob: who goes can't bring in who comes."""
    held = policy("trust", now)
    left = {ALICE.public.keyid, BOB.public.keyid}
    rule = AuthorityRule(
        keys=tuple(keyid for keyid in held.trust.keys if keyid not in left), threshold=then
    )
    following = replace(held, version=2, trust=rule)
    check_policy(following, "test")
    raw = encode_policy(following)
    records = {key: sign(raw, payload_type=POLICY_TYPE, signer=key) for key in SIGNERS}
    for signers in subsets():
        before = voices(signers, held.trust.keys)
        after = voices(signers, rule.keys)
        is_enough = len(before) >= now and len(after) >= then
        given: list[Envelope] = [records[key] for key in signers]
        try:
            taken = next_policy(held, given, where="update")
        except Refused:
            assert not is_enough, signers
            continue
        assert is_enough, signers
        assert taken == following


def voices(signers: tuple[FixedSigner, ...], holders: tuple[KeyId, ...]) -> set[str]:
    """Return the owners among `signers` who may speak for an authority of `holders`."""
    return {
        OWNERS[key] for key in signers
        if key in OWNERS and key is not REVOKED and key.public.keyid in holders
    }  # fmt: skip
