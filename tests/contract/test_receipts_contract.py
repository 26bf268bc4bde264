"""What is done to the receipts on a host's disk, and what the controller finds of it.

The real host program tells them over a real transport; the controller has copies of them all.
"""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from capsule.receipts_compare import compare_receipts
from capsule.receipts_store import check_receipt
from capsule.session import HostSession
from capsule.transport.local import LocalTransport
from capsule_installer.host.identity import require_node_key
from capsule_installer.host.layout import make_layout
from capsule_installer.host.receipts import ReceiptChain
from capsule_installer.system.disk import RealDisk
from capsule_manifest.envelope import encode_record, sign
from capsule_manifest.policy import encode_policy
from capsule_manifest.records import RECEIPT_TYPE, encode_receipt
from support import documents
from support.host_programs import real_launcher

POLICY = encode_policy(documents.make_policy())
COUNT = 5


class Host:
    """A folder host whose chain has five receipts, copied by a controller."""

    def __init__(self, root: Path, node: str) -> None:
        program = root / "opt/capsule/bin/capsule"
        program.parent.mkdir(parents=True, mode=0o755)
        for folder in (root, root / "opt", root / "opt/capsule"):
            folder.chmod(0o755)
        program.write_bytes(real_launcher())
        program.chmod(0o755)
        self.node = node
        self.session = HostSession(LocalTransport(root), node=node)
        self.key, _ = self.session.enrol(policy=POLICY, product="acme/hello")
        layout = make_layout(str(root))
        disk = RealDisk()
        self.signer = require_node_key(disk, layout)
        self.chain = ReceiptChain(disk, layout, self.signer)
        while len(self.chain.read_all()) < COUNT:
            self.chain.append_policy(
                kind="trust", node=node, fence=0, reason="", policy="sha256:" + "0" * 64,
                product="acme/hello",
            )  # fmt: skip
        self.folder = Path(layout.receipts)
        self.kept = [
            check_receipt(record, node=node, key=self.key) for record in self.session.receipts()
        ]

    def file(self, number: int) -> Path:
        return self.folder / f"{number:08}.json"

    def forge(self, number: int, **changes: object) -> bytes:
        """Return a receipt that root on the host signs with the host's own key."""
        receipt = replace(self.kept[number - 1].receipt, reason="nothing happened", **changes)
        signed = sign(encode_receipt(receipt), payload_type=RECEIPT_TYPE, signer=self.signer)
        return encode_record(signed)

    def findings(self) -> list[tuple[int, str]]:
        told, _ = self.session.told_receipts()
        compared = compare_receipts(self.kept, told, node=self.node, key=self.key)
        return [(item.number, item.what.partition(":")[0]) for item in compared.findings]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "n1", "n1")


def test_an_untouched_chain_agrees(host):
    assert host.findings() == []
    assert host.session.told_receipts()[1] is None


def test_a_removed_receipt_is_found(host):
    host.file(3).unlink()
    assert host.findings() == [(3, "is gone")]


def test_a_changed_receipt_is_found(host):
    raw = host.file(3).read_bytes()
    host.file(3).write_bytes(raw.replace(b'"payload":"ey', b'"payload":"eY'))
    assert host.findings() == [(3, "can't be believed")]


def test_two_swapped_receipts_are_found(host):
    third, fourth = host.file(3).read_bytes(), host.file(4).read_bytes()
    host.file(3).write_bytes(fourth)
    host.file(4).write_bytes(third)
    assert host.findings() == [(3, "is told after number 4")]


def test_a_receipt_forged_with_the_hosts_own_key_is_found(host):
    host.file(3).write_bytes(host.forge(3))
    assert host.findings() == [(3, "is another than it was")]


def test_a_forged_end_whose_links_are_whole_is_found_by_the_copies_alone(host):
    host.file(5).write_bytes(host.forge(5))
    told, error = host.session.told_receipts()
    assert error is None, "the host's own check has nothing to compare with"
    assert len(told) == COUNT
    assert host.findings() == [(5, "is another than it was")]


def test_a_chain_cut_at_its_end_is_found_by_the_copies_alone(host):
    host.file(4).unlink()
    host.file(5).unlink()
    assert host.session.told_receipts()[1] is None
    assert host.findings() == [(4, "was cut off at the end"), (5, "was cut off at the end")]


def test_the_chain_of_another_host_is_found(host, tmp_path):
    other = Host(tmp_path / "n2", "n2")
    for number in range(1, COUNT + 1):
        shutil.copy(other.file(number), host.file(number))
    assert host.findings() == [(number, "can't be believed") for number in range(1, COUNT + 1)]
