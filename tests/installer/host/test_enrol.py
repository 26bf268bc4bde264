"""First contact and hello: who a host is, decided once; and folders that others could change."""

from pathlib import Path

import pytest

from capsule_installer.host.enrol import enrol
from capsule_installer.verbs.hello import hello
from capsule_manifest.digest import sha256_text
from capsule_manifest.keys import b64encode
from capsule_manifest.policy import encode_policy
from support.deliveries import BOOT, NODE, Receiver, make_capsule
from support.failures import fails_with


@pytest.fixture
def receiver(tmp_path: Path) -> Receiver:
    made = Receiver(str(tmp_path))
    made.host.prepare()
    return made


def test_enrolling_makes_a_key_and_keeps_name_and_policy(receiver):
    signer, envelope = enrol(receiver.host, receiver.request())
    enrolment = receiver.state.enrolment()
    assert (enrolment.node, enrolment.product) == (NODE, "acme/hello")
    assert enrolment.policy == sha256_text(encode_policy(receiver.policy))
    assert receiver.state.policy() == receiver.policy
    (receipt,) = receiver.chain().read_all()
    assert receipt.envelope == envelope
    assert receipt.receipt.kind == "enrol"
    assert receipt.receipt.node_key == signer.public.keyid


def test_enrolling_again_with_the_same_values_changes_nothing(receiver):
    first = enrol(receiver.host, receiver.request())
    again = enrol(receiver.host, receiver.request())
    assert first[0].public == again[0].public
    assert first[1] == again[1]
    assert len(receiver.chain().read_all()) == 1


@pytest.mark.parametrize("change", ["node", "policy"])
def test_enrolling_again_with_other_values_is_refused(receiver, change):
    enrol(receiver.host, receiver.request())
    from dataclasses import replace

    other = encode_policy(replace(receiver.policy, version=2))
    value = "n2" if change == "node" else b64encode(other)
    with fails_with("enrolment-differs"):
        enrol(receiver.host, receiver.request(**{change: value}))
    assert receiver.state.policy() == receiver.policy


@pytest.mark.parametrize(
    ("changes", "error_id"),
    [
        ({"node": "../n1"}, "document-invalid"),
        ({"node": ""}, "document-invalid"),
        ({"product": "other/thing"}, "product-mismatch"),
        ({"policy": "!"}, "signature-malformed"),
        ({"policy": b64encode(b"{}")}, "document-invalid"),
        ({"more": 1}, "document-invalid"),
    ],
)
def test_a_request_that_can_not_be_right_is_refused_and_nothing_is_kept(
    receiver, changes, error_id
):
    with fails_with(error_id):
        enrol(receiver.host, receiver.request(**changes))
    assert list(Path(receiver.layout.state).glob("*.*")) == []


def test_a_hello_of_a_new_host_says_what_is_not_there(receiver):
    said = hello(receiver.host)
    assert said["node"] is None
    assert said["node_key"] is None
    assert said["policy"] is None
    assert said["current"] == "absent"
    assert said["staged"] == []
    assert said["open_op"] is None


def test_a_hello_remembers_its_nonce_for_an_order(receiver):
    said = hello(receiver.host)
    assert receiver.state.nonce_ms(said["nonce"], boot_id=BOOT) == said["boot_ms"]


def test_a_hello_names_what_is_staged_and_what_has_come_in_part(receiver):
    enrol(receiver.host, receiver.request())
    capsule = make_capsule()
    receiver.receive(capsule)
    Path(receiver.layout.incoming, "x.part").write_bytes(b"12345")
    said = hello(receiver.host)
    assert said["staged"] == [capsule.generation]
    assert {f"blake3:{root.hex()}" for root in capsule.trees} <= set(said["trees"])
    assert said["partial_bytes"] == 5
    assert said["fence"] == 3
    assert said["route"] == receiver.state.route_envelope().digest


def test_an_op_without_a_result_is_open(receiver):
    folder = Path(receiver.layout.ops, "ab" * 16)
    folder.mkdir()
    (folder / "intent").touch()
    assert hello(receiver.host)["open_op"] == "ab" * 16
    (folder / "result").touch()
    assert hello(receiver.host)["open_op"] is None


# --- folders -------------------------------------------------------------------------------------


def test_a_state_folder_that_is_a_link_is_refused(tmp_path):
    receiver = Receiver(str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "var" / "lib").mkdir(parents=True)
    (tmp_path / "var" / "lib" / "capsule").symlink_to(tmp_path / "elsewhere")
    with fails_with("host-folder-unsafe"):
        receiver.host.prepare()
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757])
def test_a_root_that_others_can_write_is_refused(tmp_path, mode):
    tmp_path.chmod(mode)
    with fails_with("host-folder-unsafe"):
        Receiver(str(tmp_path)).host.prepare()


def test_a_root_of_another_user_is_refused(tmp_path):
    receiver = Receiver(str(tmp_path), uid=12345)
    with fails_with("host-folder-unsafe"):
        receiver.host.prepare()


def test_a_root_that_is_not_there_is_refused(tmp_path):
    with fails_with("host-folder-unsafe"):
        Receiver(f"{tmp_path}/nowhere", uid=0).host.prepare()
    assert not (tmp_path / "nowhere").exists()
