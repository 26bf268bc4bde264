import json
import shutil

import pytest

from capsule.fleet_status import ask_hosts, highest_fence, node_state, state_code
from capsule.host_records import read_hello
from capsule.transport.connect import connect
from capsule_manifest.errors import ExitCode, Failed
from capsule_manifest.route import Endpoint
from support.capsules import fake_runtime
from support.failures import fails_with

HELLO = {
    "record": "hello", "wire": 1, "installer": "0.1.0", "runtime": None, "node": "n1",
    "node_key": None, "machine": "x86_64", "glibc": "2.36", "pythons": {}, "free_bytes": 1,
    "free_inodes": 1, "boot_id": "b", "nonce": "n", "fence": 3, "counter_floor": 0, "policy": None,
    "route": None, "staged": [], "trees": [], "current": "absent", "previous": "absent",
    "open_op": None, "hold": False, "guard_levels": ["L0"], "service_manager": "process",
}  # fmt: skip


def hello(**changes):
    return read_hello({**HELLO, **changes}, "n1")


def test_a_host_that_speaks_a_newer_wire_is_refused():
    with fails_with("document-version"):
        hello(wire=2)


@pytest.mark.parametrize("field", sorted(set(HELLO) - {"record", "wire"}))
def test_a_hello_with_a_field_of_another_type_is_refused(field):
    with fails_with("document-invalid"):
        hello(**{field: 1.5})


@pytest.mark.parametrize(
    ("changes", "state", "code"),
    [
        ({}, "absent", 0),
        ({"node": None}, "not enrolled", 0),
        ({"node": "n2"}, "foreign", 6),
        ({"current": "1-00000000"}, "installed", 0),
        ({"current": "1-00000000", "hold": True}, "held", 5),
        ({"current": "1-00000000", "hold": True, "open_op": "f" * 32}, "installing", 0),
    ],
)
def test_the_state_of_a_host_is_one_word(changes, state, code):
    assert node_state("n1", hello(**changes)) == state
    assert state_code(state) == ExitCode(code)


def test_a_host_that_does_not_answer_has_a_state_too():
    gone = Failed("host-unreachable", "gone")
    assert node_state("n1", gone) == "unknown"
    assert state_code("unknown") is ExitCode.NOT_SERVING
    assert node_state("n1", Failed("host-program-missing", "none")) == "no program"


def test_the_highest_fence_is_that_of_hosts_that_answered():
    answers = [hello(fence=4), Failed("host-unreachable", "gone"), hello(fence=9)]
    assert highest_fence(answers) == 9
    assert highest_fence([]) == 0


def test_all_hosts_are_asked_and_each_has_an_answer(tmp_path):
    text = fake_runtime()["site/capsule_installer/bin_capsule.sh"].replace(b"@RUNTIME@", b"1234")
    for node in ("n1", "n2"):
        program = tmp_path / node / "opt/capsule/bin/capsule"
        program.parent.mkdir(parents=True)
        program.write_bytes(text)
        program.chmod(0o755)
    (tmp_path / "n1/behave.json").write_text(json.dumps({"noise": True}))
    shutil.copytree(tmp_path / "n1", tmp_path / "n3")
    (tmp_path / "n3/opt/capsule/bin/capsule").unlink()
    nodes = ("n1", "n2", "n3", "n4")
    endpoints = {node: Endpoint(kind="local", root=str(tmp_path / node)) for node in nodes}
    states = {
        node: node_state(node, answer) for node, answer in ask_hosts(endpoints, connect).items()
    }
    assert states == {
        "n1": "not enrolled", "n2": "not enrolled", "n3": "no program", "n4": "unknown",
    }  # fmt: skip
