"""Wall time decides nothing on a host: at 1970, at 2099, and set back between stage and install."""

import ast
import datetime as dt
import time
from dataclasses import replace

import pytest

from capsule_installer.host.enrol import enrol
from capsule_installer.host.identity import require_node_key
from capsule_installer.op.order_check import HostFacts, check_order
from capsule_installer.verbs.trust import update_policy
from capsule_manifest.digest import sha256_text
from capsule_manifest.envelope import sign
from capsule_manifest.orders import ORDER_TYPE, encode_order
from capsule_manifest.policy import POLICY_TYPE, encode_policy
from capsule_manifest.policy_update import encode_policy_update
from capsule_manifest.trust_orders import VerifiedRoute
from support import documents
from support.deliveries import Receiver, make_capsule
from support.sources import modules

YEARS = (1970, 2026, 2099)


def set_clock(monkeypatch, year):
    moment = dt.datetime(year, 1, 1, tzinfo=dt.UTC).timestamp()
    monkeypatch.setattr(time, "time", lambda: moment)
    monkeypatch.setattr(time, "time_ns", lambda: int(moment) * 10**9)


@pytest.mark.parametrize("staged_in", YEARS)
@pytest.mark.parametrize("installed_in", YEARS)
def test_a_release_is_staged_and_ordered_whatever_the_clock_says(
    tmp_path, monkeypatch, staged_in, installed_in
):
    receiver = Receiver(str(tmp_path))
    receiver.host.prepare()
    enrol(receiver.host, receiver.request())
    set_clock(monkeypatch, staged_in)
    made = make_capsule()
    receiver.receive(made)
    marker = receiver.marker(made)
    assert marker is not None
    set_clock(monkeypatch, installed_in)
    route = receiver.state.route(receiver.state.policy())
    assert isinstance(route, VerifiedRoute)
    signer = require_node_key(receiver.disk, receiver.layout).public
    order = replace(
        documents.make_order(),
        node=marker.node,
        node_key=signer.keyid,
        capsule=marker.capsule,
        release_counter=marker.release_counter,
        generation=marker.generation,
        prior="absent",
        route=route.digest,
    )
    facts = HostFacts(
        node=marker.node, node_key=signer, policy=receiver.state.policy(), route=route, fence=0,
        counter_floor=0, boot_id="boot", boot_ms=2000, issued_ms=1000, current="absent",
        previous="absent", marker=marker, guard_levels=("L0", "L2"),
    )  # fmt: skip
    envelope = sign(encode_order(order), payload_type=ORDER_TYPE, signer=documents.CONTROLLER_KEY)
    assert check_order(facts, envelope) == order


@pytest.mark.parametrize("year", YEARS)
def test_a_host_takes_a_signed_policy_whatever_the_clock_says(tmp_path, monkeypatch, year):
    receiver = Receiver(str(tmp_path))
    receiver.host.prepare()
    enrol(receiver.host, receiver.request())
    set_clock(monkeypatch, year)
    newer = replace(receiver.policy, version=2, issued_s=4_000_000_000, max_age_s=1)
    record = sign(encode_policy(newer), payload_type=POLICY_TYPE, signer=documents.TRUST_KEY)
    update_policy(receiver.host, encode_policy_update([record]))
    assert sha256_text(encode_policy(receiver.state.policy())) == sha256_text(encode_policy(newer))


# Lets a person see what the clock says; the preflight shows it, and nothing decides by it.
REPORTED = {"installer/capsule_installer/system/clock.py"}


def test_no_code_of_the_host_or_of_the_formats_can_read_wall_time():
    readers = {"time", "time_ns", "now", "utcnow", "today", "localtime", "gmtime", "CLOCK_REALTIME"}
    found = [
        f"{module.name}:{node.lineno} {ast.unparse(node)}"
        for module in modules("installer", "manifest")
        for node in ast.walk(module.tree)
        if module.name not in REPORTED
        and isinstance(node, ast.Attribute)
        and node.attr in readers
        and ast.unparse(node.value) in {"time", "datetime", "datetime.datetime", "date"}
    ]
    assert found == []
