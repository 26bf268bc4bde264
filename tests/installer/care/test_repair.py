"""Repair writes a missing marker from agreeing evidence, and from nothing less."""

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from capsule_installer.care.repair import repair_marker
from capsule_installer.host.receipts import ReceiptChain
from capsule_installer.host.state import HostState
from capsule_installer.op.installed import installed_marker_path
from capsule_manifest.envelope import decode_record, encode_record, sign
from capsule_manifest.errors import CapsuleError
from capsule_manifest.keys import b64decode
from capsule_manifest.records import decode_receipt
from capsule_manifest.repairs import REPAIR_TYPE, Repair, encode_repair
from capsule_manifest.wire import RecordReader
from support.failures import fails_with
from support.signing import FixedSigner
from support.staged_host import NODE, Build, await_true

pytestmark = pytest.mark.network

OP, REPAIR = "1" * 32, "9" * 32


@pytest.fixture
def installed(host):
    """Return a host with one generation, and that generation's marker."""
    marker = host.stage(Build(counter=1, files={"/etc/hello/hello.toml": b"one\n"}))
    assert host.install(marker, op_id=OP)[0] == 0
    return host, marker


def repair(host, marker, *, signer=None, **changes):
    values = {
        "op_id": REPAIR, "node": NODE, "node_key": host.signer.public.keyid,
        "route": host.route_digest, "fence": 50, "generation": marker.generation,
        "capsule": marker.capsule, "installed_by": OP,
    }  # fmt: skip
    payload = encode_repair(Repair(**(values | changes)))
    return sign(payload, payload_type=REPAIR_TYPE, signer=signer or host.controller)


def lose_marker(host):
    """Remove the marker; return what it said."""
    path = installed_marker_path(host.layout)
    before = host.disk.read(path, 2**20)
    host.disk.unlink(path)
    return before


def refused(host, marker, where, **changes):
    """Check that a repair is refused at a surface and that no marker was written."""
    with fails_with("repair-refused") as failure:
        repair_marker(host.effects(), repair(host, marker, **changes))
    assert where in failure.value.where
    return failure


def test_the_marker_is_written_as_it_was_with_a_receipt(installed):
    host, marker = installed
    before = decode_record(lose_marker(host), where="").payload
    said = repair_marker(host.effects(), repair(host, marker))
    after = decode_record(host.disk.read(installed_marker_path(host.layout), 2**20), where="")
    assert after.payload == before
    receipt = decode_receipt(decode_record(b64decode(said["receipt"], ""), where="").payload)
    assert (receipt.kind, receipt.op_id, receipt.fence) == ("repair", REPAIR, 50)
    assert repair_marker(host.effects(), repair(host, marker)) == said


def test_a_release_that_is_no_longer_the_last_one_installed_is_refused(installed):
    host, marker = installed
    lose_marker(host)
    refused(host, marker, "last receipt", installed_by="2" * 32)


def test_another_generation_or_capsule_is_refused(installed):
    host, marker = installed
    other = host.stage(Build(counter=2))
    lose_marker(host)
    refused(host, marker, "last receipt", generation=other.generation)
    refused(host, marker, "last receipt", capsule=other.capsule)


def test_a_stranger_and_a_lower_fence_are_refused(installed):
    host, marker = installed
    lose_marker(host)
    with fails_with("key-unknown"):
        repair_marker(host.effects(), repair(host, marker, signer=FixedSigner("stranger")))
    host.effects().state.raise_fence(60)
    with fails_with("order-fenced"):
        repair_marker(host.effects(), repair(host, marker))


@pytest.mark.parametrize("kind", ["link", "open", "folder", "unsigned"])
def test_an_artefact_in_the_markers_place_is_refused_and_left(installed, kind):
    host, marker = installed
    before = lose_marker(host)
    path = installed_marker_path(host.layout)
    if kind == "link":
        host.disk.symlink("/etc/passwd", path)
    elif kind == "folder":
        host.disk.mkdir(path, 0o700)
    else:
        with host.disk.create(path, 0o666 if kind == "open" else 0o600) as writer:
            writer.write(before if kind == "open" else b"{}")
        if kind == "open":
            host.disk.chmod(path, 0o666)
    refused(host, marker, "installed marker")


def test_a_changed_managed_file_or_unit_or_link_is_refused_and_named(installed):
    host, marker = installed
    lose_marker(host)
    unit = f"{host.layout.units}/hello.service"
    for path, where in ((f"{host.root}/etc/hello/hello.toml", "managed file"), (unit, "unit file")):
        before = host.disk.read(path, 2**20)
        host.disk.unlink(path)
        with host.disk.create(path, 0o644) as writer:
            writer.write(before + b"#\n")
        refused(host, marker, where)
        host.disk.unlink(path)
        with host.disk.create(path, 0o644) as writer:
            writer.write(before)
    host.disk.unlink(host.layout.current)
    refused(host, marker, "links")


def test_a_process_of_another_generation_or_none_is_refused(installed):
    host, marker = installed
    lose_marker(host)
    host.stop_services()
    refused(host, marker, "process of hello.service")


class Watched:
    """A disk that does something between two of its calls, and knows what was read when."""

    def __init__(self, disk, act=None, *, before_call=-1):
        self._disk, self._act, self._before_call = disk, act, before_call
        self.calls = 0
        self.acted = False
        self.last_read = {}
        self.linked = {}

    def __getattr__(self, name):
        method = getattr(self._disk, name)

        def call(*arguments):
            if self.calls == self._before_call:
                self._act()
                self.acted = True
            self.calls += 1
            self.last_read[arguments[0]] = self.calls
            if name == "link":
                self.linked[arguments[1]] = self.calls
            return method(*arguments)

        return call


def repair_on(host, disk, marker, op_id):
    effects = host.effects()
    watched = replace(
        effects,
        disk=disk,
        state=HostState(disk, host.layout),
        chain=ReceiptChain(disk, host.layout, host.signer),
    )
    return repair_marker(watched, repair(host, marker, op_id=op_id))


def forget_repair(host):
    """Undo a repair with its receipt, so that the next one makes the same calls."""
    lose_marker(host)
    max(Path(host.layout.receipts).glob("[0-9]*.json")).unlink()


def failure_of(host, disk, marker, op_id):
    """Return the error id of a repair, None when it is done."""
    try:
        repair_on(host, disk, marker, op_id)
    except CapsuleError as error:
        return error.error_id
    return None


def swaps(host, marker):
    """Return, by the artefact's path, how it is changed and how it is made whole again."""
    managed = f"{host.root}/etc/hello/hello.toml"
    unit = f"{host.layout.units}/hello.service"
    manifest = f"{host.layout.generation(marker.generation)}/capsule.json"
    current = Path(host.layout.current)

    def other_file(path):
        kept = Path(path).with_suffix(".kept")
        return (
            lambda: (Path(path).rename(kept), Path(path).write_bytes(b"#\n")),
            lambda: kept.rename(path),
        )

    def lead(target):
        return lambda: (current.unlink(missing_ok=True), current.symlink_to(target))

    return {
        managed: other_file(managed),
        unit: other_file(unit),
        manifest: other_file(manifest),
        host.layout.current: (
            lead("generations/2-00000000"), lead(f"generations/{marker.generation}")
        ),
        host.layout.hold: (
            lambda: Path(host.layout.hold).write_text("somebody\n"),
            lambda: Path(host.layout.hold).unlink(),
        ),
    }  # fmt: skip


def test_an_artefact_that_changes_between_any_two_steps_is_refused_unless_all_were_read(installed):
    host, marker = installed
    lose_marker(host)
    path = Path(installed_marker_path(host.layout))
    quiet = Watched(host.disk)
    repair_on(host, quiet, marker, "a" * 32)
    assert quiet.calls > 50
    forget_repair(host)
    refusals, late = set(), set()
    published = quiet.linked[str(path)]
    for number, (artefact, (change, undo)) in enumerate(swaps(host, marker).items()):
        # A check that came before the marker's publication only would not see what came between.
        assert quiet.last_read[artefact] > published
        for step in (*range(0, quiet.calls, 7), *range(published - 6, published + 7)):
            disk = Watched(host.disk, change, before_call=step)
            why = failure_of(host, disk, marker, f"{number:016x}{step:016x}")
            if why is None:
                assert disk.last_read[artefact] <= step, f"{artefact} before call {step}"
                late.add(artefact)
                forget_repair(host)
            else:
                assert why == "repair-refused"
                assert not path.exists(), f"{artefact} before call {step}"
                refusals.add(artefact)
            if disk.acted:
                undo()
    assert refusals == late == set(swaps(host, marker))


def test_a_marker_that_somebody_else_writes_meanwhile_is_left_and_the_repair_refused(installed):
    host, marker = installed
    lose_marker(host)
    path = Path(installed_marker_path(host.layout))
    quiet = Watched(host.disk)
    repair_on(host, quiet, marker, "a" * 32)
    path.unlink()

    def write():
        path.unlink(missing_ok=True)
        path.write_bytes(b"{}")

    for step in range(0, quiet.last_read[str(path)], 3):
        with fails_with("repair-refused"):
            repair_on(host, Watched(host.disk, write, before_call=step), marker, f"{step:032x}")
        assert path.read_bytes() == b"{}"
        path.unlink()


STOPS_BEFORE_ITS_ACT = """\
import os, signal, sys
from capsule_installer.system.disk import RealDisk
link = RealDisk.link
def stopping(self, source, target):
    if target.endswith("/installed.json"):
        os.kill(os.getpid(), signal.SIGSTOP)
    link(self, source, target)
RealDisk.link = stopping
from capsule_installer.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_real_program_that_stands_still_before_its_act_refuses_what_changed_meanwhile(installed):
    host, marker = installed
    lose_marker(host)
    argv = [sys.executable, "-c", STOPS_BEFORE_ITS_ACT, "--root", host.root, "repair"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        program.stdin.write(encode_record(repair(host, marker)))
        program.stdin.close()
        await_true(lambda: Path(f"/proc/{program.pid}/stat").read_text().split()[2] == "T")
        Path(f"{host.root}/etc/hello/hello.toml").write_bytes(b"two\n")
        program.send_signal(signal.SIGCONT)
        (said,) = RecordReader().feed(program.stdout.read())
    assert program.returncode == 3
    assert said["error"] == "repair-refused"
    assert "hello.toml" in said["where"]
    assert not Path(installed_marker_path(host.layout)).exists()
