"""What a hostile stream does to the host program: an id, a code, a next step, and nothing else.

Everything goes through the process as a controller starts it. Beside the host's own folder lie a
home, a temporary folder and the place where an escape would land: they are compared byte by byte.
"""

import os
import platform
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

from capsule_installer.host.state import HostState
from capsule_manifest.envelope import encode_record, sign
from capsule_manifest.error_table import ROWS
from capsule_manifest.release import Platform
from capsule_manifest.route import ROUTE_TYPE, encode_route
from capsule_manifest.wire import MessageType, RecordReader, encode_message
from support import documents
from support.capsules import write_capsule
from support.deliveries import NODE, Receiver
from support.forgery import Forgery, raw_directory, raw_entry, raw_file, record

MIB = 1024 * 1024
COUNTER = 5


class Bench:
    """An enrolled host, a capsule for it, and all that must stay as it is."""

    def __init__(self, folder: Path, app: Mapping[str, bytes] | None = None) -> None:
        self.folder = folder
        for name in ("host", "home", "temporary"):
            (folder / name).mkdir(exist_ok=True)
        (folder / "home/.profile").write_bytes(b"# mine\n")
        (folder / "evil").write_bytes(b"as it was\n")
        self.receiver = Receiver(str(folder / "host"))
        self.receiver.enrol()
        self.layout = self.receiver.layout
        write_capsule(
            folder / "web.capsule",
            counter=COUNTER,
            components=None if app is None else {"app": app},
            runtime={"VERSION": b"0.1.0\n"},
        )
        self.forgery = Forgery(folder / "web.capsule")
        self.platform(glibc="2.17")

    def platform(self, **changes: str) -> None:
        """Describe this machine, or what differs from it."""
        here = Platform(
            machine=platform.machine(),
            glibc="2.17",
            python=f"{sys.version_info.major}.{sys.version_info.minor}",
            interpreter=sys.executable,
        )
        platforms = {"bookworm": replace(here, **changes)}
        self.forgery.release = replace(self.forgery.release, platforms=platforms)

    def content(self, *entries: bytes) -> None:
        """Let the component of the service's code have these raw entries."""
        self.forgery.replace_tree("app", record(*entries))

    def stream(self) -> bytes:
        """Return the delivery of the capsule as it lies there."""
        capsule = self.forgery.folder
        route = sign(
            encode_route(self.receiver.route()),
            payload_type=ROUTE_TYPE,
            signer=documents.ROUTE_KEY,
        )
        begin = (
            b'{"epoch":"","fence":3,"node":"%s","platform":"bookworm","role":"web"}' % NODE.encode()
        )
        said = [
            (MessageType.BEGIN, begin),
            (MessageType.ROUTE, encode_record(route)),
            (MessageType.MANIFEST, (capsule / "capsule.json").read_bytes()),
        ]
        said += [
            (MessageType.SIGNATURE, path.name.encode() + b"\0" + path.read_bytes())
            for path in sorted((capsule / "signatures").iterdir())
        ]
        said.append((MessageType.PACKING, (capsule / "packing.json").read_bytes()))
        said += [
            (MessageType.TREE, path.read_bytes()) for path in sorted((capsule / "trees").iterdir())
        ]
        said.append((MessageType.PLAN, b""))
        return b"".join(encode_message(*item) for item in [*said, *self._frames()]) + END

    def _frames(self):
        release = self.forgery.release
        for component in release.selected("web", "bookworm"):
            index = 0
            for pack in self.forgery.packing.contents[component.tree].packs:
                raw = (self.forgery.folder / "packs" / f"{pack.id.hex()}.pack").read_bytes()
                for frame in pack.frames:
                    stored = raw[frame.offset : frame.offset + frame.stored_bytes]
                    yield MessageType.FRAME, component.tree + struct.pack(">I", index) + stored
                    index += 1

    def start(self) -> subprocess.Popen[bytes]:
        """Start the host program as a controller does, with an environment that is watched."""
        return subprocess.Popen(
            [sys.executable, "-m", "capsule_installer", "--root", self.layout.root, "receive"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.folder / "home",
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": os.pathsep.join(sys.path),
                "HOME": str(self.folder / "home"),
                "TMPDIR": str(self.folder / "temporary"),
            },
        )

    def receive(self, stream: bytes) -> tuple[int, dict[str, object], str]:
        """Run the host program on a stream; return its code, last record and stderr."""
        with self.start() as program:
            shown, log = program.communicate(stream, timeout=60)
        records = RecordReader().feed(shown)
        return program.returncode, dict(records[-1]), log.decode()

    def outside(self) -> dict[Path, bytes]:
        """Return everything beside the host's folder, with its bytes."""
        return {
            path.relative_to(self.folder): path.read_bytes() if path.is_file() else b""
            for path in self.folder.rglob("*")
            if not path.is_relative_to(self.layout.root)
        }

    def promised(self) -> list[str]:
        """Return what the host would install: nothing, when all is well."""
        state = HostState(self.receiver.disk, self.layout)
        receipts = [path.name for path in Path(self.layout.receipts).iterdir()]
        return sorted([*state.staged_generations(), *receipts])

    def stored(self) -> list[Path]:
        """Return the objects of the store that a later staging could trust."""
        return [path for path in Path(self.layout.store).rglob("*") if path.is_file()]

    def is_refused(self, stream: bytes, error_id: str, *, before_content: bool = True) -> None:
        """Assert all that a refusal promises."""
        outside, kept = self.outside(), self.promised()
        code, answer, log = self.receive(stream)
        assert (answer.get("record"), answer.get("error")) == ("error", error_id), (answer, log)
        assert code == answer["exit_code"] == int(ROWS[error_id][0])
        assert answer["next"] == ROWS[error_id][1]
        assert "Traceback" not in log
        assert self.outside() == outside, "something was written outside of the host's folder"
        assert self.promised() == kept
        if before_content:
            assert self.stored() == []


END = encode_message(MessageType.END)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_the_same_stream_without_anything_wrong_is_staged(bench):
    bench.forgery.sign()
    outside = bench.outside()
    code, answer, log = bench.receive(bench.stream())
    assert (code, answer["record"]) == (0, "staged"), (answer, log)
    assert bench.outside() == outside
    assert bench.forgery.release.release_counter == COUNTER
    assert any(name.startswith(f"{COUNTER}-") for name in bench.promised())


# --- who says so --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("signer", "error_id"),
    [
        pytest.param(documents.STRANGER_KEY, "key-unknown", id="wrong-key"),
        pytest.param(documents.ROUTE_KEY, "authority-denied", id="wrong-authority"),
        pytest.param(documents.CONTROLLER_KEY, "key-unknown", id="controller"),
    ],
)
def test_a_stream_signed_by_the_wrong_key_is_refused(bench, signer, error_id):
    bench.forgery.sign(signer)
    bench.is_refused(bench.stream(), error_id)


def test_a_stream_with_the_signatures_of_another_capsule_is_refused(bench):
    other = bench.folder / "other.capsule"
    write_capsule(other, counter=COUNTER + 1)
    bench.forgery.sign()
    for path in (other / "signatures").iterdir():
        (bench.forgery.folder / "signatures" / path.name).write_bytes(path.read_bytes())
    bench.is_refused(bench.stream(), "signature-wrong-subject")


def test_a_stream_without_signatures_is_refused(bench):
    bench.forgery.sign()
    for path in (bench.forgery.folder / "signatures").iterdir():
        path.unlink()
    bench.is_refused(bench.stream(), "signature-missing")


def test_a_replayed_older_release_is_refused(bench):
    bench.forgery.sign()
    bench.receiver.state.raise_counter_floor(COUNTER + 1)
    bench.is_refused(bench.stream(), "release-counter-too-low")


# --- for whom it is -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"machine": "riscv64"}, id="machine"),
        pytest.param({"glibc": "9.99"}, id="newer-glibc"),
        pytest.param({"interpreter": "/nonexistent/python"}, id="interpreter"),
    ],
)
def test_a_release_for_another_platform_is_refused(bench, changes):
    bench.platform(**changes)
    bench.forgery.sign()
    bench.is_refused(bench.stream(), "platform-mismatch")


# --- signed, and wrong --------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("entries", "error_id"),
    [
        pytest.param([raw_file(b"a"), raw_file(b"a")], "tree-malformed", id="duplicate"),
        pytest.param([raw_entry(4, 0o644, b"a", bytes(8))], "tree-malformed", id="device"),
        pytest.param([raw_file(b"/etc/passwd")], "path-invalid", id="absolute"),
        pytest.param([raw_file(b"..")], "path-invalid", id="parent"),
        pytest.param([raw_file(b"a/../../../evil")], "path-invalid", id="slash"),
        pytest.param([raw_file(b"\xff")], "path-invalid", id="not-utf-8"),
        pytest.param([raw_entry(3, 0o777, b"a", b"/etc")], "link-escapes", id="absolute-link"),
        pytest.param([raw_entry(3, 0o777, b"a", b"../../evil")], "link-escapes", id="link"),
        pytest.param([raw_file(b"a", mode=0o4755)], "tree-entry-invalid", id="set-user-id"),
    ],
)
def test_a_stream_with_a_forbidden_entry_is_refused(bench, entries, error_id):
    bench.content(*entries)
    bench.forgery.sign()
    bench.is_refused(bench.stream(), error_id)


def test_a_stream_with_a_listing_that_nests_too_deep_is_refused(bench):
    records = [record(raw_file(b"main.py"))]
    for _ in range(200):
        records.insert(0, record(raw_directory(b"d", records[0])))
    bench.forgery.replace_tree("app", *records)
    bench.forgery.sign()
    bench.is_refused(bench.stream(), "tree-malformed")


@pytest.mark.parametrize("document", ["manifest", "packing"])
def test_a_stream_with_a_document_that_nests_too_deep_is_refused(bench, document):
    bench.forgery.sign(**{document: b"[" * 100_000 + b"]" * 100_000})
    bench.is_refused(bench.stream(), "json-too-deep")


def test_a_stream_that_announces_a_manifest_of_100_mb_is_refused_unread(bench):
    bench.forgery.sign()
    stream = bench.stream()
    at = stream.index((bench.forgery.folder / "capsule.json").read_bytes())
    header = encode_message(MessageType.MANIFEST, b"")
    before = stream[: at - len(header)]
    announced = header[:-4] + struct.pack(">I", 100 * MIB)
    bench.is_refused(before + announced + b"{" * 1000, "wire-malformed")


# --- content ------------------------------------------------------------------------------------
def bomb() -> bytes:
    """Return a frame that says it holds 1000 bytes and holds a mebibyte."""
    small = zstandard.ZstdCompressor().compress(bytes(1000))
    large = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(MIB))
    return small[: small.index(b"\xe8\x02") + 2] + large[6:]


def wide(content: bytes) -> bytes:
    """Return a frame that wants a window of 2^28 bytes."""
    blocks = zstandard.ZstdCompressor(write_content_size=False).compress(content)[6:]
    header = b"\x28\xb5\x2f\xfd" + bytes([0b1000_0000, (28 - 10) << 3])
    return header + struct.pack("<I", len(content)) + blocks


TEXT = b"text " * 1000


@pytest.mark.parametrize(
    ("named", "stored", "content", "error_id"),
    [
        pytest.param(bytes(1000), bomb(), bytes(1000), "frame-malformed", id="bomb"),
        pytest.param(TEXT, wide(TEXT), TEXT, "frame-malformed", id="window"),
        pytest.param(
            b"right" * 1000,
            zstandard.ZstdCompressor().compress(TEXT),
            TEXT,
            "object-malformed",
            id="other-content",
        ),
    ],
)
def test_a_frame_that_is_signed_and_wrong_is_refused(bench, named, stored, content, error_id):
    bench.content(raw_file(b"main.py", named))
    bench.forgery.replace_frame("app", stored, content)
    bench.forgery.sign()
    bench.is_refused(bench.stream(), error_id, before_content=False)


# --- damage on the way --------------------------------------------------------------------------
def test_a_stream_that_is_cut_off_anywhere_stages_nothing(bench):
    bench.forgery.sign()
    stream = bench.stream()
    for size in range(0, len(stream) - 1, max(1, len(stream) // 14)):
        bench.is_refused(stream[:size], "wire-malformed", before_content=False)


def test_a_stream_with_a_flipped_bit_stages_nothing(bench):
    bench.forgery.sign()
    stream = bench.stream()
    labels = {
        position
        for path in (bench.forgery.folder / "signatures").iterdir()
        for at in [stream.index(path.name.encode())]
        for position in range(at, at + len(path.name))
    }
    outside, kept = bench.outside(), bench.promised()
    for position in range(40, len(stream) - 1, max(1, len(stream) // 14)):
        if position in labels:
            # The name of a signature says nothing that the signature doesn't say itself.
            continue
        changed = bytearray(stream)
        changed[position] ^= 0x04
        code, answer, log = bench.receive(bytes(changed))
        assert answer["record"] == "error", (position, answer)
        assert code == answer["exit_code"] == int(ROWS[str(answer["error"])][0])
        assert "Traceback" not in log
        assert bench.promised() == kept
        assert bench.outside() == outside


# --- a target that takes nothing ----------------------------------------------------------------
SIZE, INODES = 96 * MIB, 2_000


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Bench]:
    """A bench whose host has a small disk of its own."""
    (tmp_path / "host").mkdir()
    options = f"size={SIZE},nr_inodes={INODES},mode=755"
    command = ["mount", "-t", "tmpfs", "-o", options, "none", str(tmp_path / "host")]
    if subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("this machine doesn't let us mount")
    made = Bench(tmp_path, app={"big": bytes(range(256)) * 1000, "noise": os.urandom(20 * MIB)})
    made.forgery.sign()
    yield made
    subprocess.run(["umount", str(tmp_path / "host")], check=True)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")


@pytest.mark.root
@needs_root
def test_a_read_only_target_is_refused(small):
    subprocess.run(["mount", "-o", "remount,ro", small.layout.root], check=True)
    small.is_refused(small.stream(), "disk-read-only")
    subprocess.run(["mount", "-o", "remount,rw", small.layout.root], check=True)
    assert small.receive(small.stream())[0] == 0


@pytest.mark.root
@needs_root
@pytest.mark.parametrize("what", ["bytes", "inodes"])
def test_a_target_that_fills_in_the_middle_stages_nothing_and_goes_on_afterwards(small, what):
    stream, outside, kept = small.stream(), small.outside(), small.promised()
    plan = encode_message(MessageType.PLAN)
    until = stream.index(plan + encode_message(MessageType.FRAME)[:1]) + len(plan)
    filler = Path(small.layout.root, "filler")
    with small.start() as program:
        program.stdin.write(stream[:until])
        program.stdin.flush()
        records, reader = [], RecordReader()
        while not records:
            records = list(reader.feed(program.stdout.read1(65536)))
        assert records[0]["record"] == "want"
        fill(filler, what)
        with suppress(BrokenPipeError):
            program.stdin.write(stream[until:])
            program.stdin.close()
        answer = list(reader.feed(program.stdout.read()))[-1]
    assert (answer["error"], program.returncode) == ("disk-full", 20)
    assert answer["next"] == ROWS["disk-full"][1]
    assert (small.outside(), small.promised()) == (outside, kept)
    shutil.rmtree(filler)
    assert small.receive(stream)[0] == 0


def fill(folder: Path, what: str) -> None:
    """Use up a small disk."""
    folder.mkdir()
    with pytest.raises(OSError, match="No space"):
        for index in range(INODES + 1):
            (folder / str(index)).write_bytes(bytes(MIB) if what == "bytes" else b"")
