"""A controller with one lab host: it writes capsules, stages them over SSH and installs them."""

import secrets
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from capsule.first_contact import RuntimeSource
from capsule.home import ProductHome
from capsule.install import Installer, InstallWatch, NodeInstalled
from capsule.inventory import read_fleet
from capsule.payload import open_payload
from capsule.session import HostSession
from capsule.stage import NodeStaged, StageCost, Stager
from capsule_manifest.errors import CapsuleError
from capsule_manifest.orders import Order
from capsule_manifest.records import Proof
from capsule_manifest.release import Budgets, ComponentKind, External
from capsule_manifest.route import Endpoint
from support import documents
from support.capsules import MiniCapsule, real_runtime, write_capsule
from support.engines import layout_files, named_by
from support.images import ImageFile
from support.lab.host import LabHost
from support.lab.transport import SshTransport

__all__ = ["BROKEN", "GOOD", "UNIT", "LabController", "Silence"]

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

_FLEET = """
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
"""


class Silence:
    """Watch nothing; implements both watches."""

    def met(self, node: str, *, what: str) -> None:
        """Ignore first contact."""

    def planned(self, node: str, cost: StageCost) -> None:
        """Ignore the cost."""

    def moved(self, node: str, *, sent_bytes: int, of_bytes: int) -> None:
        """Ignore progress."""

    def ordered(self, node: str, order: Order) -> None:
        """Ignore an order."""

    def step(self, node: str, *, name: str, state: str, took_ms: int | None, why: str) -> None:
        """Ignore a step."""

    def confirmed(self, node: str, proof: Proof) -> None:
        """Ignore a confirm."""

    def ended(self, node: str, result: object) -> None:
        """Ignore the end."""


class LabController:
    """One controller with one real host; its home and its capsules lie below `folder`."""

    def __init__(self, host: LabHost, folder: Path) -> None:
        self.host, self.folder = host, folder
        self.policy = documents.make_policy()
        self.home = ProductHome(home=folder / "state", product="acme/hello")
        text = _FLEET.format(address=host.address, host_key=host.host_key)
        self.fleet = read_fleet(text.encode(), folder=folder, where="fleet.toml")
        self.session = HostSession(SshTransport(host), node="n1")

    def connect(self, endpoint: Endpoint, node: str) -> SshTransport:
        """Return the way to the host, which is what the route must say."""
        assert (endpoint.kind, endpoint.address, node) == ("ssh", self.host.address, "n1")
        return SshTransport(self.host)

    def capsule(
        self,
        counter: int,
        components: Mapping[str, Mapping[str, bytes]] = GOOD,
        unit: str = UNIT,
        *,
        budgets: Budgets | None = None,
        images: Mapping[str, ImageFile] = MappingProxyType({}),
        external: Mapping[str, tuple[External, ...]] | None = None,
        start_ms: int = 1000,
        stop_ms: int = 1000,
    ) -> MiniCapsule:
        """Write a capsule that holds the host program of this tree, and `images` as components.

        `external` says what images are called, unless that is the truth.
        """
        layouts = {name: layout_files(image) for name, image in images.items()}
        named = {name: named_by(name, image) for name, image in images.items()}
        return write_capsule(
            self.folder / f"{counter}.capsule",
            counter=counter,
            components={**components, **layouts},
            kinds=dict.fromkeys(images, ComponentKind.IMAGE),
            external=external or named,
            runtime=real_runtime(),
            unit=unit + f"[Service]\nEnvironment=COUNTER={counter}\n",
            interpreter=None,
            budgets=budgets,
            start_ms=start_ms,
            stop_ms=stop_ms,
        )

    def stage(self, mini: MiniCapsule) -> NodeStaged | CapsuleError:
        """Stage a capsule, with first contact when it is needed."""
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

    def install(self, mini: MiniCapsule, watch: InstallWatch | None = None) -> NodeInstalled:
        """Install a staged capsule; `watch` may break the host at a moment of its choice."""
        installer = Installer(
            home=self.home,
            route=self.home.latest_route(self.policy),
            payload=open_payload(mini.folder, self.policy),
            controller=documents.CONTROLLER_KEY,
            connect=self.connect,
            new_op_id=lambda: secrets.token_hex(16),
            watch=watch or Silence(),
        )
        return installer.run("n1")

    def staged_and_installed(
        self, counter: int, components: Mapping[str, Mapping[str, bytes]] = GOOD
    ) -> tuple[MiniCapsule, NodeInstalled]:
        """Write, stage and install a capsule."""
        mini = self.capsule(counter, components)
        staged = self.stage(mini)
        assert isinstance(staged, NodeStaged), staged
        return mini, self.install(mini)

    def serving(self) -> str | None:
        """Return the generation that the running service's own environment names."""
        shown = self.host.run("systemctl", "show", "--value", "-p", "MainPID", "hello.service")
        environment = self.host.run(
            "cat", f"/proc/{int(shown.stdout)}/environ", check=False
        ).stdout.split("\0")
        values = dict(item.partition("=")[::2] for item in environment)
        return values.get("CAPSULE_GENERATION")
