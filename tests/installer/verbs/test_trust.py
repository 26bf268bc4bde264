"""A host's next policy: taken from anybody, on the word of those who hold trust."""

from dataclasses import replace
from pathlib import Path

import pytest

from capsule_installer.host.enrol import enrol
from capsule_installer.verbs.trust import update_policy
from capsule_manifest.digest import sha256_text
from capsule_manifest.envelope import sign
from capsule_manifest.policy import POLICY_TYPE, Authority, encode_policy
from capsule_manifest.policy_update import encode_policy_update
from support import documents
from support.deliveries import Receiver
from support.failures import fails_with

KEYS = {
    Authority.RELEASE: documents.RELEASE_KEY,
    Authority.ROUTE: documents.ROUTE_KEY,
    Authority.ORDER: documents.CONTROLLER_KEY,
    Authority.TRUST: documents.TRUST_KEY,
}


@pytest.fixture
def receiver(tmp_path: Path) -> Receiver:
    made = Receiver(str(tmp_path))
    made.host.prepare()
    enrol(made.host, made.request())
    return made


def update(*policies, key=documents.TRUST_KEY, payload_type=POLICY_TYPE):
    return encode_policy_update(
        [sign(encode_policy(item), payload_type=payload_type, signer=key) for item in policies]
    )


def test_a_signed_newer_policy_is_taken_with_a_receipt(receiver):
    newer = replace(receiver.policy, version=2)
    before, after, envelope = update_policy(receiver.host, update(newer))
    assert (before, after) == (receiver.policy, newer)
    assert receiver.state.policy() == newer
    last = receiver.chain().read_all()[-1]
    assert last.envelope == envelope
    assert last.receipt.kind == "trust"
    assert last.receipt.details["policy"] == sha256_text(encode_policy(newer))


def test_the_same_update_again_changes_nothing(receiver):
    raw = update(replace(receiver.policy, version=2))
    first = update_policy(receiver.host, raw)
    again = update_policy(receiver.host, raw)
    assert again == (first[1], first[1], first[2])
    assert len(receiver.chain().read_all()) == 2


def test_a_receipt_that_a_stop_prevented_is_written_by_the_same_update(receiver):
    newer = replace(receiver.policy, version=2)
    receiver.state.store_policy(encode_policy(newer))
    update_policy(receiver.host, update(newer))
    assert receiver.chain().read_all()[-1].receipt.kind == "trust"


def test_a_host_that_missed_versions_walks_them_in_any_order_of_the_records(receiver):
    newer = [replace(receiver.policy, version=version) for version in (2, 3, 5)]
    assert update_policy(receiver.host, update(*reversed(newer)))[1] == newer[-1]


def test_a_policy_is_never_rolled_back_or_replayed(receiver):
    old, new = (replace(receiver.policy, version=version) for version in (2, 3))
    update_policy(receiver.host, update(new))
    with fails_with("policy-older"):
        update_policy(receiver.host, update(old))
    assert receiver.state.policy() == new


def test_a_second_policy_under_the_number_that_holds_is_refused(receiver):
    update_policy(receiver.host, update(replace(receiver.policy, version=2)))
    with fails_with("policy-forked"):
        update_policy(
            receiver.host, update(replace(receiver.policy, version=2, release_counter_floor=3))
        )


@pytest.mark.parametrize("authority", [a for a in Authority if a is not Authority.TRUST])
def test_no_other_authority_makes_policies(receiver, authority):
    raw = update(replace(receiver.policy, version=2), key=KEYS[authority])
    expected = "key-unknown" if authority is Authority.ORDER else "authority-denied"
    with fails_with(expected):
        update_policy(receiver.host, raw)
    assert receiver.state.policy() == receiver.policy


def test_a_policy_signed_as_something_else_is_refused(receiver):
    raw = update(replace(receiver.policy, version=2), payload_type="application/vnd.in-toto+json")
    with fails_with("signature-malformed"):
        update_policy(receiver.host, raw)


def test_a_revoked_trust_key_appoints_nobody(receiver):
    keyid = documents.TRUST_KEY.public.keyid
    holds = replace(receiver.policy, version=3, revoked_keys=frozenset({keyid}))
    receiver.state.store_policy(encode_policy(holds))
    with fails_with("key-revoked"):
        update_policy(receiver.host, update(replace(holds, version=4)))


def test_a_policy_does_not_change_under_an_open_op(receiver):
    folder = receiver.host.layout.op("0123456789abcdef0123456789abcdef")
    Path(folder).mkdir(parents=True)
    (Path(folder) / "intent").write_bytes(b"{}")
    with fails_with("op-open"):
        update_policy(receiver.host, update(replace(receiver.policy, version=2)))
    assert receiver.state.policy() == receiver.policy


@pytest.mark.parametrize(
    ("raw", "error_id"),
    [
        (b"", "json-malformed"),
        (b"[", "json-malformed"),
        (b"{}", "document-invalid"),
        (b'{"schema":"capsule-policy-update/2"}', "document-version"),
        (b'{"records":[],"schema":"capsule-policy-update/1"}', "policy-older"),
        (b'{"records":["!"],"schema":"capsule-policy-update/1"}', "signature-malformed"),
    ],
)
def test_an_update_that_can_not_be_read_is_refused(receiver, raw, error_id):
    with fails_with(error_id):
        update_policy(receiver.host, raw)
