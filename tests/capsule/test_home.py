from dataclasses import replace
from pathlib import Path

import pytest

from capsule.durable import exclusive
from capsule.freeze import freeze_and_sign
from capsule.home import ProductHome, default_home
from capsule_manifest.digest import sha256_text
from capsule_manifest.policy import encode_policy
from support import documents
from support.failures import fails_with
from support.formats import refused


@pytest.fixture
def home(tmp_path):
    return ProductHome(home=tmp_path / "state", product="acme/hello")


def frozen(floor):
    policy = documents.make_policy()
    route = replace(documents.make_route(), floor=floor, policy=sha256_text(encode_policy(policy)))
    return freeze_and_sign(route, policy=policy, signer=documents.ROUTE_KEY)


def test_the_fence_begins_at_one_and_stays_until_it_is_raised(home):
    assert (home.fence(), home.fence()) == (1, 1)
    assert home.raise_fence(0) == 2
    assert home.raise_fence(40) == 41
    assert home.raise_fence(7) == 42
    assert home.fence() == 42


def test_a_damaged_fence_is_refused_and_not_begun_again(home):
    home.fence()
    (home.folder / "fence.json").write_bytes(b"{}")
    with refused("document-invalid"):
        home.fence()


def test_two_commands_never_raise_the_fence_at_once(home):
    with exclusive(home.folder / "lock"), fails_with("controller-busy"):
        home.raise_fence(0)
    assert home.raise_fence(0) == 1


def test_the_first_key_of_a_node_is_pinned_and_another_is_refused(home):
    assert home.node_key("n1") is None
    home.pin_node("n1", documents.NODE_KEY.public)
    home.pin_node("n1", documents.NODE_KEY.public)
    assert home.node_key("n1") == documents.NODE_KEY.public
    with refused("node-key-changed"):
        home.pin_node("n1", documents.STRANGER_KEY.public)
    assert home.node_key("n1") == documents.NODE_KEY.public
    assert home.node_keys(("n1", "n2")) == {"n1": documents.NODE_KEY.public.keyid}


def test_products_do_not_share_pins(home, tmp_path):
    home.pin_node("n1", documents.NODE_KEY.public)
    other = ProductHome(home=tmp_path / "state", product="acme/other")
    assert other.node_key("n1") is None


def test_every_route_is_kept_and_the_last_one_is_the_latest(home):
    policy = documents.make_policy()
    with refused("route-not-frozen"):
        home.latest_route(policy)
    first, second = frozen(0), frozen(1)
    for route in (first, second, second):
        home.store_route(route)
    assert home.latest_route(policy).digest == second.digest
    assert len(list((home.folder / "routes").glob("*.json"))) == 2
    home.store_route(frozen(0))
    assert home.latest_route(policy).digest == first.digest


def test_a_route_that_the_policy_does_not_take_is_refused_when_read(home):
    home.store_route(frozen(0))
    policy = documents.make_policy()
    revoked = replace(policy, revoked_keys=frozenset({documents.ROUTE_KEY.public.keyid}))
    with refused("key-revoked"):
        home.latest_route(revoked)


def test_what_the_controller_keeps_is_private(home):
    home.fence()
    home.pin_node("n1", documents.NODE_KEY.public)
    modes = {path.stat().st_mode & 0o777 for path in home.folder.rglob("*")}
    assert modes == {0o700, 0o600}


@pytest.mark.parametrize(
    ("state", "expected"),
    [("/s", "/s/capsule"), ("", "~/.local/state/capsule"), ("rel", "~/.local/state/capsule")],
)
def test_the_default_folder_follows_the_user(monkeypatch, state, expected):
    monkeypatch.setenv("XDG_STATE_HOME", state)
    monkeypatch.setenv("HOME", "/home/ada")
    assert default_home() == Path(expected.replace("~", "/home/ada"))
