"""Staging, over the local transport, on a host program that only keeps the wire."""

import json
import shutil
import time
from dataclasses import replace

import pytest

from capsule.builder.single_file import write_single_file
from capsule.first_contact import RuntimeSource
from capsule.home import ProductHome
from capsule.inventory import read_fleet
from capsule.payload import open_payload
from capsule.stage import NodeStaged, Stager
from capsule.transport.base import Limits
from capsule.transport.connect import connect
from capsule_manifest.errors import CapsuleError
from support import documents
from support.capsules import fake_runtime, write_capsule
from support.failures import fails_with


class Watch:
    """Remember what was told."""

    def __init__(self):
        self.met_with, self.costs, self.moves, self.ends = {}, {}, {}, {}

    def met(self, node, *, what):
        self.met_with.setdefault(node, []).append(what)

    def planned(self, node, cost):
        self.costs[node] = cost

    def moved(self, node, *, sent_bytes, of_bytes):
        self.moves.setdefault(node, []).append((sent_bytes, of_bytes))

    def ended(self, node, result):
        self.ends[node] = result


class Bench:
    """A controller folder, an inventory of three folder hosts, and a capsule."""

    def __init__(self, tmp_path, **capsule):
        self.tmp_path = tmp_path
        self.policy = documents.make_policy()
        self.mini = write_capsule(tmp_path / "one.capsule", **capsule)
        self.home = ProductHome(home=tmp_path / "state", product="acme/hello")
        nodes = "".join(
            f'[nodes.n{index}]\nlocal = "n{index}"\nrole = "web"\nplatform = "bookworm"\n'
            f'lane = "a"\nvars = {{ port = "810{index}" }}\n'
            for index in (1, 2, 3)
        )
        text = (
            'format = 1\nproduct = "acme/hello"\n[fleet]\nfloor = 1\nmax_unavailable = 3\n'
            'guard_min = "L0"\n' + nodes
        )
        self.fleet = read_fleet(text.encode(), folder=tmp_path, where="fleet.toml")
        for name in self.fleet.nodes:
            (tmp_path / name).mkdir()

    def stager(self, folder=None, **changes):
        payload = open_payload(folder or self.mini.folder, self.policy)
        self.watch = Watch()
        stager = Stager(
            home=self.home,
            fleet=self.fleet,
            payload=payload,
            policy=self.policy,
            route_signer=documents.ROUTE_KEY,
            controller=documents.CONTROLLER_KEY,
            connect=connect,
            watch=self.watch,
            runtimes=RuntimeSource(payload),
        )
        return replace(stager, **changes)

    def behave(self, node, **behaviour):
        (self.tmp_path / node / "behave.json").write_text(json.dumps(behaviour))

    def state(self, node):
        return json.loads((self.tmp_path / node / "fake.json").read_text())


class Hurried:
    """A local transport whose deadlines are short; implements `Transport`."""

    def __init__(self, inner):
        self.inner, self.root, self.place = inner, inner.root, inner.place

    def open(self, argv, *, limits):
        channel = self.inner.open(argv, limits=Limits(total_s=limits.total_s, idle_s=1.5))
        channel.limit = lambda _limits: None
        return channel


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def only(results, node="n1"):
    result = results[node]
    assert isinstance(result, NodeStaged), str(result)
    return result


def error_id(result):
    assert isinstance(result, CapsuleError), result
    return result.error_id


def test_a_fresh_host_is_met_enrolled_and_staged(bench):
    route, results = bench.stager().run(("n1",))
    staged = only(results)
    assert staged.generation == bench.mini.generation
    assert staged.receipt.receipt.route == route.digest
    assert bench.state("n1")["staged"] == [bench.mini.generation]
    assert [what.split()[0] for what in bench.watch.met_with["n1"]] == ["runtime", "enrolled"]
    assert route.route.nodes["n1"].node_key == bench.home.node_key("n1").keyid
    assert route.route.nodes["n2"].node_key is None


def test_staging_again_sends_no_frame_and_unpacks_nothing(bench):
    bench.stager().run(("n1",))
    frames = bench.state("n1")["frames"]
    assert frames > 0
    route, results = bench.stager().run(("n1",))
    assert only(results).sent_bytes == 0
    assert bench.watch.met_with == {}
    assert bench.state("n1")["frames"] == frames
    assert bench.state("n1")["sessions"] == 2
    assert bench.home.latest_route(bench.policy).digest == route.digest


class Opened:
    """A local transport that remembers what was started; implements `Transport`."""

    def __init__(self, inner, verbs):
        self.inner, self.verbs, self.root, self.place = inner, verbs, inner.root, inner.place

    def open(self, argv, *, limits):
        self.verbs.append(" ".join(argv[1:]))
        return self.inner.open(argv, limits=limits)


def test_a_host_that_is_ready_is_asked_everything_over_one_stream(bench):
    bench.stager().run(("n1",))
    verbs = []
    second = write_capsule(bench.tmp_path / "two.capsule", counter=2)
    stager = bench.stager(second.folder, connect=lambda *way: Opened(connect(*way), verbs))
    only(stager.run(("n1",))[1])
    assert verbs == ["receive --hello"]


def test_a_program_that_knows_no_greeting_is_asked_step_by_step(bench):
    bench.stager().run(("n1",))
    bench.behave("n1", old=True)
    verbs = []
    second = write_capsule(bench.tmp_path / "two.capsule", counter=2)
    stager = bench.stager(second.folder, connect=lambda *way: Opened(connect(*way), verbs))
    only(stager.run(("n1",))[1])
    assert verbs == ["receive --hello", "hello", "receive"]


def test_the_next_release_sends_only_what_changed(bench):
    bench.stager().run(("n1",))
    first = bench.watch.costs["n1"].send_bytes
    second = write_capsule(
        bench.tmp_path / "two.capsule", counter=2, components={"app": {"main.py": b"print(2)\n"}}
    )
    _, results = bench.stager(second.folder).run(("n1",))
    assert 0 < only(results).sent_bytes < first / 4
    assert bench.watch.costs["n1"].send_bytes == only(results).sent_bytes
    assert bench.watch.met_with == {}


def test_a_release_with_another_runtime_brings_it(bench):
    bench.stager().run(("n1",))
    runtime = {**fake_runtime(), "VERSION": b"0.2.0\n"}
    second = write_capsule(bench.tmp_path / "two.capsule", counter=2, runtime=runtime)
    _, results = bench.stager(second.folder).run(("n1",))
    assert only(results).generation == second.generation
    assert [what.split()[0] for what in bench.watch.met_with["n1"]] == ["runtime"]
    assert len(list((bench.tmp_path / "n1/opt/capsule/runtime").iterdir())) == 2


def test_the_number_of_messages_does_not_depend_on_the_number_of_files(bench, tmp_path):
    many = {f"f{index}.txt": b"%d" % index for index in range(500)}
    big = write_capsule(tmp_path / "many.capsule", counter=2, components={"app": many})
    bench.stager(big.folder).run(("n1",))
    # one frame each: the app, the service, the runtime
    assert bench.state("n1")["frames"] == 3
    assert bench.state("n1")["sessions"] == 1


def test_the_single_file_form_is_staged_like_the_directory(bench):
    path = write_single_file(bench.mini.folder)
    shutil.rmtree(bench.mini.folder)
    _, results = bench.stager(path).run(("n1",))
    assert only(results).generation == bench.mini.generation


def test_a_frame_larger_than_a_pipe_and_an_empty_component_arrive(bench, tmp_path):
    contents = {"app": {"big.bin": bytes(range(256)) * 40_000}, "none": {"empty": b""}}
    mini = write_capsule(tmp_path / "big.capsule", counter=2, components=contents)
    _, results = bench.stager(mini.folder).run(("n1",))
    assert only(results).generation == mini.generation


def test_a_dead_a_hanging_and_a_refusing_host_do_not_keep_the_third_from_being_staged(
    bench,
):
    bench.stager().run(("n1", "n2"))
    second = write_capsule(bench.tmp_path / "two.capsule", counter=2)
    bench.behave("n1", hang="hello")
    shutil.rmtree(bench.tmp_path / "n2")
    stager = bench.stager(second.folder, connect=lambda *where: Hurried(connect(*where)))
    _, results = stager.run(("n1", "n2", "n3"))
    assert error_id(results["n1"]) == "transport-deadline"
    assert error_id(results["n2"]) == "host-unreachable"
    assert only(results, "n3").generation == second.generation
    assert set(bench.watch.ends) == {"n1", "n2", "n3"}


def test_a_host_that_dies_in_the_middle_is_staged_by_running_again(bench):
    bench.stager().run(("n1",))
    second = write_capsule(
        bench.tmp_path / "two.capsule", counter=2, components={"app": {"main.py": b"x" * 99}}
    )
    bench.behave("n1", die={"receive": 6})
    _, results = bench.stager(second.folder).run(("n1",))
    assert error_id(results["n1"]) == "host-program-failed"
    assert results["n1"].retryable
    _, results = bench.stager(second.folder).run(("n1",))
    assert only(results).generation == second.generation


def test_what_a_host_refuses_arrives_under_its_own_id(bench):
    bench.stager().run(("n1",))
    bench.behave("n1", refuse={"receive": "release-counter-too-low"})
    _, results = bench.stager().run(("n1",))
    assert error_id(results["n1"]) == "release-counter-too-low"
    assert "n1" in str(results["n1"])
    bench.behave("n1", refuse={"receive": "from-the-future"})
    _, results = bench.stager().run(("n1",))
    assert error_id(results["n1"]) == "host-error-unknown"


@pytest.mark.parametrize("launcher", ["", "exit 1", "echo what"])
def test_a_host_program_that_can_not_answer_is_replaced(bench, launcher):
    bench.stager().run(("n1",))
    [program] = (bench.tmp_path / "n1/opt/capsule/bin").iterdir()
    program.write_text(f"#!/bin/sh\n{launcher}\n")
    stager = bench.stager()
    _, results = stager.run(("n1",))
    assert isinstance(results["n1"], NodeStaged), results["n1"]
    assert any("runtime" in what for what in bench.watch.met_with["n1"])


def test_what_a_hosts_shell_prints_first_is_no_record(bench):
    bench.stager().run(("n1",))
    bench.behave("n1", noise=True)
    _, results = bench.stager().run(("n1",))
    assert only(results).sent_bytes == 0


def test_a_host_with_another_key_than_before_is_refused(bench):
    bench.stager().run(("n1",))
    bench.behave("n1", lie="key")
    _, results = bench.stager().run(("n1",))
    assert error_id(results["n1"]) == "node-key-changed"


def test_a_host_that_belongs_to_another_node_is_refused(bench):
    bench.stager().run(("n1",))
    shutil.rmtree(bench.tmp_path / "n2")
    shutil.copytree(bench.tmp_path / "n1", bench.tmp_path / "n2")
    _, results = bench.stager().run(("n2",))
    assert error_id(results["n2"]) == "enrolment-differs"


def test_a_controller_behind_a_newer_one_is_fenced_before_it_sends_anything(bench, tmp_path):
    bench.stager().run(("n1",))
    newer = ProductHome(home=tmp_path / "other", product="acme/hello")
    newer.raise_fence(5)
    _, results = bench.stager(home=newer).run(("n1",))
    only(results)
    sessions = bench.state("n1")["sessions"]
    _, results = bench.stager().run(("n1",))
    assert error_id(results["n1"]) == "controller-fenced"
    assert bench.state("n1")["sessions"] == sessions


def test_a_new_controller_folder_fetches_the_receipts_that_it_never_saw(bench, tmp_path):
    bench.stager().run(("n1",))
    fresh = ProductHome(home=tmp_path / "other", product="acme/hello")
    bench.stager(home=fresh).run(("n1",))
    key = fresh.node_key("n1")
    copies = list(fresh.receipts("n1", signer=documents.CONTROLLER_KEY).read_all(key))
    assert [copy.receipt.kind for copy in copies] == ["enrol", "stage", "stage"]


def test_a_damaged_pack_is_named_by_the_host_that_got_it(bench):
    bench.stager().run(("n1",))
    second = write_capsule(
        bench.tmp_path / "two.capsule", counter=2, components={"app": {"main.py": b"z" * 50}}
    )
    payload = open_payload(second.folder, bench.policy)
    pack = payload.packing.contents[second.trees["app"]].packs[0]
    path = second.folder / "packs" / f"{pack.id.hex()}.pack"
    path.write_bytes(b"!" + path.read_bytes()[1:])
    _, results = bench.stager(second.folder).run(("n1",))
    assert error_id(results["n1"]) == "frame-digest-mismatch"


def test_a_damaged_runtime_is_never_sent(bench):
    payload = open_payload(bench.mini.folder, bench.policy)
    pack = payload.packing.contents[bench.mini.trees["runtime-bookworm"]].packs[0]
    path = bench.mini.folder / "packs" / f"{pack.id.hex()}.pack"
    path.write_bytes(b"!" + path.read_bytes()[1:])
    _, results = bench.stager().run(("n1",))
    assert error_id(results["n1"]) == "frame-digest-mismatch"
    assert list((bench.tmp_path / "n1").iterdir()) == []


def test_an_unsigned_capsule_is_not_even_opened(tmp_path):
    mini = write_capsule(tmp_path / "c", signers=())
    with fails_with("signature-missing"):
        open_payload(mini.folder, documents.make_policy())


@pytest.mark.parametrize("name", ["capsule.json", "packing.json"])
def test_a_capsule_without_one_of_its_files_is_named_incomplete(tmp_path, name):
    mini = write_capsule(tmp_path / "c")
    (mini.folder / name).unlink()
    with fails_with("capsule-incomplete"):
        open_payload(mini.folder, documents.make_policy())


def test_the_cost_is_told_before_the_first_byte(bench):
    started = time.monotonic()
    cost = bench.stager().cost("n1")
    assert cost.send_bytes > 0
    assert cost.disk_bytes > 0
    assert time.monotonic() - started < 5
    bench.stager().run(("n1",))
    assert bench.watch.moves["n1"][-1][0] == bench.watch.moves["n1"][-1][1]
