"""Ordering an installation, on a host program that only keeps the wire."""

import json
from dataclasses import replace

import pytest

from capsule.first_contact import RuntimeSource
from capsule.fleet_work import exit_code
from capsule.home import ProductHome
from capsule.install import Installer
from capsule.inventory import read_fleet
from capsule.payload import open_payload
from capsule.stage import Stager
from capsule.transport.connect import connect
from capsule_manifest.errors import ExitCode
from support import documents
from support.capsules import write_capsule
from support.failures import fails_with


class Watch:
    """Remember what was told; implements both watches."""

    def __init__(self):
        self.lines = []

    def met(self, node, *, what): ...

    def planned(self, node, cost): ...

    def moved(self, node, *, sent_bytes, of_bytes): ...

    def ordered(self, node, order):
        self.lines.append("ordered")
        self.order = order

    def step(self, node, *, name, state, took_ms, why):
        self.lines.append(name)

    def confirmed(self, node, proof):
        self.lines.append("confirmed")

    def ended(self, node, result):
        self.lines.append("ended")


class Bench:
    def __init__(self, tmp_path):
        self.tmp_path = tmp_path
        self.policy = documents.make_policy()
        self.mini = write_capsule(tmp_path / "one.capsule")
        self.home = ProductHome(home=tmp_path / "state", product="acme/hello")
        self.watch = Watch()
        self.op_ids = iter(f"{number:032x}" for number in range(1, 100))
        (tmp_path / "n1").mkdir()
        self.stage(self.mini)

    def stage(self, mini, guard="L0", lane="a"):
        text = (
            f'format = 1\nproduct = "acme/hello"\n[fleet]\nfloor = 0\nmax_unavailable = 1\n'
            f'guard_min = "{guard}"\n[nodes.n1]\nlocal = "n1"\nrole = "web"\n'
            f'platform = "bookworm"\nlane = "{lane}"\n'
        )
        payload = open_payload(mini.folder, self.policy)
        stager = Stager(
            home=self.home,
            fleet=read_fleet(text.encode(), folder=self.tmp_path, where="fleet.toml"),
            payload=payload,
            runtimes=RuntimeSource(payload),
            policy=self.policy,
            route_signer=documents.ROUTE_KEY,
            controller=documents.CONTROLLER_KEY,
            connect=connect,
            watch=self.watch,
        )
        _, results = stager.run(("n1",))
        assert getattr(results["n1"], "generation", None) == mini.generation, results["n1"]

    def installer(self, mini=None, **changes):
        self.watch = Watch()
        installer = Installer(
            home=self.home,
            route=self.home.latest_route(self.policy),
            payload=open_payload((mini or self.mini).folder, self.policy),
            controller=documents.CONTROLLER_KEY,
            connect=connect,
            new_op_id=lambda: next(self.op_ids),
            watch=self.watch,
        )
        return replace(installer, **changes)

    def behave(self, **behaviour):
        (self.tmp_path / "n1" / "behave.json").write_text(json.dumps(behaviour))

    def state(self):
        return json.loads((self.tmp_path / "n1" / "fake.json").read_text())


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def test_an_order_is_proved_confirmed_and_committed(bench):
    result = bench.installer().run("n1")
    assert (result.result, result.exit_code) == ("committed", ExitCode.DONE)
    assert bench.watch.lines == ["ordered", "stopped", "confirmed", "ended"]
    assert bench.state()["current"] == bench.mini.generation
    order = bench.watch.order
    assert (order.prior, order.nonce, order.boot_id) == ("absent", "nonce", "boot")
    assert (order.guard_level, order.confirm, order.fence) == ("L0", "controller", 1)
    assert order.d1_ms == bench.mini.release.budgets.d1_ms


def test_installing_what_is_current_orders_nothing(bench):
    bench.installer().run("n1")
    result = bench.installer().run("n1")
    assert (result.result, result.exit_code) == ("unchanged", ExitCode.DONE)
    assert bench.watch.lines == ["ended"]
    assert len(bench.state()["ops"]) == 1


def test_a_restored_host_ends_with_exit_60_and_its_receipt_is_kept(bench):
    bench.behave(result="restored")
    result = bench.installer().run("n1")
    assert (result.result, result.exit_code) == ("restored", ExitCode.RESTORED)
    key = bench.home.node_key("n1")
    copies = list(bench.home.receipts("n1", signer=documents.CONTROLLER_KEY).read_all(key))
    assert [copy.receipt.result for copy in copies] == ["done", "done", "restored"][-len(copies) :]
    assert copies[-1].receipt.kind == "install"


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("switched: network-violation: a step tried", ExitCode.NETWORK_VIOLATION),
        ("armed: guard-not-armed: the guard does not hold", ExitCode.GUARD_NOT_ARMED),
        ("switched: guarded-step-failed: a step said network-violation", ExitCode.RESTORED),
    ],
)
def test_a_host_that_the_guard_sent_back_ends_with_the_code_of_that(bench, reason, code):
    bench.behave(result="restored", reason=reason)
    result = bench.installer().run("n1")
    assert (result.result, result.exit_code) == ("restored", code)


def test_a_host_that_could_not_restore_ends_with_exit_61(bench):
    bench.behave(result="restore-failed")
    assert bench.installer().run("n1").exit_code == ExitCode.RESTORE_FAILED


@pytest.mark.parametrize("verb", ["install", "follow"])
def test_a_lost_connection_is_survived_without_a_second_operation(bench, verb):
    bench.behave(die={verb: 0})
    result = bench.installer().run("n1")
    assert result.result == "committed"
    assert len(bench.state()["ops"]) == 1


def test_a_proof_of_something_else_is_not_confirmed(bench):
    bench.behave(lie="proof")
    with fails_with("proof-refused"):
        bench.installer().run("n1")
    (op,) = bench.state()["ops"].values()
    assert "confirm" not in op


def test_a_receipt_of_another_operation_is_refused(bench):
    bench.behave(lie="receipt")
    with fails_with("receipt-refused"):
        bench.installer().run("n1")


def test_an_order_is_refused_under_a_route_that_the_host_was_not_staged_with(bench):
    other = write_capsule(bench.tmp_path / "two.capsule", counter=2)
    installer = bench.installer()
    bench.stage(other, lane="b")
    with fails_with("route-not-staged"):
        installer.run("n1")


def test_a_capsule_that_was_not_staged_is_refused_before_any_order(bench):
    other = write_capsule(bench.tmp_path / "two.capsule", counter=2)
    with fails_with("generation-not-staged"):
        bench.installer(other).run("n1")
    assert bench.state()["ops"] == {}


def test_a_guard_below_what_the_route_demands_is_refused_before_any_order(bench):
    bench.stage(bench.mini, guard="L2")
    with fails_with("guard-level-denied"):
        bench.installer().run("n1")
    assert bench.state()["ops"] == {}


def test_a_node_that_the_route_does_not_name_is_refused(bench):
    with fails_with("node-unknown"):
        bench.installer().run("n9")


def test_a_host_with_another_key_is_refused_before_any_order(bench):
    bench.behave(lie="key")
    with fails_with("node-key-changed"):
        bench.installer().run("n1")
    assert bench.state()["ops"] == {}


def test_a_fenced_controller_orders_nothing(bench, tmp_path):
    newer = ProductHome(home=tmp_path / "other", product="acme/hello")
    newer.raise_fence(3)
    installer = bench.installer()
    bench.home = newer
    bench.stage(bench.mini)
    with fails_with("controller-fenced"):
        installer.run("n1")


def test_a_refusal_of_the_host_is_final_and_not_repeated(bench):
    bench.behave(refuse={"install": "order-expired"})
    with fails_with("order-expired"):
        bench.installer().run("n1")


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([], 0),
        ([0, 0], 0),
        ([0, 60], 60),
        ([60, 30], 60),
        ([5, 61, 6, 7, 10], 10),
        ([5, 61, 6, 7], 7),
        ([5, 61, 6], 6),
        ([30, 5, 61], 61),
        ([30, 5], 5),
    ],
)
def test_one_exit_code_tells_what_matters_most(codes, expected):
    assert exit_code(ExitCode(code) for code in codes) == expected
