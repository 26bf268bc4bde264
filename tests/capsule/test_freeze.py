from dataclasses import replace

from capsule.freeze import freeze, freeze_and_sign
from capsule.inventory import read_fleet
from capsule.names import look_up
from capsule.rollout.drift import drift_of
from capsule_manifest.digest import sha256_text
from capsule_manifest.envelope import decode_record
from capsule_manifest.policy import encode_policy
from capsule_manifest.trust_orders import verify_route
from support import documents
from support.failures import fails_with
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


def nobody(name):
    raise AssertionError(f"{name} was looked up")


def make_route(
    tmp_path,
    text=FLEET,
    controllers=(documents.CONTROLLER_KEY.public,),
    keys=None,
    look_up=nobody,
):
    return freeze(
        read_fleet(text, folder=tmp_path, where="fleet.toml"),
        policy=documents.make_policy(),
        controllers=controllers,
        node_keys=keys or {},
        look_up=look_up,
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


NAMED = (
    FLEET
    + b"""
[nodes.n2]
address = "w2.example"
host_key = "ssh-ed25519 AAAA"
jump = ["gate"]
role = "web"
platform = "bookworm"
lane = "a"
[jumps.gate]
address = "gate.example"
host_key = "ssh-ed25519 BBBB"
"""
)


class Resolver:
    """Answers from a table, and what it was asked."""

    def __init__(self, **answers):
        self.answers = {name.replace("_", "."): found for name, found in answers.items()}
        self.asked = []

    def __call__(self, name):
        self.asked.append(name)
        return self.answers[name]


def test_names_are_looked_up_once_and_the_route_has_addresses_with_their_names(tmp_path):
    resolver = Resolver(w2_example=("192.0.2.2",), gate_example=("192.0.2.9",))
    frozen = sign_route(make_route(tmp_path, NAMED, look_up=resolver))
    endpoint = frozen.route.nodes["n2"].endpoint
    assert (endpoint.address, endpoint.name) == ("192.0.2.2", "w2.example")
    assert [(hop.address, hop.name) for hop in endpoint.jump] == [("192.0.2.9", "gate.example")]
    assert sorted(resolver.asked) == ["gate.example", "w2.example"]


def test_an_answer_that_is_turned_round_changes_no_digest_and_another_address_does(tmp_path):
    gate = {"gate_example": ("192.0.2.9",)}
    first, turned, other = (
        sign_route(make_route(tmp_path, NAMED, look_up=Resolver(w2_example=found, **gate)))
        for found in (
            ("2001:db8::1", "192.0.2.30", "192.0.2.4"),
            ("192.0.2.4", "2001:db8::1", "192.0.2.30"),
            ("192.0.2.5",),
        )
    )
    assert first.route.nodes["n2"].endpoint.address == "192.0.2.4"
    assert first.digest == turned.digest != other.digest


def test_two_names_of_one_host_are_refused_and_one_address_behind_two_gates_is_not(tmp_path):
    third = NAMED[NAMED.index(b"[nodes.n2]") : NAMED.index(b"[jumps")]
    third = third.replace(b"nodes.n2", b"nodes.n3").replace(b"w2.", b"w3.")
    resolver = Resolver(
        w2_example=("192.0.2.2",), w3_example=("192.0.2.2",), gate_example=("192.0.2.9",)
    )
    with refused("endpoint-shared"):
        make_route(tmp_path, NAMED + third, look_up=resolver)
    direct = third.replace(b'jump = ["gate"]\n', b"")
    route = make_route(tmp_path, NAMED + direct, look_up=resolver)
    assert route.nodes["n3"].endpoint.address == route.nodes["n2"].endpoint.address


def test_a_name_without_an_address_freezes_nothing(tmp_path):
    with fails_with("name-unknown"):
        make_route(tmp_path, NAMED, look_up=Resolver(w2_example=(), gate_example=("192.0.2.9",)))
    with fails_with("name-unknown"):
        look_up("no-such-name.invalid")


def test_drift_compares_names_with_names_and_looks_nothing_up(tmp_path):
    resolver = Resolver(w2_example=("192.0.2.2",), gate_example=("192.0.2.9",))
    route = make_route(tmp_path, NAMED, look_up=resolver)
    asked = list(resolver.asked)
    same = read_fleet(NAMED, folder=tmp_path, where="fleet.toml")
    assert drift_of(route, same) == ()
    text = NAMED.replace(b"w2.example", b"w9.example")
    changed = read_fleet(text, folder=tmp_path, where="fleet.toml")
    assert [item.where for item in drift_of(route, changed)] == ["nodes.n2.endpoint"]
    assert resolver.asked == asked
