"""First contact: put the host program where nothing but Python is.

The runtime component of the verified capsule travels plainly, with its SHA-256, through a script
that needs only the standard library. What makes it genuine is the pinned connection: the program
that would verify a signature is what is being sent. From then on the host verifies for itself.

Source: design, section 8; the stream's layout is in `first_contact_host.py`.
"""

import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from capsule.payload import Payload
from capsule.session import Dialogue
from capsule.transport.base import Limits, Transport
from capsule_manifest.digest import ObjectId, object_id
from capsule_manifest.errors import Refused
from capsule_manifest.fields import Object
from capsule_manifest.pack import decode_frame
from capsule_manifest.release import Component, ComponentKind, Platform
from capsule_manifest.tree import EntryKind, Tree, content_order

__all__ = ["Runtime", "RuntimeSource", "read_runtime", "send_runtime"]

_RUNTIME_BYTES_MAX: Final = 256 * 1024 * 1024
_SEND: Final = Limits(total_s=600.0, idle_s=60.0)
_ID_DIGITS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """The host program, ready to be sent: the whole stream, its digest, and its id."""

    id: str
    stream: bytes
    sha256: str
    interpreter: str


class RuntimeSource:
    """The runtimes of one capsule, each taken out once however many hosts lack it."""

    def __init__(self, payload: Payload) -> None:
        self._payload = payload
        self._lock = threading.Lock()
        self._found: dict[str, Runtime] = {}

    def wanted(self, platform: str) -> str:
        """Return the id of the runtime for `platform`. Raises: `runtime-missing`."""
        return runtime_id(runtime_component(self._payload, platform))

    def get(self, platform: str) -> Runtime:
        """Return the runtime for `platform`. Raises: as `read_runtime`."""
        with self._lock:
            if platform not in self._found:
                self._found[platform] = read_runtime(self._payload, platform)
            return self._found[platform]


def runtime_component(payload: Payload, platform: str) -> Component:
    """Return the component that holds the host program for `platform`.

    Raises:
        Refused: `runtime-missing`.
    """
    for component in payload.release.components:
        if component.kind is ComponentKind.RUNTIME and platform in component.platforms:
            return component
    raise Refused(
        "runtime-missing",
        "the capsule holds no host program for a node's platform",
        expected=platform,
        got=sorted(payload.release.platforms),
    )


def runtime_id(component: Component) -> str:
    """Return the eight hex digits under which hosts keep this runtime."""
    return component.tree.hex()[:_ID_DIGITS]


def read_runtime(payload: Payload, platform: str) -> Runtime:
    """Take the runtime out of the capsule, verifying every frame and object, and lay it out.

    Raises:
        Refused: `runtime-missing`, `frame-*`, `tree-*`, `object-digest-mismatch`.
        Failed: `capsule-incomplete`, `controller-disk`.
    """
    component = runtime_component(payload, platform)
    if component.content_bytes > _RUNTIME_BYTES_MAX:
        raise Refused(
            "runtime-missing",
            "a host program is too large to be sent before the host can verify",
            expected=f"at most {_RUNTIME_BYTES_MAX} bytes",
            got=component.content_bytes,
            where=component.name,
        )
    tree = payload.tree(component.tree)
    stream = _layout(tree, runtime_id(component), _objects(payload, component, tree))
    return Runtime(
        id=runtime_id(component),
        stream=stream,
        sha256=hashlib.sha256(stream).hexdigest(),
        interpreter=interpreter_of(payload.release.platforms[platform]),
    )


def interpreter_of(platform: Platform) -> str:
    """Return the interpreter that a host of `platform` has: its path, or a name to be found."""
    return platform.interpreter or f"python{platform.python}"


def send_runtime(transport: Transport, runtime: Runtime, *, node: str) -> None:
    """Unpack `runtime` on the host and point its launcher there. Repeating it changes nothing.

    Raises:
        CapsuleError: `first-contact-refused`, `host-program-missing` when there is no such
            interpreter, and as `Dialogue.next`.
    """
    script = files("capsule").joinpath("first_contact_host.py").read_text(encoding="utf-8")
    argv = [
        runtime.interpreter,
        "-I",
        "-S",
        "-c",
        script,
        transport.root or "/",
        runtime.id,
        runtime.sha256,
        str(len(runtime.stream)),
    ]
    with transport.open(argv, limits=_SEND) as channel:
        dialogue = Dialogue(channel, node=node, verb="first contact")
        channel.write(runtime.stream)
        channel.end_input()
        answer = Object(dialogue.expect("runtime"), f"answer of {node}")
        dialogue.finish()
    if answer.text("runtime") != runtime.id:
        raise Refused(
            "first-contact-refused",
            "a host unpacked another runtime than it was sent",
            expected=runtime.id,
            got=answer.text("runtime"),
            where=node,
        )


def _objects(payload: Payload, component: Component, tree: Tree) -> dict[ObjectId, memoryview]:
    """Decode the component's content stream and cut it into its objects, each proved."""
    stream = memoryview(b"".join(_contents(payload, component.tree)))
    objects: dict[ObjectId, memoryview] = {}
    position = 0
    for name, size_bytes in content_order(tree):
        content = stream[position : position + size_bytes]
        position += size_bytes
        if object_id(content) != name:
            raise Refused(
                "object-digest-mismatch",
                "a file of the host program is not what the capsule names",
                expected=f"blake3:{name.hex()}",
                where=component.name,
            )
        objects[name] = content
    return objects


def _contents(payload: Payload, root: ObjectId) -> Iterator[bytes]:
    for index, frame in enumerate(payload.frames(root)):
        yield decode_frame(b"".join(payload.frame_chunks(root, index)), frame)


def _layout(tree: Tree, name: str, objects: dict[ObjectId, memoryview]) -> bytes:
    rows: list[list[str | int]] = []
    contents: list[memoryview] = []
    for entry in tree.entries:
        if entry.kind is EntryKind.LINK:
            raise Refused(
                "runtime-missing",
                "a host program holds a link, which first contact doesn't unpack",
                got=entry.path,
            )
        if entry.kind is EntryKind.DIRECTORY:
            rows.append(["directory", entry.path, entry.mode, 0])
            continue
        assert entry.object is not None, "a file entry names its object"
        rows.append(["file", entry.path, entry.mode, entry.size_bytes])
        if entry.size_bytes:
            contents.append(objects[entry.object])
    index = json.dumps({"runtime": name, "entries": rows}, separators=(",", ":")).encode()
    return b"".join([len(index).to_bytes(8, "big"), index, *contents])
