"""Whether a host takes an order: one thing wrong at a time, and nothing is changed."""

from dataclasses import replace

import pytest

from capsule_installer.op.order_check import HostFacts, check_order
from capsule_manifest.digest import CapsuleId, sha256_text
from capsule_manifest.envelope import sign
from capsule_manifest.errors import Refused
from capsule_manifest.orders import ORDER_TYPE, encode_order
from capsule_manifest.policy import Downgrade, encode_policy
from capsule_manifest.route import encode_route
from capsule_manifest.trust_orders import VerifiedRoute
from support import documents

POLICY = documents.make_policy()
ROUTE = replace(documents.make_route(), policy=sha256_text(encode_policy(POLICY)))
DIGEST = sha256_text(encode_route(ROUTE))
ORDER = replace(documents.make_order(), route=DIGEST)
MARKER = replace(documents.make_marker(), route=DIGEST)


def facts(**changes):
    known = HostFacts(
        node="n1",
        node_key=documents.NODE_KEY.public,
        policy=POLICY,
        route=VerifiedRoute(route=ROUTE, digest=DIGEST),
        fence=3,
        counter_floor=6,
        boot_id="boot",
        boot_ms=100_000,
        issued_ms=50_000,
        current="6-89abcdef",
        previous="5-00000000",
        marker=MARKER,
        guard_levels=("L0",),
    )
    return replace(known, **changes)


def signed(key=documents.CONTROLLER_KEY, **changes):
    return sign(encode_order(replace(ORDER, **changes)), payload_type=ORDER_TYPE, signer=key)


def test_a_good_order_is_taken():
    assert check_order(facts(), signed()) == ORDER


@pytest.mark.parametrize(
    ("change", "error_id"),
    [
        ({"node": "n2"}, "order-wrong-node"),
        ({"node_key": "other"}, "order-wrong-node"),
        ({"fence": 2}, "order-fenced"),
        ({"route": sha256_text(b"other")}, "order-wrong-route"),
        ({"boot_id": "before"}, "order-expired"),
        ({"valid_ms": 49_999}, "order-expired"),
        ({"prior": "absent"}, "order-prior-mismatch"),
        ({"capsule": sha256_text(b"other")}, "generation-not-staged"),
        ({"release_counter": 8}, "generation-not-staged"),
        ({"generation": "absent"}, "generation-not-staged"),
        ({"guard_level": "L2"}, "guard-level-denied"),
        ({"guard_policy": "report"}, "guard-policy-denied"),
        ({"verb": "rollback"}, "order-prior-mismatch"),
    ],
)
def test_an_order_with_one_thing_wrong_is_refused(change, error_id):
    with pytest.raises(Refused, match=error_id):
        check_order(facts(), signed(**change))


@pytest.mark.parametrize(
    ("change", "error_id"),
    [
        ({"node": "n2"}, "order-wrong-node"),
        ({"fence": 4}, "order-fenced"),
        ({"issued_ms": None}, "order-expired"),
        ({"boot_ms": 110_001}, "order-expired"),
        ({"boot_ms": 49_999}, "order-expired"),
        ({"current": "absent"}, "order-prior-mismatch"),
        ({"marker": None}, "generation-not-staged"),
        ({"marker": replace(MARKER, route=sha256_text(b"old"))}, "order-wrong-route"),
        ({"counter_floor": 8}, "release-counter-too-low"),
        ({"guard_levels": ("L2",)}, "guard-level-denied"),
        (
            {"route": VerifiedRoute(route=replace(ROUTE, waivers=()), digest=DIGEST)},
            "guard-level-denied",
        ),
        (
            {
                "policy": replace(
                    documents.make_policy(), revoked_capsules=frozenset({ORDER.capsule})
                )
            },
            "capsule-revoked",
        ),
    ],
)
def test_a_host_on_which_one_thing_differs_refuses(change, error_id):
    with pytest.raises(Refused, match=error_id):
        check_order(facts(**change), signed())


@pytest.mark.parametrize("key", [documents.RELEASE_KEY, documents.ROUTE_KEY])
def test_a_key_of_another_authority_cannot_order(key):
    with pytest.raises(Refused, match="authority-denied"):
        check_order(facts(), signed(key))


def test_a_stranger_cannot_order():
    with pytest.raises(Refused, match=r"key-unknown|authority-denied"):
        check_order(facts(), signed(documents.STRANGER_KEY))


def test_the_nodes_own_key_orders_only_what_needs_no_confirm():
    assert check_order(facts(), signed(documents.NODE_KEY, confirm="local")).confirm == "local"
    with pytest.raises(Refused, match="authority-denied"):
        check_order(facts(), signed(documents.NODE_KEY))


def test_a_local_order_under_another_route_is_refused():
    order = signed(documents.NODE_KEY, confirm="local", route=sha256_text(b"other"))
    with pytest.raises(Refused, match="order-wrong-route"):
        check_order(facts(), order)


def test_a_rollback_may_go_below_the_floor_but_only_to_the_previous_generation():
    host = facts(previous=ORDER.generation, counter_floor=9)
    assert check_order(host, signed(verb="rollback")).verb == "rollback"


def test_a_policy_may_let_one_capsule_below_the_floor_and_only_that():
    for capsule, taken in ((ORDER.capsule, True), (CapsuleId(sha256_text(b"other")), False)):
        exception = Downgrade(capsule=capsule, reason="7 lost data, see the incident of May")
        policy = replace(POLICY, version=2, downgrades=(exception,))
        frozen = replace(ROUTE, policy=sha256_text(encode_policy(policy)))
        host = facts(
            policy=policy, counter_floor=9, route=VerifiedRoute(route=frozen, digest=DIGEST)
        )
        if taken:
            assert check_order(host, signed()) == ORDER
            continue
        with pytest.raises(Refused, match="release-counter-too-low"):
            check_order(host, signed())


def test_what_was_staged_under_an_older_policy_is_not_installed_under_a_newer_one():
    newer = replace(POLICY, version=2)
    with pytest.raises(Refused, match="policy-changed"):
        check_order(facts(policy=newer), signed())


def test_a_rollback_does_not_wait_for_a_route_under_the_newer_policy():
    host = facts(policy=replace(POLICY, version=2), previous=ORDER.generation)
    assert check_order(host, signed(verb="rollback")).verb == "rollback"
