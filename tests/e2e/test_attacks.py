"""Ten attacks on trust, each refused by an id that no other has, so that it can be told from them.

The details of each are tested where it is decided; here they stand side by side.
"""

import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from capsule.clock import utc_now
from capsule.trust.medium import Medium
from capsule_installer.op.order_check import HostFacts, check_order
from capsule_manifest.digest import sha256_text
from capsule_manifest.envelope import sign
from capsule_manifest.errors import CapsuleError, ExitCode
from capsule_manifest.orders import ORDER_TYPE, encode_order
from capsule_manifest.policy import POLICY_TYPE, Policy, encode_policy
from capsule_manifest.policy_update import next_policy
from capsule_manifest.route import encode_route
from capsule_manifest.trust import verify_release
from capsule_manifest.trust_orders import VerifiedRoute
from support import documents, trust_media
from support.signature_rows import CAPSULE, GOOD, MANIFEST, STRANGER, two_owners

POLICY = documents.make_policy()
DAY = timedelta(days=1)


def release(policy: Policy = POLICY, floor: int = 0, **bundles: bytes) -> None:
    verify_release(policy, MANIFEST, bundles or {"a": GOOD}, counter_floor=floor)


def an_older_release(_: Path) -> None:
    release(floor=8)


def an_older_policy(_: Path) -> None:
    held = replace(POLICY, version=3)
    older = sign(
        encode_policy(replace(POLICY, version=2)), payload_type=POLICY_TYPE,
        signer=documents.TRUST_KEY,
    )  # fmt: skip
    next_policy(held, [older], where="update")


def a_medium_that_never_changes(folder: Path) -> None:
    trust = trust_media.pinned(folder / "trust", trust_media.policy(1))
    later = utc_now() + 40 * DAY
    trust_media.write(folder / "medium", trust_media.policy(2), now=utc_now() - 31 * DAY)
    trust.update(Medium(folder / "medium"), now=later)


def files_of_two_exports(folder: Path) -> None:
    trust = trust_media.pinned(folder / "trust", trust_media.policy(1))
    for version in (2, 3):
        trust_media.write(folder / "medium", trust_media.policy(version), now=utc_now())
        shutil.copytree(folder / "medium", folder / str(version))
    shutil.copy(folder / "2/metadata/snapshot.json", folder / "medium/metadata")
    trust.update(Medium(folder / "medium"), now=utc_now())


def one_owner_where_two_must_sign(_: Path) -> None:
    release(two_owners())


def two_signatures_by_one_owner(_: Path) -> None:
    release(two_owners(), a=GOOD, b=GOOD)


def a_counter_signature_by_a_stranger(_: Path) -> None:
    release(two_owners(), a=GOOD, b=STRANGER)


def a_release_by_a_retired_key(_: Path) -> None:
    keyid = documents.RELEASE_KEY.public.keyid
    retired = replace(POLICY.keys[keyid], counter_to=6)
    release(replace(POLICY, keys={**POLICY.keys, keyid: retired}))


def a_revoked_capsule(_: Path) -> None:
    release(replace(POLICY, revoked_capsules=frozenset({CAPSULE})))


def an_order_sent_again(_: Path) -> None:
    """Its nonce was spent by the order; whoever recorded that can't use it."""
    route = replace(documents.make_route(), policy=sha256_text(encode_policy(POLICY)))
    digest = sha256_text(encode_route(route))
    order = replace(documents.make_order(), route=digest, node_key=documents.NODE_KEY.public.keyid)
    facts = HostFacts(
        node=order.node, node_key=documents.NODE_KEY.public, policy=POLICY,
        route=VerifiedRoute(route=route, digest=digest), fence=order.fence, counter_floor=0,
        boot_id=order.boot_id, boot_ms=1000, issued_ms=None, current=order.prior,
        previous="absent", marker=None, guard_levels=("L0",),
    )  # fmt: skip
    check_order(
        facts,
        sign(encode_order(order), payload_type=ORDER_TYPE, signer=documents.CONTROLLER_KEY),
    )


ATTACKS = {
    an_older_release: ("release-counter-too-low", ExitCode.DENIED),
    an_older_policy: ("policy-older", ExitCode.DENIED),
    a_medium_that_never_changes: ("trust-expired", ExitCode.TIME),
    files_of_two_exports: ("trust-mixed", ExitCode.INTEGRITY),
    one_owner_where_two_must_sign: ("threshold-not-met", ExitCode.INTEGRITY),
    two_signatures_by_one_owner: ("owner-counted-once", ExitCode.INTEGRITY),
    a_counter_signature_by_a_stranger: ("counter-signer-unknown", ExitCode.INTEGRITY),
    a_release_by_a_retired_key: ("key-outside-window", ExitCode.DENIED),
    a_revoked_capsule: ("capsule-revoked", ExitCode.DENIED),
    an_order_sent_again: ("order-expired", ExitCode.TIME),
}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_an_attack_is_refused_by_its_own_id(attack, tmp_path):
    with pytest.raises(CapsuleError) as caught:
        attack(tmp_path)
    assert (caught.value.error_id, caught.value.exit_code) == ATTACKS[attack]


def test_no_two_attacks_have_one_id():
    assert len({error_id for error_id, _ in ATTACKS.values()}) == len(ATTACKS) == 10
