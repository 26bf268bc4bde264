"""Repair writes a missing marker from agreeing evidence, and from nothing less."""

import pytest

from capsule_installer.installed import installed_marker_path, read_installed_marker
from capsule_installer.repair import repair_marker
from capsule_manifest.envelope import decode_record, sign
from capsule_manifest.keys import b64decode
from capsule_manifest.records import decode_receipt
from capsule_manifest.repairs import REPAIR_TYPE, Repair, encode_repair
from support.failures import fails_with
from support.signing import FixedSigner
from support.staged_host import NODE, Build

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
