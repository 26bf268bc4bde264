"""Every kind of key on every kind of document: each signs what its authority is for, nothing else.

Both lists are complete: a document that is added without a row fails the last test.
"""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import replace

import pytest

import capsule_manifest
from capsule_manifest import orders, policy, questions, repairs, route
from capsule_manifest.digest import CapsuleId, sha256_text
from capsule_manifest.envelope import IN_TOTO, encode_bundle, sign
from capsule_manifest.errors import ExitCode, Refused
from capsule_manifest.policy import Authority
from capsule_manifest.policy_update import next_policy
from capsule_manifest.release import encode_release
from capsule_manifest.statements import packing_statement
from capsule_manifest.trust import verify_packing, verify_release
from capsule_manifest.trust_orders import (
    VerifiedRoute,
    verify_confirm,
    verify_order,
    verify_question,
    verify_repair,
    verify_route,
)
from support import documents as make
from support.signing import FixedSigner

MANIFEST = encode_release(make.make_release())
CAPSULE = CapsuleId(sha256_text(MANIFEST))
POLICY = make.make_policy()
ROUTE_BYTES = route.encode_route(make.make_route())
ROUTE = VerifiedRoute(route=make.make_route(), digest=sha256_text(ROUTE_BYTES))
QUESTION = questions.Question(
    op_id=make.OP_ID, node="n1", route=ROUTE.digest, fence=7, nonce="", boot_id="", valid_ms=0
)
REPAIR = repairs.Repair(
    op_id=make.OP_ID, node="n1", node_key=make.NODE_KEY.public.keyid, route=ROUTE.digest, fence=7,
    generation="7-01234567", capsule=make.CAPSULE, installed_by=make.OP_ID,
)  # fmt: skip

KEYS = {
    "release": make.RELEASE_KEY,
    "route": make.ROUTE_KEY,
    "order": make.CONTROLLER_KEY,
    "trust": make.TRUST_KEY,
    "node": make.NODE_KEY,
    "stranger": make.STRANGER_KEY,
}
NAMED = {"release", "route", "trust"}
"""Who is in the policy: refused for what they did; others because nobody knows them."""


def release(key: FixedSigner) -> object:
    bundles = {"a": make.release_bundle(MANIFEST, key)}
    return verify_release(POLICY, MANIFEST, bundles, counter_floor=0)


def packing(key: FixedSigner) -> object:
    payload = packing_statement(b"packing", CAPSULE)
    bundle = encode_bundle(sign(payload, payload_type=IN_TOTO, signer=key))
    verify_packing(POLICY, b"packing", CAPSULE, {"a": bundle})
    return CAPSULE


def next_version(key: FixedSigner) -> object:
    raw = policy.encode_policy(replace(POLICY, version=2))
    return next_policy(
        POLICY, [sign(raw, payload_type=policy.POLICY_TYPE, signer=key)], where="update"
    )


def routed(key: FixedSigner) -> object:
    return verify_route(POLICY, sign(ROUTE_BYTES, payload_type=route.ROUTE_TYPE, signer=key))


def by_controller(
    verify: Callable[..., object], payload: bytes, payload_type: str
) -> Callable[[FixedSigner], object]:
    return lambda key: verify(POLICY, ROUTE, sign(payload, payload_type=payload_type, signer=key))


ORDER = orders.encode_order(replace(make.make_order(), route=ROUTE.digest))
CONFIRM = orders.encode_confirm(replace(make.make_confirm(), route=ROUTE.digest))
# document: the authority that it needs, and what signs and verifies it
DOCUMENTS: dict[str, tuple[Authority, Callable[[FixedSigner], object]]] = {
    "release": (Authority.RELEASE, release),
    "packing": (Authority.RELEASE, packing),
    "policy": (Authority.TRUST, next_version),
    "route": (Authority.ROUTE, routed),
    "order": (Authority.ORDER, by_controller(verify_order, ORDER, orders.ORDER_TYPE)),
    "confirm": (Authority.ORDER, by_controller(verify_confirm, CONFIRM, orders.CONFIRM_TYPE)),
    "question": (
        Authority.ORDER,
        by_controller(
            verify_question, questions.encode_question(QUESTION), questions.QUESTION_TYPE
        ),
    ),
    "repair": (
        Authority.ORDER,
        by_controller(verify_repair, repairs.encode_repair(REPAIR), repairs.REPAIR_TYPE),
    ),
}


@pytest.mark.parametrize("holder", KEYS)
@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_key_signs_only_what_its_authority_is_for(holder: str, document: str) -> None:
    needed, use = DOCUMENTS[document]
    if holder == needed:
        assert use(KEYS[holder]) is not None
        return
    with pytest.raises(Refused) as caught:
        use(KEYS[holder])
    expected = (
        ("authority-denied", ExitCode.DENIED)
        if holder in NAMED
        else ("key-unknown", ExitCode.INTEGRITY)
    )
    assert (caught.value.error_id, caught.value.exit_code) == expected


@pytest.mark.parametrize("holder", sorted(NAMED))
def test_a_route_can_not_make_another_authority_s_key_a_controller(holder: str) -> None:
    named = replace(make.make_route(), controllers=(KEYS[holder].public,))
    signed = sign(route.encode_route(named), payload_type=route.ROUTE_TYPE, signer=make.ROUTE_KEY)
    with pytest.raises(Refused) as caught:
        verify_route(POLICY, signed)
    assert (caught.value.error_id, caught.value.exit_code) == ("authority-denied", ExitCode.DENIED)


@pytest.mark.parametrize("first", sorted(NAMED))
@pytest.mark.parametrize("second", sorted(NAMED))
def test_no_policy_gives_one_key_two_authorities(first: str, second: str) -> None:
    if first == second:
        return
    rule = replace(getattr(POLICY, second), keys=(KEYS[first].public.keyid,))
    both = replace(POLICY, **{second: rule})
    with pytest.raises(Refused) as caught:
        policy.decode_policy(policy.encode_policy(both))
    assert caught.value.error_id == "policy-invalid"


# --- one type is never another, whoever signed ---------------------------------------------------
MODULES = [
    importlib.import_module(f"capsule_manifest.{found.name}")
    for found in pkgutil.iter_modules(capsule_manifest.__path__)
]
TYPES = {
    name: value
    for module in MODULES
    for name, value in vars(module).items()
    if isinstance(value, str) and value.startswith("application/vnd.")
    if name != "BUNDLE_MEDIA_TYPE"  # a carrier's name, never signed
}


@pytest.mark.parametrize("signed_as", TYPES)
@pytest.mark.parametrize("read_as", TYPES)
def test_a_document_is_read_only_as_what_it_was_signed_as(signed_as: str, read_as: str) -> None:
    """A marker is no receipt and a confirm no order, although one key signs both."""
    made = sign(b"{}", payload_type=TYPES[signed_as], signer=make.NODE_KEY)
    key = make.NODE_KEY.public
    if signed_as == read_as:
        assert made.verify(key, payload_type=TYPES[read_as], where="x") == b"{}"
        return
    with pytest.raises(Refused) as caught:
        made.verify(key, payload_type=TYPES[read_as], where="x")
    assert caught.value.error_id == "signature-malformed"
    renamed = replace(made, payload_type=TYPES[read_as])
    with pytest.raises(Refused) as caught:
        renamed.verify(key, payload_type=TYPES[read_as], where="x")
    assert caught.value.error_id == "signature-invalid"


def test_every_type_that_is_signed_has_a_row() -> None:
    by_hosts = {"MARKER_TYPE", "PROOF_TYPE", "OUTCOME_TYPE", "RECEIPT_TYPE"}
    by_people = {"POLICY_TYPE", "ROUTE_TYPE", "IN_TOTO"}
    by_controllers = {"ORDER_TYPE", "CONFIRM_TYPE", "QUESTION_TYPE", "REPAIR_TYPE"}
    assert set(TYPES) == by_hosts | by_people | by_controllers
    needing = {needed for needed, _ in DOCUMENTS.values()}
    assert needing == set(Authority)
    assert len(set(TYPES.values())) == len(TYPES)
