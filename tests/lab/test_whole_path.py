"""The whole path to a real host: first contact, enrolment, staging, rehearsal, orders, restores."""

import secrets

import pytest

from capsule.first_contact import RuntimeSource
from capsule.home import ProductHome
from capsule.install import Installer
from capsule.inventory import read_fleet
from capsule.payload import open_payload
from capsule.session import HostSession
from capsule.stage import NodeStaged, Stager
from capsule_manifest.errors import CapsuleError, ExitCode
from support import documents
from support.capsules import real_runtime, write_capsule
from support.lab.commands import wait_until
from support.lab.transport import SshTransport

pytestmark = [pytest.mark.lab, pytest.mark.root, pytest.mark.network, pytest.mark.timeout(300)]

UNIT = """\
[Unit]
Description=Sleeps
[Service]
WorkingDirectory=@{generation}/app
ExecStart=/bin/sh main.sh
TimeoutStopSec=2
[Install]
WantedBy=multi-user.target
"""
GOOD = {"app": {"main.sh": b"exec sleep 1000\n"}}
BROKEN = {"app": {"main.sh": b"exit 1\n"}}

FLEET = """
format = 1
product = "acme/hello"
[fleet]
floor = 0
max_unavailable = 1
[nodes.n1]
address = "{address}"
host_key = "{host_key}"
user = "root"
role = "web"
platform = "bookworm"
lane = "a"
[[waivers]]
node = "n1"
rule = "guard-level"
value = "L0"
reason = "no guard on a lab host yet"
"""


class Silence:
    """Watch nothing; implements both watches."""

    def met(self, node, *, what): ...

    def planned(self, node, cost): ...

    def moved(self, node, *, sent_bytes, of_bytes): ...

    def ordered(self, node, order): ...

    def step(self, node, *, name, state, took_ms, why): ...

    def confirmed(self, node, proof): ...

    def ended(self, node, result): ...


class Controller:
    """One controller with one real host."""

    def __init__(self, host, folder):
        self.host, self.folder = host, folder
        self.policy = documents.make_policy()
        self.home = ProductHome(home=folder / "state", product="acme/hello")
        text = FLEET.format(address=host.address, host_key=host.host_key)
        self.fleet = read_fleet(text.encode(), folder=folder, where="fleet.toml")
        self.session = HostSession(SshTransport(host), node="n1")

    def connect(self, endpoint, node):
        assert (endpoint.kind, endpoint.address, node) == ("ssh", self.host.address, "n1")
        return SshTransport(self.host)

    def capsule(self, counter, components=GOOD, unit=UNIT):
        return write_capsule(
            self.folder / f"{counter}.capsule",
            counter=counter,
            components=components,
            runtime=real_runtime(),
            unit=unit + f"[Service]\nEnvironment=COUNTER={counter}\n",
            interpreter=None,
        )

    def stage(self, mini):
        payload = open_payload(mini.folder, self.policy)
        stager = Stager(
            home=self.home,
            fleet=self.fleet,
            payload=payload,
            runtimes=RuntimeSource(payload),
            policy=self.policy,
            route_signer=documents.ROUTE_KEY,
            controller=documents.CONTROLLER_KEY,
            connect=self.connect,
            watch=Silence(),
        )
        return stager.run(("n1",))[1]["n1"]

    def install(self, mini):
        installer = Installer(
            home=self.home,
            route=self.home.latest_route(self.policy),
            payload=open_payload(mini.folder, self.policy),
            controller=documents.CONTROLLER_KEY,
            connect=self.connect,
            new_op_id=lambda: secrets.token_hex(16),
            watch=Silence(),
        )
        return installer.run("n1")

    def staged_and_installed(self, counter, components=GOOD):
        mini = self.capsule(counter, components)
        staged = self.stage(mini)
        assert isinstance(staged, NodeStaged), staged
        return mini, self.install(mini)

    def serving(self):
        """Return the generation that the running service's own environment names."""
        shown = self.host.run("systemctl", "show", "--value", "-p", "MainPID", "hello.service")
        environment = self.host.run(
            "cat", f"/proc/{int(shown.stdout)}/environ", check=False
        ).stdout.split("\0")
        values = dict(item.partition("=")[::2] for item in environment)
        return values.get("CAPSULE_GENERATION")


@pytest.fixture
def controller(host, tmp_path):
    return Controller(host, tmp_path)


def test_releases_reach_a_real_host_and_a_broken_one_is_restored(controller):
    first, result = controller.staged_and_installed(1)
    assert (result.result, result.exit_code) == ("committed", ExitCode.DONE)
    assert controller.serving() == first.generation
    hello = controller.session.hello()
    assert (hello.service_manager, hello.current) == ("systemd", first.generation)
    second, result = controller.staged_and_installed(2)
    assert result.result == "committed"
    _, result = controller.staged_and_installed(3, BROKEN)
    assert (result.result, result.exit_code) == ("restored", ExitCode.RESTORED)
    assert controller.serving() == second.generation
    again = controller.stage(second)
    assert isinstance(again, NodeStaged), again
    assert again.sent_bytes == 0


def test_a_host_that_went_down_in_the_middle_is_fixed_forward(controller):
    first, _ = controller.staged_and_installed(1)
    mini = controller.capsule(2)
    assert isinstance(controller.stage(mini), NodeStaged)
    controller.host.run(
        "systemd-run", "--on-active=1s", "--timer-property=AccuracySec=1ms", "systemctl", "reboot",
        "--force", "--force",
    )  # fmt: skip
    ended = None
    try:
        ended = controller.install(mini).result
    except CapsuleError as error:
        ended = error.error_id
    wait_until(lambda: controller.host.pid is None, timeout_s=20, what="the host went down")
    controller.host.boot()
    wait_until(controller.serving, timeout_s=20, what="a release serves")
    expected = mini if ended == "committed" else first
    assert controller.serving() == expected.generation
    third, result = controller.staged_and_installed(3)
    assert result.result == "committed"
    assert controller.serving() == third.generation


def test_a_unit_that_systemd_does_not_understand_is_refused_while_staging(controller):
    first, _ = controller.staged_and_installed(1)
    mini = controller.capsule(2, unit=UNIT.replace("TimeoutStopSec", "TimeoutStopSecs"))
    refused = controller.stage(mini)
    assert isinstance(refused, CapsuleError)
    assert refused.error_id == "rehearsal-failed"
    assert "TimeoutStopSecs" in str(refused)
    assert controller.serving() == first.generation
