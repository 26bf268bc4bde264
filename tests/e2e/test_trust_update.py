"""A policy from a trust owner's desk to a host, by medium and controller, all programs real."""

import pytest

from capsule_manifest.envelope import decode_record
from capsule_manifest.keys import b64decode
from capsule_manifest.records import decode_receipt
from support.trust_site import Site


@pytest.fixture
def site(tmp_path, capsys):
    return Site(tmp_path, capsys)


def only(answer):
    (node,) = answer["nodes"].values()
    return node.get("error")


def test_a_host_takes_the_next_policy_from_its_controller_and_never_an_older_one(site):
    made = site.capsule(7)
    assert site.stage(made, site.folder / "trust.json")[0] == 0
    assert site.host_policy["version"] == 1
    site.carry(2, "--floor", "7")
    newest = site.trust / "policy.json"
    assert site.stage(made, newest)[0] == 0
    assert site.host_policy["version"] == 2
    receipts = sorted((site.host / "var/lib/capsule/receipts").glob("[0-9]*"))
    assert len(receipts) >= 3, "enrolled, staged, trust"
    code, answer = site.stage(made, site.folder / "trust.json")
    assert (code, only(answer)) == (40, "policy-differs"), answer
    assert site.host_policy["version"] == 2


def test_a_capsule_that_the_next_policy_revokes_is_not_staged_again(site):
    made = site.capsule(7)
    assert site.stage(made, site.folder / "trust.json")[0] == 0
    site.carry(2, "--revoke-capsule", made.capsule)
    code, answer = site.stage(made, site.trust / "policy.json")
    assert (code, answer["error"]) == (12, "capsule-revoked")


def test_going_back_is_signed_by_the_trust_owners_and_the_hosts_receipt_repeats_why(site):
    made = site.capsule(7)
    site.carry(2, "--floor", "99")
    code, answer = site.stage(made, site.trust / "policy.json")
    assert (code, answer["error"]) == (12, "release-counter-too-low")
    site.carry(3, "--allow", made.capsule, "release 99 loses mail")
    code, answer = site.stage(made, site.trust / "policy.json")
    assert code == 0, answer
    code, records = site.on_host("receipts", "--json")
    assert code == 0
    (staged,) = [receipt for receipt in map(opened, records) if receipt.kind == "stage"]
    assert staged.capsule == made.capsule
    assert staged.details["downgrade"] == "release 99 loses mail"


def opened(record):
    """Return the receipt that a record of the host carries."""
    return decode_receipt(decode_record(b64decode(record["receipt"], "x"), where="x").payload)
