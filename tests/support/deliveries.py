"""Signed deliveries made from bytes, and a host to receive them: for tests of staging."""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from capsule_installer.engines.base import Images, NoImages
from capsule_installer.host.enrol import enrol
from capsule_installer.host.host import Host
from capsule_installer.host.identity import require_node_key
from capsule_installer.host.layout import make_layout
from capsule_installer.host.receipts import ReceiptChain
from capsule_installer.services.base import UnitState
from capsule_installer.staging.receive import receive
from capsule_installer.system.disk import Disk, RealDisk
from capsule_installer.system.facts import MachineFacts
from capsule_installer.system.report import Reporter
from capsule_manifest.canonical import JsonValue, encode
from capsule_manifest.digest import ObjectId, object_id, parse_blake3, sha256_text
from capsule_manifest.envelope import IN_TOTO, encode_bundle, encode_record, sign
from capsule_manifest.keys import b64encode
from capsule_manifest.pack import Pack, PackWriter, cut_frames
from capsule_manifest.packing import Content, Packing, encode_packing
from capsule_manifest.policy import Policy, encode_policy
from capsule_manifest.records import Marker
from capsule_manifest.release import (
    Component,
    ComponentKind,
    External,
    ManagedFile,
    Platform,
    Release,
    Role,
    Unit,
    capsule_id,
    encode_release,
    generation_name,
)
from capsule_manifest.route import ROUTE_TYPE, Endpoint, Route, RouteNode, encode_route
from capsule_manifest.statements import ReleaseClaim, packing_statement, release_statement
from capsule_manifest.tree import Entry, EntryKind, Tree, build_tree, content_order, encode_tree
from capsule_manifest.wire import Message, MessageType, RecordReader
from support import documents, formats
from support.signing import FixedSigner

NODE = "n1"
INTERPRETER = "/usr/bin/python3.11"
BOOT = "boot-1"

UNIT = """\
[Unit]
Description=hello on @{node.id}

[Service]
ExecStart=@{generation}/app/run --port @{node.port}
WorkingDirectory=@{generation}/app
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One component: entries with the bytes of each file."""

    name: str
    kind: ComponentKind
    entries: tuple[Entry, ...]
    contents: Mapping[ObjectId, bytes]
    units: tuple[Unit, ...] = ()
    files: tuple[ManagedFile, ...] = ()
    platforms: tuple[str, ...] = ()
    external: tuple[External, ...] = ()

    @property
    def tree(self) -> Tree:
        return build_tree(self.entries)


def part(
    name: str,
    kind: ComponentKind,
    contents: Mapping[str, bytes],
    *,
    modes: Mapping[str, int] | None = None,
    links: Mapping[str, str] | None = None,
    **more: object,
) -> Part:
    """Return a component with these files, modes and links."""
    entries = [
        formats.file(path, content, (modes or {}).get(path, 0o644))
        for path, content in contents.items()
    ]
    entries += [formats.link(path, target) for path, target in (links or {}).items()]
    objects = {object_id(content): content for content in contents.values()}
    return Part(name=name, kind=kind, entries=tuple(entries), contents=objects, **more)  # type: ignore[arg-type]


def default_parts(text: str = "one") -> tuple[Part, ...]:
    """Return a small release: source with a program and a link, a unit, a managed file, wheels."""
    unit = Unit(
        name="hello.service",
        file="hello.service",
        start_timeout_ms=1000,
        stop_timeout_ms=1000,
        soak_ms=100,
        probe=None,
    )
    managed = ManagedFile(
        file="hello.toml",
        target="/etc/hello/hello.toml",
        owner="root",
        group="root",
        mode=0o640,
        template=True,
    )
    return (
        part(
            "app",
            ComponentKind.SOURCE,
            {
                "run": b"#!/bin/sh\nexec sleep 60\n",
                "main.py": f"print({text!r})\n".encode(),
                "lib/__init__.py": b"",
                "secret.txt": b"private\n",
            },
            modes={"run": 0o755, "secret.txt": 0o640},
            links={"latest": "main.py"},
        ),
        part(
            "config",
            ComponentKind.FILES,
            {"hello.toml": b'port = @{node.port}\nfolder = "@{current}"\n'},
            files=(managed,),
        ),
        part(
            "libs",
            ComponentKind.WHEELS,
            {
                "lib/python3.11/site-packages/hello/__init__.py": b"VALUE = 1\n",
                "bin/hello": b"#!/bin/sh\n",
            },
            modes={"bin/hello": 0o755},
        ),
        part("web", ComponentKind.SERVICE, {"hello.service": UNIT.encode()}, units=(unit,)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Capsule:
    """A signed capsule in memory."""

    release: Release
    manifest: bytes
    packing: bytes
    signatures: Mapping[str, bytes]
    trees: Mapping[ObjectId, bytes]
    stored: Mapping[ObjectId, tuple[bytes, ...]]

    @property
    def generation(self) -> str:
        return generation_name(self.release.release_counter, capsule_id(self.manifest))


def make_capsule(
    parts: Sequence[Part] | None = None,
    *,
    counter: int = 7,
    platform: Platform | None = None,
    signers: Sequence[FixedSigner] = (documents.RELEASE_KEY,),
    **changes: object,
) -> Capsule:
    """Return a capsule of `parts`; `changes` are to its manifest."""
    parts = tuple(sorted(parts or default_parts(), key=lambda item: item.name))
    trees = {item.tree.root: encode_tree(item.tree) for item in parts}
    contents: dict[ObjectId, Content] = {}
    stored: dict[ObjectId, tuple[bytes, ...]] = {}
    for item in parts:
        contents[item.tree.root], stored[item.tree.root] = _pack(item)
    release = replace(
        documents.make_release(),
        release_counter=counter,
        platforms={
            "bookworm": platform
            or Platform(machine="x86_64", glibc="2.36", python="3.11", interpreter=None)
        },
        roles={
            "web": Role(
                components=tuple(
                    item.name for item in parts if item.kind is not ComponentKind.RUNTIME
                )
            )
        },
        components=tuple(_component(item) for item in parts),
    )
    release = replace(release, **changes)  # type: ignore[arg-type]
    manifest = encode_release(release)
    identity = capsule_id(manifest)
    packing = encode_packing(Packing(capsule=identity, contents=contents))
    claim = ReleaseClaim(
        capsule=identity,
        product=release.product,
        version=release.version,
        release_counter=counter,
    )
    statements = {
        "release": release_statement(claim),
        "packing": packing_statement(packing, identity),
    }
    signatures = {
        f"{about}-{signer.public.short}.sigstore.json": encode_bundle(
            sign(statement, payload_type=IN_TOTO, signer=signer)
        )
        for signer in signers
        for about, statement in statements.items()
    }
    return Capsule(
        release=release,
        manifest=manifest,
        packing=packing,
        signatures=signatures,
        trees=trees,
        stored=stored,
    )


class FakeClock:
    """A clock that moves a millisecond whenever it is read. `boot` is the boot that it counts."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self.boot = BOOT

    def boot_ms(self) -> int:
        self.now_ms += 1
        return self.now_ms

    def boot_id(self) -> str:
        return self.boot

    def sleep_ms(self, duration_ms: int) -> None:
        self.now_ms += duration_ms


class FakeMachine:
    """A machine of the tests' platform."""

    def __init__(self, uid: int) -> None:
        self._uid = uid
        self._count = 0
        self.found = MachineFacts(machine="x86_64", glibc="2.36", pythons={"3.11": INTERPRETER})

    def facts(self) -> MachineFacts:
        return self.found

    def uid(self) -> int:
        return self._uid

    def is_noexec(self, path: str) -> bool:
        del path
        return False

    def interpreter(self) -> str:
        return INTERPRETER

    def nonce(self) -> str:
        self._count += 1
        return f"{self._count:032x}"


@dataclass
class FakePython:
    """An interpreter that compiles `.py` to a note, and imports what it is not told to fail."""

    disk: Disk
    failing: dict[str, str] = field(default_factory=dict)
    imported: list[str] = field(default_factory=list)
    compiled: list[str] = field(default_factory=list)

    def compile(self, folder: str, interpreter: str) -> None:
        if interpreter:
            self.compiled.append(folder)
        for name in list(self.disk.list(folder)):
            path = f"{folder}/{name}"
            found = self.disk.stat(path)
            if found is not None and found.kind == "directory" and name != "__pycache__":
                self.compile(path, "")
            elif name.endswith(".py"):
                self._note(folder, name)

    def imports(self, interpreter: str, modules: Sequence[str]) -> dict[str, str]:
        self.imported += [f"{interpreter} {name}" for name in modules]
        return {name: why for name, why in self.failing.items() if name in modules}

    def _note(self, folder: str, name: str) -> None:
        cache = f"{folder}/__pycache__"
        if self.disk.stat(cache) is None:
            self.disk.mkdir(cache, 0o755)
        path = f"{cache}/{name.removesuffix('.py')}.cpython-311.pyc"
        if self.disk.stat(path) is None:
            with self.disk.create(path, 0o644) as writer:
                writer.write(b"bytecode of " + self.disk.read(f"{folder}/{name}", 1_000_000))


@dataclass
class FakeServices:
    """A service manager that only checks, and finds what it is told to find."""

    problems: list[str] = field(default_factory=list)
    checked: dict[str, str] = field(default_factory=dict)
    name: str = "fake"

    def companions(self, unit: str, text: str) -> dict[str, bytes]:
        del unit, text
        return {}

    def check(self, units: Mapping[str, str]) -> list[str]:
        self.checked.update(units)
        return list(self.problems)

    def reload(self, deadline_ms: int) -> None:
        raise AssertionError(deadline_ms)

    def stop(self, unit: str, deadline_ms: int) -> None:
        raise AssertionError((unit, deadline_ms))

    def start(self, unit: str, deadline_ms: int) -> None:
        raise AssertionError((unit, deadline_ms))

    def state(self, unit: str) -> UnitState:
        raise AssertionError(unit)


class Receiver:
    """A host that receives; on a model disk or on a real folder."""

    def __init__(self, root: str, *, disk: Disk | None = None, uid: int | None = None) -> None:
        self.disk: Disk = disk or RealDisk()
        self.output = io.BytesIO()
        self.log = io.StringIO()
        owner = self.disk.stat(root)
        self.machine = FakeMachine(uid if uid is not None else owner.uid if owner else 0)
        self.host = Host(
            disk=self.disk,
            layout=make_layout(root),
            clock=FakeClock(),
            machine=self.machine,
            reporter=Reporter(self.output, self.log),
        )
        self.layout = self.host.layout
        self.state = self.host.state
        self.services = FakeServices()
        self.images: Images = NoImages()
        self.python = FakePython(self.disk)
        self.policy: Policy = documents.make_policy()

    def enrol(self) -> None:
        """Enrol under the tests' policy."""
        self.host.prepare()
        enrol(self.host, self.request())

    def request(self, **changes: JsonValue) -> bytes:
        """Return an enrolment request."""
        fields: dict[str, JsonValue] = {
            "node": NODE,
            "product": self.policy.product,
            "policy": b64encode(encode_policy(self.policy)),
        }
        return encode(fields | changes)

    def route(self, *, port: str = "8101", **changes: object) -> Route:
        """Return a route of this host."""
        route = Route(
            product=self.policy.product,
            nodes={
                NODE: RouteNode(
                    role="web",
                    platform="bookworm",
                    domain="d",
                    lane="a",
                    endpoint=Endpoint(kind="local", root="/srv/n1"),
                    node_key=None,
                    vars={"port": port},
                )
            },
            max_unavailable=1,
            floor=0,
            guard_min="L0",
            hub=None,
            policy=sha256_text(encode_policy(self.policy)),
            controllers=(documents.CONTROLLER_KEY.public,),
            waivers=(),
        )
        return replace(route, **changes)  # type: ignore[arg-type]

    def messages(
        self,
        capsule: Capsule,
        *,
        route: Route | None = None,
        fence: int = 3,
        begin: Mapping[str, JsonValue] | None = None,
        edit: Callable[[list[Message]], list[Message]] = lambda messages: messages,
        frames_max: int | None = None,
    ) -> Iterator[Message]:
        """Yield a delivery. The frames follow from the want, which is asked when they are due."""
        fields: dict[str, JsonValue] = {
            "node": NODE, "role": "web", "platform": "bookworm", "fence": fence, "epoch": "",
        }  # fmt: skip
        signed = sign(
            encode_route(route or self.route()),
            payload_type=ROUTE_TYPE,
            signer=documents.ROUTE_KEY,
        )
        metadata = [
            Message(type=MessageType.BEGIN, body=encode(fields | dict(begin or {}))),
            Message(type=MessageType.ROUTE, body=encode_record(signed)),
            Message(type=MessageType.MANIFEST, body=capsule.manifest),
        ]
        metadata += [
            Message(type=MessageType.SIGNATURE, body=name.encode() + b"\0" + raw)
            for name, raw in capsule.signatures.items()
        ]
        metadata.append(Message(type=MessageType.PACKING, body=capsule.packing))
        metadata += [Message(type=MessageType.TREE, body=raw) for raw in capsule.trees.values()]
        metadata.append(Message(type=MessageType.PLAN, body=b""))
        yield from edit(metadata)
        sent = 0
        for root, indexes in self.wanted().items():
            for index in indexes:
                if frames_max is not None and sent >= frames_max:
                    return
                sent += 1
                body = root + index.to_bytes(4, "big") + capsule.stored[root][index]
                yield Message(type=MessageType.FRAME, body=body)
        yield Message(type=MessageType.END, body=b"")

    def wanted(self) -> dict[ObjectId, list[int]]:
        """Return the frames of the last want."""
        frames = self.records("want")[-1]["frames"]
        assert isinstance(frames, dict)
        return {parse_blake3(root, "want"): indexes for root, indexes in frames.items()}

    def records(self, name: str) -> list[dict[str, object]]:
        """Return the records of one name that were reported so far."""
        found = RecordReader().feed(self.output.getvalue())
        return [dict(record) for record in found if record["record"] == name]

    def receive(self, capsule: Capsule, **how: object) -> dict[str, object]:
        """Receive a capsule and return the staged record."""
        self.take(self.messages(capsule, **how))  # type: ignore[arg-type]
        return self.records("staged")[-1]

    def take(self, messages: Iterator[Message]) -> None:
        """Receive whatever comes."""
        receive(
            self.host,
            messages,
            services=self.services,
            python=self.python,
            images=lambda: self.images,
        )

    def marker(self, capsule: Capsule) -> Marker | None:
        """Return the staged marker of a capsule, verified."""
        key = require_node_key(self.disk, self.layout).public
        return self.state.staged_marker(capsule.generation, key)

    def chain(self) -> ReceiptChain:
        """Return the host's receipts."""
        return ReceiptChain(self.disk, self.layout, require_node_key(self.disk, self.layout))

    def path(self, capsule: Capsule, inside: str) -> str:
        """Return a path in a capsule's generation."""
        return f"{self.layout.generation(capsule.generation)}/{inside}"


def _pack(item: Part) -> tuple[Content, tuple[bytes, ...]]:
    order = content_order(item.tree)
    if not order:
        return Content(stream_bytes=0, packs=()), ()
    packs: list[Pack] = []
    stored: list[bytes] = []
    raw, writer = bytearray(), None
    for content in cut_frames([item.contents[digest]] for digest, _ in order):
        if writer is None or writer.is_full:
            if writer is not None:
                packs.append(writer.finish())
            raw = bytearray()
            writer = PackWriter(raw.extend)
        frame = writer.add(content)
        stored.append(bytes(raw[frame.offset : frame.offset + frame.stored_bytes]))
    assert writer is not None, "there is content"
    packs.append(writer.finish())
    return Content(stream_bytes=sum(size for _, size in order), packs=tuple(packs)), tuple(stored)


def _component(item: Part) -> Component:
    tree = item.tree
    return Component(
        name=item.name,
        kind=item.kind,
        platforms=item.platforms,
        tree=tree.root,
        entries=len(tree.entries),
        content_bytes=sum(
            entry.size_bytes for entry in tree.entries if entry.kind is EntryKind.FILE
        ),
        units=item.units,
        files=item.files,
        external=item.external,
    )
