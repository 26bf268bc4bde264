"""A folder host with realised generations, made directly: tests of the install half start here.

A generation is what staging leaves: `capsule.json`, the component's files, rendered units and
managed files, and a signed staged marker. Its service is a small web server that answers with the
release's version.
"""

import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import capsule_installer
from capsule_installer.host.identity import make_node_key
from capsule_installer.host.layout import Layout, make_layout
from capsule_installer.host.leases import take_lease
from capsule_installer.host.receipts import ReceiptChain
from capsule_installer.host.state import Enrolment, HostState
from capsule_installer.op.effects import Effects
from capsule_installer.op.op_folder import OpFolder
from capsule_installer.op.real import place_rescue, real_effects
from capsule_installer.staging.render import unit_addition
from capsule_installer.system.clock import BootClock
from capsule_installer.system.disk import Disk, RealDisk
from capsule_installer.system.fsops import make_dirs, replace_file
from capsule_manifest.digest import ObjectId, object_id, sha256_text
from capsule_manifest.envelope import Envelope, encode_record, sign
from capsule_manifest.keys import Signer
from capsule_manifest.orders import (
    ABSENT,
    CONFIRM_TYPE,
    ORDER_TYPE,
    Confirm,
    Order,
    encode_confirm,
    encode_order,
)
from capsule_manifest.policy import encode_policy
from capsule_manifest.records import MARKER_TYPE, Marker, encode_marker
from capsule_manifest.release import (
    Budgets,
    Component,
    ComponentKind,
    ManagedFile,
    Probe,
    Release,
    Role,
    Unit,
    capsule_id,
    encode_release,
    generation_name,
)
from capsule_manifest.route import ROUTE_TYPE, Endpoint, Route, RouteNode, Waiver, encode_route
from capsule_manifest.wire import RecordReader
from support import documents
from support.engines import layout_files, named_by
from support.images import ImageFile

NODE = "n1"

SERVER = """\
import http.server, os, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(sys.argv[2].encode())

    def log_message(self, *arguments):
        pass

http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""

UNIT = """\
[Unit]
Description=hello

[Service]
ExecStart={argv}
WorkingDirectory={folder}/app
Restart=always
RestartSec=100ms

[Install]
WantedBy=multi-user.target

"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """What one generation of the tests is made of. `argv` may hold `{folder}` and `{port}`."""

    counter: int
    units: tuple[str, ...] = ("hello.service",)
    files: dict[str, bytes] = field(default_factory=dict)
    argv: str = f"{sys.executable} -I -S {{folder}}/app/serve.py {{port}} {{counter}}"
    guarded_steps: tuple[tuple[str, ...], ...] = ()
    soak_ms: int = 200
    start_ms: int = 5_000
    stop_ms: int = 1_000
    probe: bool = True
    budgets: Budgets = field(default_factory=lambda: Budgets(d1_ms=20_000, d2_ms=20_000))
    images: Mapping[str, ImageFile] = field(default_factory=dict)


class StagedHost:
    """A host below a folder, or the machine itself: `/`. On a model disk nothing is really run."""

    def __init__(self, root: str, *, port: int = 1, disk: Disk | None = None) -> None:
        self.root = root
        self.port = port
        self.disk: Disk = disk or RealDisk()
        self.layout: Layout = make_layout(root)
        for path, mode in self.layout.folders():
            make_dirs(self.disk, path, mode)
        self.state = HostState(self.disk, self.layout)
        self.signer: Signer = make_node_key(self.disk, self.layout)
        self.controller: Signer = documents.CONTROLLER_KEY
        self._enrol()

    def _enrol(self) -> None:
        policy = documents.make_policy()
        raw = encode_policy(policy)
        self.state.store_policy(raw)
        self.state.enrol(Enrolment(node=NODE, product=policy.product, policy=sha256_text(raw)))
        self.route = Route(
            product=policy.product,
            nodes={
                NODE: RouteNode(
                    role="web",
                    platform="bookworm",
                    domain="d",
                    lane="a",
                    endpoint=Endpoint(kind="local", root=self.root),
                    node_key=self.signer.public.keyid,
                    vars={"port": str(self.port)},
                )
            },
            max_unavailable=1,
            floor=0,
            guard_min="L2",
            hub=None,
            policy=sha256_text(raw),
            controllers=(documents.CONTROLLER_KEY.public,),
            waivers=(
                Waiver(node=NODE, rule="guard-level", value="L0", reason="a folder"),
                Waiver(node=NODE, rule="guard-policy", value="report", reason="tests of both"),
            ),
        )
        envelope = sign(
            encode_route(self.route), payload_type=ROUTE_TYPE, signer=documents.ROUTE_KEY
        )
        self.route_digest = envelope.digest
        self.state.store_route(envelope)
        self.state.ensure_ballast()

    # --- staging -------------------------------------------------------------------------------

    def stage(self, build: Build) -> Marker:
        """Realise a generation and return its staged marker."""
        release = make_release(build)
        manifest = encode_release(release)
        capsule = capsule_id(manifest)
        generation = generation_name(build.counter, capsule)
        folder = self.layout.generation(generation)
        make_dirs(self.disk, f"{folder}/app", 0o755)
        make_dirs(self.disk, f"{folder}/units", 0o755)
        self._put(f"{folder}/capsule.json", manifest)
        self._put(f"{folder}/app/serve.py", SERVER.encode())
        derived: dict[str, ObjectId] = {}
        addition = unit_addition(self.layout, release, capsule=capsule, generation=generation)
        argv = build.argv.format(folder=folder, port=self.port, counter=build.counter)
        for unit in build.units:
            text = UNIT.format(folder=folder, argv=argv) + addition(unit)
            self._put(f"{folder}/units/{unit}", text.encode())
            derived[f"units/{unit}"] = object_id(text.encode())
        for name, image in build.images.items():
            for inside, data in layout_files(image).items():
                make_dirs(self.disk, f"{folder}/{name}/{inside}".rpartition("/")[0], 0o755)
                self._put(f"{folder}/{name}/{inside}", data)
        for target, data in build.files.items():
            path = f"{folder}/files{target}"
            make_dirs(self.disk, path.rpartition("/")[0], 0o755)
            self._put(path, data)
            derived[f"files{target}"] = object_id(data)
        marker = Marker(
            kind="staged",
            node=NODE,
            node_key=self.signer.public.keyid,
            capsule=capsule,
            release_counter=build.counter,
            generation=generation,
            previous=ABSENT,
            route=self.route_digest,
            fence=1,
            op_id="",
            trees={component.name: component.tree for component in release.components},
            derived=derived,
        )
        chain = ReceiptChain(self.disk, self.layout, self.signer)
        take_lease(self.disk, self.layout, chain, generation, marker.trees.values())
        envelope = sign(encode_marker(marker), payload_type=MARKER_TYPE, signer=self.signer)
        replace_file(self.disk, self.layout.marker(generation), encode_record(envelope), 0o600)
        return marker

    def _put(self, path: str, data: bytes) -> None:
        if self.disk.stat(path) is None:
            with self.disk.create(path, 0o644) as writer:
                writer.write(data)
                writer.fsync("test's file")
            self.disk.fsync_dir(path.rpartition("/")[0], "test's name")

    # --- ordering ------------------------------------------------------------------------------

    def order(
        self, marker: Marker, *, op_id: str, boot_id: str, boot_ms: int, **changes: object
    ) -> Envelope:
        """Return a controller's order of a generation, with a nonce that the host knows."""
        nonce = op_id
        if self.disk.stat(f"{self.layout.nonces}/{nonce}") is None:
            self.state.remember_nonce(nonce, boot_id=boot_id, boot_ms=boot_ms)
        order = Order(
            op_id=op_id,
            verb="install",
            node=NODE,
            node_key=self.signer.public.keyid,
            capsule=marker.capsule,
            release_counter=marker.release_counter,
            generation=marker.generation,
            prior=self.state.generation_of(self.layout.current),
            route=self.route_digest,
            epoch="e1",
            fence=1,
            nonce=nonce,
            boot_id=boot_id,
            valid_ms=60_000,
            confirm="controller",
            d1_ms=20_000,
            d2_ms=20_000,
            guard_level="L0",
            guard_policy="fail",
        )
        changed = replace(order, **changes)  # type: ignore[arg-type]
        return sign(encode_order(changed), payload_type=ORDER_TYPE, signer=self.controller)

    def confirm(self, op_id: str, proof: str, **changes: object) -> Envelope:
        """Return a controller's confirm of a proof's digest."""
        confirm = Confirm(op_id=op_id, node=NODE, proof=proof, route=self.route_digest, fence=1)
        changed = replace(confirm, **changes)  # type: ignore[arg-type]
        return sign(encode_confirm(changed), payload_type=CONFIRM_TYPE, signer=self.controller)

    def order_now(self, marker: Marker, *, op_id: str, **changes: object) -> Envelope:
        """Return an order of this boot and moment."""
        clock = BootClock()
        return self.order(
            marker, op_id=op_id, boot_id=clock.boot_id(), boot_ms=clock.boot_ms(), **changes
        )

    # --- running the program -------------------------------------------------------------------

    def run(self, *arguments: str, stdin: bytes = b"") -> tuple[int, list[dict[str, object]]]:
        """Run the host program and return its exit code and records."""
        completed = subprocess.run(
            [sys.executable, "-m", "capsule_installer", "--root", self.root, *arguments],
            input=stdin,
            capture_output=True,
            timeout=60,
            check=False,
        )
        records = RecordReader().feed(completed.stdout)
        if completed.returncode == 1:
            raise AssertionError(completed.stderr.decode())
        return completed.returncode, [dict(record) for record in records]

    def begin(self, marker: Marker, *, op_id: str, **changes: object) -> OpFolder:
        """Order a generation; return its op's folder once the host has accepted."""
        envelope = self.order_now(marker, op_id=op_id, **changes)
        code, records = self.run("install", stdin=encode_record(envelope))
        assert code == 0, records
        return self.op(op_id)

    def install(
        self, marker: Marker, *, op_id: str, **changes: object
    ) -> tuple[int, list[dict[str, object]]]:
        """Order a generation, confirm its proof if one comes, and follow it to its end."""
        op = self.begin(marker, op_id=op_id, **changes)
        await_true(lambda: op.proof() is not None or op.result() is not None)
        proof = op.proof()
        if proof is not None:
            self.run("confirm", stdin=encode_record(self.confirm(op_id, proof.digest)))
        return self.run("follow", op_id, "--timeout", "40")

    def op(self, op_id: str) -> OpFolder:
        """Return the folder of an op."""
        return OpFolder(disk=self.disk, layout=self.layout, op_id=op_id)

    def effects(self) -> Effects:
        """Return the real effects of this host, for what a test does in its own process."""
        place_rescue(self.disk, self.layout)
        return real_effects(self.disk, self.layout)

    def rescue(self, *arguments: str) -> int:
        """Run `rescue.sh` as it lies on the host; return its exit code."""
        program = f"{self.layout.recovery}/rescue.sh"
        return subprocess.run(
            ["sh", program, self.layout.root, *arguments], timeout=60, check=False
        ).returncode

    def get(self) -> str:
        """Return what the service answers, "" when none does."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=5) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    def current(self) -> str:
        """Return the installed generation."""
        return self.state.generation_of(self.layout.current)

    def stop_services(self) -> None:
        """End every process of this host's services."""
        folder = Path(self.layout.run) / "services"
        for unit in folder.iterdir() if folder.exists() else ():
            subprocess.run(
                ["sh", script("service-process.sh"), self.root, "stop", unit.name, "1000"],
                check=False,
            )


def script(name: str) -> str:
    """Return the path of a shell program of the installer."""
    return str(Path(capsule_installer.__file__).parent / "shell" / name)


def free_port() -> int:
    """Return a port on loopback that nobody uses now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def await_true(condition: Callable[[], bool], *, within_s: float = 30) -> None:
    """Wait for a condition, with a limit."""
    until = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.02)


def make_release(build: Build) -> Release:
    """Return the manifest of a generation of the tests."""
    base = documents.make_release()
    probe = Probe(http="http://127.0.0.1:@{node.port}/", timeout_ms=1_000)
    component = Component(
        name="web",
        kind=ComponentKind.SERVICE,
        platforms=(),
        tree=object_id(json.dumps([build.counter, build.argv]).encode()),
        entries=1,
        content_bytes=1,
        units=tuple(
            Unit(
                name=unit,
                file=unit,
                start_timeout_ms=build.start_ms,
                stop_timeout_ms=build.stop_ms,
                soak_ms=build.soak_ms,
                probe=probe if build.probe else None,
            )
            for unit in build.units
        ),
        files=tuple(
            ManagedFile(
                file=target.rpartition("/")[2],
                target=target,
                owner="root",
                group="root",
                mode=0o644,
                template=False,
            )
            for target in build.files
        ),
        guarded_steps=build.guarded_steps,
    )
    images = tuple(
        Component(
            name=name,
            kind=ComponentKind.IMAGE,
            platforms=(),
            tree=object_id(name.encode()),
            entries=1,
            content_bytes=1,
            external=named_by(name, image),
        )
        for name, image in sorted(build.images.items())
    )
    return replace(
        base,
        version=f"{build.counter}.0",
        release_counter=build.counter,
        roles={"web": Role(components=(*sorted(build.images), "web"))},
        platforms={"bookworm": base.platforms["bookworm"]},
        components=(*images, component),
        budgets=build.budgets,
    )
