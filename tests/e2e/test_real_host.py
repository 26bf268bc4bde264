"""The controller and the host program of this tree together, with real processes, without a build.

The capsule is made of bytes and the runtime of this tree, so this needs no network and little time.
"""

import os
import secrets
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from capsule.first_contact import RuntimeSource
from capsule.home import ProductHome
from capsule.install import Installer
from capsule.inventory import read_fleet
from capsule.payload import open_payload
from capsule.session import HostSession
from capsule.stage import NodeStaged, Stager
from capsule.transport.base import Limits
from capsule.transport.connect import connect
from capsule.transport.local import LocalTransport
from capsule_manifest.errors import CapsuleError, ExitCode, Failed
from capsule_manifest.release import Budgets, ComponentKind
from support import documents
from support.capsules import real_runtime, write_capsule
from support.failures import fails_with

pytestmark = pytest.mark.timeout(120)

UNIT = """\
[Unit]
Description=Sleeps
[Service]
Type=simple
WorkingDirectory=@{generation}/app
ExecStart=/bin/sh main.sh
TimeoutStartSec=2
TimeoutStopSec=2
"""
GOOD = {"app": {"main.sh": b"exec sleep 1000\n"}}
BROKEN = {"app": {"main.sh": b"exit 1\n"}}

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
[[waivers]]
node = "n1"
rule = "guard-level"
value = "L0"
reason = "a folder"
"""


class Watch:
    """Remember steps; implements both watches."""

    def __init__(self):
        self.steps, self.confirms = [], 0

    def met(self, node, *, what): ...

    def planned(self, node, cost): ...

    def moved(self, node, *, sent_bytes, of_bytes): ...

    def ordered(self, node, order): ...

    def step(self, node, *, name, state, took_ms, why):
        self.steps.append((name, state))

    def confirmed(self, node, proof):
        self.confirms += 1

    def ended(self, node, result): ...


class Fleet:
    """One controller and one real host that is a folder."""

    def __init__(self, tmp_path):
        self.tmp_path = tmp_path
        self.root = tmp_path / "n1"
        self.root.mkdir(mode=0o755)
        self.policy = documents.make_policy()
        self.home = ProductHome(home=tmp_path / "state", product="acme/hello")
        self.fleet = read_fleet(FLEET, folder=tmp_path, where="fleet.toml")
        self.session = HostSession(LocalTransport(self.root), node="n1")

    def capsule(self, counter, components=None, **options):
        folder = self.tmp_path / f"{counter}.capsule"
        return write_capsule(
            folder,
            counter=counter,
            components=components or GOOD,
            runtime=real_runtime(),
            unit=UNIT + f"Environment=COUNTER={counter}\n",
            **options,
        )

    def stage(self, mini, transport=connect):
        payload = open_payload(mini.folder, self.policy)
        stager = Stager(
            home=self.home,
            fleet=self.fleet,
            payload=payload,
            runtimes=RuntimeSource(payload),
            policy=self.policy,
            route_signer=documents.ROUTE_KEY,
            controller=documents.CONTROLLER_KEY,
            connect=transport,
            watch=Watch(),
        )
        return stager.run(("n1",))[1]["n1"]

    def install(self, mini, watch=None, transport=connect):
        installer = Installer(
            home=self.home,
            route=self.home.latest_route(self.policy),
            payload=open_payload(mini.folder, self.policy),
            controller=documents.CONTROLLER_KEY,
            connect=transport,
            new_op_id=lambda: secrets.token_hex(16),
            watch=watch or Watch(),
        )
        return installer.run("n1")

    def staged_and_installed(self, counter, components=None, **options):
        mini = self.capsule(counter, components, **options)
        staged = self.stage(mini)
        assert isinstance(staged, NodeStaged), staged
        return mini, self.install(mini)

    def serving(self):
        """Return the generation of the running service's process, or None."""
        place = self.root / "run/capsule/services/hello.service/main"
        try:
            pid = int(place.read_text().split()[0])
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except (OSError, IndexError):
            return None
        values = dict(item.partition(b"=")[::2] for item in environment)
        return values.get(b"CAPSULE_GENERATION", b"").decode() or None

    def receipts(self):
        """Return the controller's copies."""
        key = self.home.node_key("n1")
        copies = self.home.receipts("n1", signer=documents.CONTROLLER_KEY).read_all(key)
        return [copy.receipt for copy in copies]

    def stop(self):
        script = self.root / "var/lib/capsule/recovery/service-process.sh"
        if script.exists():
            argv = ["sh", str(script), str(self.root), "stop", "hello.service", "3000"]
            subprocess.run(argv, check=False)


@pytest.fixture
def fleet(tmp_path):
    made = Fleet(tmp_path)
    yield made
    made.stop()


def test_a_release_is_staged_installed_proved_and_committed(fleet):
    mini, result = fleet.staged_and_installed(1)
    assert (result.result, result.exit_code) == ("committed", ExitCode.DONE)
    assert fleet.serving() == mini.generation
    hello = fleet.session.hello()
    assert (hello.current, hello.previous, hello.open_op) == (mini.generation, "absent", None)
    assert hello.runtime == mini.trees["runtime-bookworm"].hex()[:8]


def test_an_image_travels_and_lies_in_the_generation_as_a_layout(fleet):
    layout = {"oci-layout": b"{}", "index.json": b"[]", "blobs/sha256/ab": b"a layer"}
    mini = fleet.capsule(1, {**GOOD, "base": layout}, kinds={"base": ComponentKind.IMAGE})
    staged = fleet.stage(mini)
    assert isinstance(staged, NodeStaged), staged
    folder = fleet.root / "opt/capsule/generations" / mini.generation / "base"
    assert {name: (folder / name).read_bytes() for name in layout} == layout
    assert fleet.install(mini).result == "committed"


def test_a_broken_release_is_restored_and_the_one_before_serves_again(fleet):
    first, _ = fleet.staged_and_installed(1)
    _, result = fleet.staged_and_installed(2, BROKEN)
    assert (result.result, result.exit_code) == ("restored", ExitCode.RESTORED)
    assert "proof-failed" in result.receipt.receipt.reason
    assert fleet.serving() == first.generation
    third, result = fleet.staged_and_installed(3)
    assert result.result == "committed"
    assert fleet.serving() == third.generation
    kinds = [(receipt.kind, receipt.result) for receipt in fleet.receipts()]
    assert kinds == [
        ("enrol", "done"),
        ("stage", "done"),
        ("install", "committed"),
        ("stage", "done"),
        ("install", "restored"),
        ("stage", "done"),
        ("install", "committed"),
    ]


def test_a_broken_first_release_leaves_an_absent_host(fleet):
    _, result = fleet.staged_and_installed(1, BROKEN)
    assert (result.result, result.exit_code) == ("restored-absent", ExitCode.RESTORED)
    assert fleet.serving() is None
    assert fleet.session.hello().current == "absent"


def test_staging_again_sends_nothing_and_installing_again_orders_nothing(fleet):
    mini, _ = fleet.staged_and_installed(1)
    again = fleet.stage(mini)
    assert isinstance(again, NodeStaged), again
    assert again.sent_bytes == 0
    assert fleet.install(mini).result == "unchanged"


def test_a_controller_that_never_confirms_leaves_the_old_release(fleet):
    first, _ = fleet.staged_and_installed(1)
    budgets = Budgets(d1_ms=20_000, d2_ms=1_500)
    second = fleet.capsule(2, budgets=budgets)
    assert isinstance(fleet.stage(second), NodeStaged)
    watch = Watch()
    result = fleet.install(second, watch, lambda *where: Without(connect(*where), "confirm"))
    assert (result.result, watch.confirms) == ("restored", 0)
    assert fleet.serving() == first.generation


def test_a_controller_killed_after_the_order_leaves_a_host_that_ends_it_by_itself(fleet):
    first, _ = fleet.staged_and_installed(1)
    second = fleet.capsule(2, budgets=Budgets(d1_ms=20_000, d2_ms=1_500))
    assert isinstance(fleet.stage(second), NodeStaged)
    with fails_with("op-unresolved"):
        fleet.install(second, transport=lambda *where: Without(connect(*where), "follow"))
    # The op is in state/ops; whoever asks next has what rescue did signed.
    wait_for(lambda: fleet.serving() == first.generation)
    assert fleet.session.hello().current == first.generation
    third = fleet.capsule(3)
    assert isinstance(fleet.stage(third), NodeStaged)
    assert fleet.install(third).result == "committed"
    results = [receipt.result for receipt in fleet.receipts() if receipt.kind == "install"]
    assert results == ["committed", "restored", "committed"]


def test_a_stream_cut_in_the_middle_is_continued_and_not_begun_again(fleet):
    fleet.staged_and_installed(1)
    content = {f"f{index}.bin": os.urandom(3 * 1024 * 1024) for index in range(8)}
    second = fleet.capsule(2, {"app": {**GOOD["app"], **content}})
    cut = fleet.stage(second, lambda *where: Cut(connect(*where), after_bytes=14 * 1024 * 1024))
    assert isinstance(cut, CapsuleError), cut
    staged = fleet.stage(second)
    assert isinstance(staged, NodeStaged), staged
    assert staged.sent_bytes < 20 * 1024 * 1024


def test_the_host_program_killed_in_the_middle_of_a_stream_resumes(fleet):
    fleet.staged_and_installed(1)
    content = {f"f{index}.bin": os.urandom(2 * 1024 * 1024) for index in range(8)}
    second = fleet.capsule(2, {"app": {**GOOD["app"], **content}})
    killer = threading.Thread(target=kill_receive, args=(fleet.root,))
    killer.start()
    killed = fleet.stage(second, lambda *where: Slow(connect(*where)))
    killer.join()
    assert isinstance(killed, CapsuleError), killed
    assert killed.retryable
    staged = fleet.stage(second)
    assert isinstance(staged, NodeStaged), staged
    assert fleet.install(second).result == "committed"


class Wrapped:
    """A transport around another; implements `Transport`."""

    def __init__(self, inner):
        self.inner, self.root, self.place = inner, inner.root, inner.place

    def open(self, argv, *, limits):
        return self.inner.open(argv, limits=limits)


class Without(Wrapped):
    """A connection that one verb does not survive."""

    def __init__(self, inner, verb):
        super().__init__(inner)
        self.verb = verb

    def open(self, argv, *, limits):
        if self.verb in argv:
            raise Failed("host-unreachable", "the test cut the connection", retryable=True)
        return super().open(argv, limits=limits)


class Cut(Wrapped):
    """A connection that ends after so many bytes towards the host."""

    def __init__(self, inner, after_bytes):
        super().__init__(inner)
        self.after_bytes = after_bytes

    def open(self, argv, *, limits):
        channel = super().open(argv, limits=limits)
        if "receive" in argv:
            write, left = channel.write, [self.after_bytes]

            def cutting(data):
                left[0] -= len(data)
                if left[0] < 0:
                    channel.end_input()
                    return False
                return write(data)

            channel.write = cutting
        return channel


class Slow(Wrapped):
    """A connection that takes its time between frames."""

    def open(self, argv, *, limits):
        channel = super().open(argv, limits=Limits(total_s=60, idle_s=30))
        if "receive" in argv:
            write = channel.write

            def slowly(data):
                time.sleep(0.05)
                return write(data)

            channel.write = slowly
        return channel


def kill_receive(root):
    """Kill the host program when it has taken a part of the content."""

    def receiving():
        for place in Path("/proc").iterdir():
            try:
                words = (place / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"receive" in words and os.fsencode(root) in words:
                return int(place.name)
        return None

    wait_for(lambda: receiving() is not None)
    pid = receiving()
    time.sleep(0.7)
    os.kill(pid, signal.SIGKILL)


def wait_for(condition, limit_s=30.0):
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.05)
