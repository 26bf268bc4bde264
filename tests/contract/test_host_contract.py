"""What the controller relies on, asked of the real host program and of the fake one alike.

The fake host is what the controller's tests run against, so it must not promise more.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from capsule.host_records import read_hello
from capsule.receipts_store import check_receipt
from capsule.session import HostSession
from capsule.transport.local import LocalTransport
from capsule_manifest.digest import sha256_text
from capsule_manifest.policy import encode_policy
from support import documents
from support.capsules import fake_runtime
from support.failures import fails_with
from support.host_programs import real_launcher

POLICY = encode_policy(documents.make_policy())


@pytest.fixture(params=["fake", "real"])
def session(request, tmp_path):
    launchers = {
        "fake": fake_runtime()["site/capsule_installer/bin_capsule.sh"],
        "real": real_launcher(),
    }
    root = tmp_path / "host"
    program = root / "opt/capsule/bin/capsule"
    program.parent.mkdir(parents=True)
    for folder in (root, root / "opt", root / "opt/capsule", program.parent):
        folder.chmod(0o755)
    program.write_bytes(launchers[request.param].replace(b"@RUNTIME@", b"0123abcd"))
    program.chmod(0o755)
    return HostSession(LocalTransport(Path(root)), node="n1")


def test_a_fresh_host_says_that_it_is_nobody_yet(session):
    hello = session.hello()
    assert (hello.node, hello.node_key, hello.policy, hello.route) == (None, None, None, None)
    assert (hello.current, hello.previous, hello.staged, hello.open_op) == (
        "absent", "absent", (), None,
    )  # fmt: skip
    assert (hello.fence, hello.hold) == (0, False)
    assert "L0" in hello.guard_levels


def test_every_hello_of_one_boot_names_that_boot(session):
    first, second = session.hello(), session.hello()
    assert first.boot_id == second.boot_id
    assert first.nonce
    assert second.nonce


def test_enrolling_gives_the_host_a_key_a_name_and_a_policy(session):
    key, record = session.enrol(policy=POLICY, product="acme/hello")
    hello = session.hello()
    assert (hello.node, hello.node_key, hello.policy) == ("n1", key, sha256_text(POLICY))
    receipt = check_receipt(record, node="n1", key=key).receipt
    assert (receipt.kind, receipt.sequence, receipt.result) == ("enrol", 1, "done")
    assert session.receipts() == [record]


def test_enrolling_again_with_the_same_values_keeps_the_key(session):
    key, _ = session.enrol(policy=POLICY, product="acme/hello")
    assert session.enrol(policy=POLICY, product="acme/hello")[0] == key


def test_enrolling_again_under_another_policy_or_name_is_refused(session):
    key, _ = session.enrol(policy=POLICY, product="acme/hello")
    other = encode_policy(replace(documents.make_policy(), version=2))
    with fails_with("enrolment-differs"):
        session.enrol(policy=other, product="acme/hello")
    with fails_with("enrolment-differs"):
        HostSession(session.transport, node="n2").enrol(policy=POLICY, product="acme/hello")
    assert session.hello().node_key == key


def test_an_order_that_is_no_record_is_refused_as_an_error_record(session):
    session.enrol(policy=POLICY, product="acme/hello")
    with fails_with("json-malformed"):
        session.ask("install", answer="accepted", stdin=b"not json")


def test_a_stream_that_ends_early_stages_nothing(session):
    session.enrol(policy=POLICY, product="acme/hello")
    with fails_with("wire-malformed"):
        session.ask("receive", answer="staged", stdin=b"\x01\0\0\0")
    assert session.hello().staged == ()


def test_a_delivery_begins_with_the_hello_that_is_asked_for(session):
    session.enrol(policy=POLICY, product="acme/hello")
    with session.dialogue("receive", "--hello") as dialogue:
        said = read_hello(dialogue.expect("hello"), "n1")
        dialogue.channel.end_input()
        dialogue.finish()
    assert said.node == "n1"
    assert (said.node_key, said.policy) == (session.hello().node_key, session.hello().policy)


def test_whoever_says_nothing_after_a_hello_keeps_nobody_out(session):
    session.enrol(policy=POLICY, product="acme/hello")
    with session.dialogue("receive", "--hello") as silent:
        silent.expect("hello")
        with fails_with("wire-malformed"):  # and not `host-busy`
            session.ask("receive", answer="staged", stdin=b"\x01\0\0\0")
