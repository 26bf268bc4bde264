"""Trust decisions: each authority for its own, each refusal with its own id."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from capsule_manifest import trust, trust_orders
from capsule_manifest.canonical import decode_foreign, encode
from capsule_manifest.digest import CapsuleId, sha256_text
from capsule_manifest.envelope import (
    IN_TOTO,
    Envelope,
    decode_bundle,
    decode_record,
    encode_bundle,
    encode_record,
    sign,
)
from capsule_manifest.errors import ExitCode, Refused
from capsule_manifest.orders import CONFIRM_TYPE, ORDER_TYPE, encode_confirm, encode_order
from capsule_manifest.policy import (
    AuthorityRule,
    Downgrade,
    Identity,
    Policy,
    decode_policy,
    encode_policy,
)
from capsule_manifest.release import encode_release
from capsule_manifest.route import ROUTE_TYPE, encode_route
from capsule_manifest.statements import packing_statement
from support import documents as make
from support.signature_rows import CAPSULE, GOOD, MANIFEST, ROWS, SECOND, STRANGER, two_owners
from support.signing import FixedSigner

DENIED = ExitCode.DENIED


def verify(
    bundles: dict[str, bytes],
    policy: Policy | None = None,
    *,
    floor: int = 0,
    manifest: bytes = MANIFEST,
) -> trust.VerifiedRelease:
    return trust.verify_release(
        policy or make.make_policy(), manifest, bundles, counter_floor=floor
    )


def refusal(call: Callable[[], object]) -> tuple[str, ExitCode]:
    with pytest.raises(Refused) as caught:
        call()
    return caught.value.error_id, caught.value.exit_code


def test_a_release_signed_by_its_authority_is_accepted() -> None:
    verified = verify({"a": make.release_bundle(MANIFEST, make.RELEASE_KEY)})
    assert verified.capsule == CAPSULE
    assert verified.owners == ("ci",)
    assert verified.release == make.make_release()


@pytest.mark.parametrize("name", ROWS)
def test_a_release_is_refused_with_the_reason_s_own_id(name: str) -> None:
    bundles, policy, floor, error_id, exit_code = ROWS[name]
    assert refusal(lambda: verify(bundles, policy, floor=floor)) == (error_id, exit_code)


def test_two_owners_meet_a_threshold_of_two() -> None:
    assert verify({"a": GOOD, "b": SECOND}, two_owners()).owners == ("ci", "qa")


def test_a_stranger_s_extra_signature_does_no_harm() -> None:
    assert verify({"a": STRANGER, "b": GOOD}).owners == ("ci",)


def test_the_same_counter_again_is_a_reinstall_and_allowed() -> None:
    assert verify({"a": GOOD}, floor=7).release.release_counter == 7


def test_a_changed_manifest_is_not_what_was_signed() -> None:
    changed = encode_release(replace(make.make_release(), version="1.2.4"))
    assert refusal(lambda: verify({"a": GOOD}, manifest=changed))[0] == "signature-wrong-subject"


def test_a_keyless_bundle_is_left_to_the_keyless_path() -> None:
    document = decode_foreign(GOOD)
    document["verificationMaterial"] = {"certificate": {"rawBytes": "AA=="}}  # type: ignore[index,call-overload]
    assert decode_bundle(encode(document), where="x") is None
    assert refusal(lambda: verify({"a": encode(document)}))[0] == "keyless-unverified"


def test_two_signatures_in_one_bundle_are_refused() -> None:
    document = decode_foreign(GOOD)
    envelope = document["dsseEnvelope"]  # type: ignore[index,call-overload]
    envelope["signatures"] = envelope["signatures"] * 2  # type: ignore[index,call-overload]
    assert refusal(lambda: verify({"a": encode(document)}))[0] == "signature-malformed"


# --- packing -----------------------------------------------------------------------------------


def packing_bundle(key: FixedSigner, packing: bytes = b"{}", capsule: CapsuleId = CAPSULE) -> bytes:
    statement = packing_statement(packing, capsule)
    return encode_bundle(sign(statement, payload_type=IN_TOTO, signer=key))


def check_packing(bundle: bytes) -> None:
    trust.verify_packing(make.make_policy(), b"{}", CAPSULE, {"p": bundle})


def test_a_packing_signed_for_this_capsule_is_accepted() -> None:
    check_packing(packing_bundle(make.RELEASE_KEY))


@pytest.mark.parametrize(
    ("bundle", "error_id"),
    [
        (packing_bundle(make.RELEASE_KEY, b"[]"), "signature-wrong-subject"),
        (packing_bundle(make.RELEASE_KEY, capsule=make.CAPSULE), "signature-wrong-subject"),
        (packing_bundle(make.ROUTE_KEY), "authority-denied"),
        (GOOD, "signature-wrong-subject"),
    ],
)
def test_a_packing_signed_otherwise_is_refused(bundle: bytes, error_id: str) -> None:
    assert refusal(lambda: check_packing(bundle))[0] == error_id


# --- routes, orders, confirms; who signs which is in test_authorities.py --------------------------

ROUTE_BYTES = encode_route(make.make_route())
ROUTE = trust_orders.VerifiedRoute(route=make.make_route(), digest=sha256_text(ROUTE_BYTES))
ORDER_BYTES = encode_order(replace(make.make_order(), route=ROUTE.digest))
CONFIRM_BYTES = encode_confirm(replace(make.make_confirm(), route=ROUTE.digest))


def test_an_order_made_under_another_route_is_refused() -> None:
    raw = encode_order(make.make_order())
    envelope = sign(raw, payload_type=ORDER_TYPE, signer=make.CONTROLLER_KEY)
    assert refusal(lambda: trust_orders.verify_order(make.make_policy(), ROUTE, envelope)) == (
        "order-wrong-route",
        ExitCode.ROUTE_MISMATCH,
    )


def test_a_signed_confirm_is_no_order_although_the_key_may_sign_both() -> None:
    envelope = sign(CONFIRM_BYTES, payload_type=CONFIRM_TYPE, signer=make.CONTROLLER_KEY)
    assert (
        refusal(lambda: trust_orders.verify_order(make.make_policy(), ROUTE, envelope))[0]
        == "signature-malformed"
    )


def test_a_revoked_controller_gives_no_orders() -> None:
    policy = replace(make.make_policy(), revoked_keys=frozenset({make.CONTROLLER_KEY.public.keyid}))
    envelope = sign(ORDER_BYTES, payload_type=ORDER_TYPE, signer=make.CONTROLLER_KEY)
    assert refusal(lambda: trust_orders.verify_order(policy, ROUTE, envelope))[0] == "key-revoked"


def test_a_route_for_another_product_is_refused() -> None:
    route = replace(make.make_route(), product="acme/other")
    envelope = sign(encode_route(route), payload_type=ROUTE_TYPE, signer=make.ROUTE_KEY)
    assert (
        refusal(lambda: trust_orders.verify_route(make.make_policy(), envelope))[0]
        == "product-mismatch"
    )


# --- carriers ------------------------------------------------------------------------------------


def test_a_signed_record_survives_its_journey() -> None:
    envelope = sign(ORDER_BYTES, payload_type=ORDER_TYPE, signer=make.CONTROLLER_KEY)
    assert decode_record(encode_record(envelope), where="x") == envelope


def test_a_signature_over_one_payload_type_is_invalid_for_another() -> None:
    envelope = sign(b"{}", payload_type="a/b", signer=make.NODE_KEY)
    moved = Envelope(
        payload=b"{}", payload_type="a/c", keyid=envelope.keyid, signature=envelope.signature
    )
    call = lambda: moved.verify(make.NODE_KEY.public, payload_type="a/c", where="x")  # noqa: E731
    assert refusal(call)[0] == "signature-invalid"


@pytest.mark.parametrize("text", ["AA=", "A===", "AB==", "A A=", "AA==\n", "ä"])
def test_base64_has_one_spelling(text: str) -> None:
    document = decode_foreign(GOOD)
    document["dsseEnvelope"]["payload"] = text  # type: ignore[index,call-overload]
    assert refusal(lambda: decode_bundle(encode(document), where="x"))[0] == "signature-malformed"


# --- policies ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"release": AuthorityRule(keys=(make.RELEASE_KEY.public.keyid,), threshold=2)},
        {"release": AuthorityRule(keys=(), threshold=1)},
        {"route": AuthorityRule(keys=(make.RELEASE_KEY.public.keyid,), threshold=1)},
        {"trust": AuthorityRule(keys=(make.STRANGER_KEY.public.keyid,), threshold=1)},
    ],
    ids=["more than its owners", "nobody", "two authorities for a key", "a key not listed"],
)
def test_a_policy_that_could_never_decide_well_is_refused(change: dict[str, AuthorityRule]) -> None:
    policy = replace(make.make_policy(), **change)  # type: ignore[arg-type]
    assert refusal(lambda: decode_policy(encode_policy(policy)))[0] == "policy-invalid"


CI = Identity(
    owner="ci", san="https://git.example/a/b", issuer="https://issuer.example", counter_from=1,
    counter_to=None,
)  # fmt: skip
PINNED = {"trusted_root": sha256_text(b"root")}


def keyless(**rules: tuple[str, ...]) -> dict[str, object]:
    policy = make.make_policy()
    return {
        name: replace(getattr(policy, name), identities=held) for name, held in rules.items()
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"identities": {"ci": CI}}, "without a trusted root"),
        ({"identities": {"ci": CI, "twin": CI}, **PINNED}, "listed twice"),
        ({**keyless(release=("ci",))}, "not listed"),
        ({"identities": {"ci": CI}, **PINNED, **keyless(route=("ci",))}, "keys only"),
        ({"identities": {"ci": CI}, **PINNED, **keyless(trust=("ci",))}, "keys only"),
        ({"identities": {"ci": replace(CI, counter_from=9, counter_to=8)}, **PINNED}, "window"),
        ({"downgrades": (Downgrade(capsule=CAPSULE, reason="x"),) * 2}, "listed twice"),
        (
            {
                "downgrades": (Downgrade(capsule=CAPSULE, reason="x"),),
                "revoked_capsules": frozenset({CAPSULE}),
            },
            "revoked capsule",
        ),
    ],
)
def test_a_policy_that_contradicts_itself_is_refused(change: dict[str, object], words: str) -> None:
    policy = replace(make.make_policy(), **change)  # type: ignore[arg-type]
    with pytest.raises(Refused, match=words) as caught:
        decode_policy(encode_policy(policy))
    assert caught.value.error_id == "policy-invalid"


def test_a_route_threshold_above_one_is_refused_because_no_route_could_meet_it() -> None:
    policy = make.make_policy()
    other = replace(policy.keys[make.ROUTE_KEY.public.keyid], key=make.STRANGER_KEY.public,
                    owner="eve")  # fmt: skip
    rule = AuthorityRule(
        keys=(make.ROUTE_KEY.public.keyid, make.STRANGER_KEY.public.keyid), threshold=2
    )
    policy = replace(policy, keys={**policy.keys, other.key.keyid: other}, route=rule)
    assert refusal(lambda: decode_policy(encode_policy(policy)))[0] == "policy-invalid"


def test_a_downgrade_lets_one_capsule_below_both_floors_and_is_told() -> None:
    exception = Downgrade(capsule=CAPSULE, reason="8 loses mail")
    policy = replace(make.make_policy(), release_counter_floor=9, downgrades=(exception,))
    assert verify({"a": GOOD}, policy, floor=20).downgrade == exception
    assert verify({"a": GOOD}).downgrade is None


def test_age_makes_a_policy_stale_and_nothing_else() -> None:
    policy = replace(make.make_policy(), issued_s=1000, max_age_s=10)
    assert [policy.stale_s(now) for now in (0, 1010, 1011, 5000)] == [None, None, 1, 3990]
    assert verify({"a": GOOD}, policy).owners == ("ci",)


def spelled_otherwise(change: Callable[[dict[str, object]], None]) -> bytes:
    document = decode_foreign(encode_policy(make.make_policy()))
    assert isinstance(document, dict)
    change(document)
    return encode(document)


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document["keys"].reverse(),
        lambda document: document.update(revoked_keys=["a", "a"]),
        lambda document: document.update(revoked_keys=["b", "a"]),
    ],
    ids=["keys in another order", "a key revoked twice", "revoked keys in another order"],
)
def test_a_policy_has_one_spelling_because_digests_compare_it(change):
    with pytest.raises(Refused) as caught:
        decode_policy(spelled_otherwise(change))
    assert caught.value.error_id == "policy-invalid"
    assert "out of order" in str(caught.value)
