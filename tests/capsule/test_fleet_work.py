import threading

import pytest

from capsule.fleet_work import for_each_node
from capsule.transport.connect import connect
from capsule.transport.local import LocalTransport
from capsule_manifest.errors import ExitCode, Failed, Refused
from capsule_manifest.route import Endpoint
from support.failures import fails_with


def test_every_node_has_a_result_in_the_order_asked():
    def work(node):
        if node == "n2":
            raise Failed("host-unreachable", "gone", where=node)
        return node.upper()

    results = for_each_node(["n3", "n2", "n1"], work)
    assert list(results) == ["n3", "n2", "n1"]
    assert (results["n1"], results["n3"]) == ("N1", "N3")
    assert results["n2"].error_id == "host-unreachable"


def test_a_program_error_of_one_node_is_its_own_result(caplog):
    def work(node):
        return {"n1": 1}[node]

    results = for_each_node(["n1", "n2"], work)
    assert results["n1"] == 1
    assert results["n2"].exit_code is ExitCode.INTERNAL
    assert isinstance(results["n2"].__cause__, KeyError)
    assert "n2" in caplog.text


def test_eight_nodes_are_worked_on_at_once_and_not_nine():
    gate = threading.Barrier(8)
    running, most = [], []

    def work(node):
        running.append(node)
        most.append(len(running))
        if node < "n8":
            gate.wait(timeout=10)
        running.remove(node)
        return True

    results = for_each_node([f"n{index}" for index in range(9)], work, at_once=50)
    assert all(result is True for result in results.values())
    assert max(most) == 8


def test_no_node_at_all_is_no_error():
    assert for_each_node([], Refused) == {}


def test_the_endpoint_decides_how_a_node_is_reached(tmp_path):
    assert isinstance(connect(Endpoint(kind="local", root=str(tmp_path)), "n1"), LocalTransport)
    way = connect(Endpoint(kind="ssh", address="192.0.2.1", host_key="ssh-ed25519 AAAA"), "n1")
    assert (way.root, way.place) == ("", "root@192.0.2.1:22")


@pytest.mark.parametrize(
    "endpoint",
    [
        Endpoint(kind="local"),
        Endpoint(kind="ssh", address="-oProxyCommand=x", host_key="ssh-ed25519 AAAA"),
        Endpoint(kind="ssh", address="x", host_key="k"),
        Endpoint(kind="ssh", address="x", host_key="ssh-ed25519 AAAA\nHost *"),
        Endpoint(kind="ssh", address="x", user="a b", host_key="ssh-ed25519 AAAA"),
    ],
)
def test_a_way_that_could_change_the_clients_configuration_is_refused(endpoint):
    with fails_with("endpoint-invalid"):
        connect(endpoint, "n1")
