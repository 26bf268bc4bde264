from dataclasses import replace

from capsule.freeze import freeze, freeze_and_sign
from capsule.inventory import read_fleet
from capsule_manifest.digest import sha256_text
from capsule_manifest.envelope import decode_record
from capsule_manifest.policy import encode_policy
from capsule_manifest.trust_orders import verify_route
from support import documents
from support.formats import refused

FLEET = b"""
format = 1
product = "acme/hello"
[fleet]
floor = 0
max_unavailable = 1
[nodes.n1]
local = "n1"
role = "web"
platform = "bookworm"
lane = "a"
"""


def make_route(tmp_path, text=FLEET, controllers=(documents.CONTROLLER_KEY.public,), keys=None):
    return freeze(
        read_fleet(text, folder=tmp_path, where="fleet.toml"),
        policy=documents.make_policy(),
        controllers=controllers,
        node_keys=keys or {},
    )


def sign_route(route, signer=documents.ROUTE_KEY):
    return freeze_and_sign(route, policy=documents.make_policy(), signer=signer)


def test_freezing_twice_gives_one_digest_under_two_signatures(tmp_path):
    first, second = sign_route(make_route(tmp_path)), sign_route(make_route(tmp_path))
    assert first.digest == second.digest
    assert first.record != second.record


def test_a_frozen_route_is_what_hosts_will_verify(tmp_path):
    frozen = sign_route(make_route(tmp_path, keys={"n1": documents.NODE_KEY.public.keyid}))
    verified = verify_route(documents.make_policy(), decode_record(frozen.record, where="route"))
    assert verified == frozen.verified
    assert frozen.route.policy == sha256_text(encode_policy(documents.make_policy()))
    assert frozen.route.nodes["n1"].node_key == documents.NODE_KEY.public.keyid
    assert frozen.route.nodes["n1"].endpoint.root == str(tmp_path / "n1")


def test_what_the_inventory_says_changes_the_digest(tmp_path):
    changed = FLEET.replace(b'lane = "a"', b'lane = "b"')
    assert (
        sign_route(make_route(tmp_path)).digest != sign_route(make_route(tmp_path, changed)).digest
    )


def test_an_inventory_of_another_product_is_refused(tmp_path):
    with refused("product-mismatch"):
        make_route(tmp_path, FLEET.replace(b"acme/hello", b"acme/other"))


def test_a_key_without_the_route_authority_freezes_nothing(tmp_path):
    with refused("authority-denied"):
        sign_route(make_route(tmp_path), documents.RELEASE_KEY)
    with refused("key-unknown"):
        sign_route(make_route(tmp_path), documents.STRANGER_KEY)


def test_a_release_key_is_refused_as_a_controller(tmp_path):
    with refused("authority-denied"):
        sign_route(make_route(tmp_path, controllers=(documents.RELEASE_KEY.public,)))


def test_a_revoked_route_key_freezes_nothing(tmp_path):
    policy = replace(
        documents.make_policy(), revoked_keys=frozenset({documents.ROUTE_KEY.public.keyid})
    )
    with refused("key-revoked"):
        freeze_and_sign(make_route(tmp_path), policy=policy, signer=documents.ROUTE_KEY)
