"""Media of trust for tests: policies of several versions, as `capsule trust export` writes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from capsule.trust.medium import Medium
from capsule.trust.updating import TrustFolder
from capsule_manifest.errors import CapsuleError, ExitCode
from capsule_manifest.policy import AuthorityRule, Policy, PolicyKey
from support import documents
from support.signing import FixedSigner

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
ALICE = documents.TRUST_KEY
BOB, CAROL, DAVE = FixedSigner("bob"), FixedSigner("carol"), FixedSigner("dave")
OWNERS = {"alice": ALICE, "bob": BOB, "carol": CAROL, "dave": DAVE}


def policy(version: int, *, trust: Sequence[str] = ("alice", "bob"), threshold: int = 2) -> Policy:
    """Return a policy whose trust authority `trust` holds, each with one key."""
    base = documents.make_policy()
    keys = dict(base.keys)
    for owner in trust:
        key = OWNERS[owner].public
        keys[key.keyid] = PolicyKey(key=key, owner=owner, counter_from=1, counter_to=None)
    held = tuple(OWNERS[owner].public.keyid for owner in trust)
    if ALICE.public.keyid not in held:
        del keys[ALICE.public.keyid]
    return replace(
        base,
        version=version,
        keys=keys,
        trust=AuthorityRule(keys=held, threshold=threshold),
        release_counter_floor=version,
        issued_s=int(NOW.timestamp()) - 86_400,
    )


def write(
    folder: Path,
    wanted: Policy,
    signers: Sequence[FixedSigner] = (ALICE, BOB),
    *,
    now: datetime = NOW,
    days: int = 30,
    trusted_root: bytes | None = None,
) -> Medium:
    """Write `wanted` on the medium in `folder` and return it."""
    medium = Medium(folder)
    medium.write(wanted, signers, now=now, days=days, trusted_root=trusted_root)
    return medium


def pinned(folder: Path, first: Policy) -> TrustFolder:
    """Return a controller's trust folder in which `first` is pinned."""
    trust = TrustFolder(folder)
    trust.pin(first)
    return trust


@contextmanager
def refused(error_id: str, code: ExitCode) -> Iterator[pytest.ExceptionInfo[CapsuleError]]:
    """Expect an error by its id and exit code."""
    with pytest.raises(CapsuleError) as caught:
        yield caught
    assert (caught.value.error_id, caught.value.exit_code) == (error_id, code), caught.value
